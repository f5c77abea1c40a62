"""Rows on disk under a budget of memory: pages, the frames that hold them, and the files that they lie in."""
