"""Decoders, losses, regularizers and the training step of link prediction."""
