"""Kernels in C++, compiled on first use and called through ctypes."""
