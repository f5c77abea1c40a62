"""Rows that are spread over nodes, by number or by key."""
