"""Training on several nodes: launch, groups, transport, shards, dense parameters, global batch aggregation."""
