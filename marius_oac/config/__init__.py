"""Configurations: one module per task, and the sections that tasks share. Imports neither torch nor numba."""
