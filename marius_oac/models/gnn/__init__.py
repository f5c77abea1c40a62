"""Graph encoders: compute a node's vector from its own values and those of its sampled neighbours."""
