"""A run's folder: `run.json`, metrics, the order of batches, the user's own code."""
