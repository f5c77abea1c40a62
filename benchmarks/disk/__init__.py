"""Rows and files on disk: pages, eviction, training, writing."""
