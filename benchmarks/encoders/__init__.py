"""Graph neural networks: a layer, quality, node classification."""
