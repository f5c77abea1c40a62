"""Collective calls of a set of nodes, and how the loss of one is detected."""
