"""Mixture of experts: router, routed experts, SwiGLU."""
