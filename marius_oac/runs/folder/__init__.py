"""A run's folder: what `run.json` says, metrics, the order of batches, the user's own code."""
