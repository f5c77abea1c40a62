"""Triton kernels. Modules of kernels alone are here, but for `choice`, which decides whether they are used.

Kernels take tensors and never allocate. Every sum has one fixed order, a function of shapes and indices alone, and no
float is added by an atomic operation: the same inputs give the same bits on the same device. Nothing is tuned as it
runs, since another tile is another order of sums.
"""
