"""The kernels: one folder per family; `reference.py` in each is the definition."""
