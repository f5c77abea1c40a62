"""Decoders, losses, regularizers, row optimizers and the link-prediction step. Knows nothing of storage or pipeline."""
