"""Rows of keys: the index from key to row, admission and removal."""
