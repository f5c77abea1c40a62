"""Compiled inner loops, by processor. A leaf: kernels know arrays, and nothing of the layers that call them."""
