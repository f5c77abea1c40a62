"""What looks at runs: their reports, a view while they train, searches over settings."""
