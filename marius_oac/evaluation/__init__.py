"""Scores and ranks of link prediction, metrics of clicks, and embeddings of all nodes."""
