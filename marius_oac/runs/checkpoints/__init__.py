"""Checkpoints: one moment's weights, optimizer state and timestamps, never half-written."""
