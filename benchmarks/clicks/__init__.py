"""Training on click logs: speed, the index of keys, quality."""
