"""A prepared graph, opened for reading, and the arrays derived from it."""
