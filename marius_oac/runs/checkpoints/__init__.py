"""Checkpoints: a consistent state of weights, optimizers and timestamps, written atomically."""
