"""Node classification on a graph."""
