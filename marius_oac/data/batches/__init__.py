"""Planners of training batches on graphs: which edges or nodes, and which negatives."""
