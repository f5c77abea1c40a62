"""Encoders of graphs: what a node is, from itself and its sampled neighbours."""
