"""Neighbours of nodes, and sampled neighbourhoods for graph encoders."""
