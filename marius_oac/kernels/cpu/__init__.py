"""Numba kernels. Modules of kernels alone are here; a loop that only one module needs is in that module."""
