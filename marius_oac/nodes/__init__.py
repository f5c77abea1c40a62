"""Several nodes: groups, transport, rows on shards, dense agreement, global batch aggregation, launch."""
