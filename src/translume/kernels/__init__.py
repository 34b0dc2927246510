"""Compiled C kernels for the CPU: matrix products, attention, norms and search."""
