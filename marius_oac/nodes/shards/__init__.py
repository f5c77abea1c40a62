"""Rows on several nodes: placement, the server's side, and the trainer's side."""
