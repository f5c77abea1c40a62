"""Numba kernels. A module that holds only kernels lies here; a loop that one module alone needs stays there."""
