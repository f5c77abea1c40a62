"""Rows that belong to keys: the index from key to row, admission and removal."""
