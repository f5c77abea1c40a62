"""Runs that an earlier version made."""
