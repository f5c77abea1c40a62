"""Compiled inner loops, by processor. Kernels take arrays, and import nothing from the packages that call them."""
