"""Trackers: programs of others that show what `metrics.jsonl` records, while a run trains."""
