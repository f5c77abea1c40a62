"""Neighbours of nodes, and sampled neighbourhoods for encoders."""
