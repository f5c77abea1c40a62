"""Ray as a launcher of a run's processes."""
