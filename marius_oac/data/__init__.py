"""Graphs: from files of edges to prepared folders, and from these to batches. Imports no torch."""
