"""What a set of nodes can do together, and who is still there."""
