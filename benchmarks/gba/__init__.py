"""Global batch gradient aggregation (Su et al.) on a virtual clock."""
