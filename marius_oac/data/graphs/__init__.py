"""A prepared graph, opened for reading, and the arrays that follow from it."""
