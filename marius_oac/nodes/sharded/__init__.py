"""A task whose rows are spread over nodes: its checkpoints, its peers, its placement."""
