"""Rows with timestamps, in memory and on disk. No torch here."""
