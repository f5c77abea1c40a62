"""Graphs and click logs: from files to prepared data, and from these to batches. Only `data.dgl` imports torch."""
