"""From raw files: preparing, reading logs, the config that `init` writes."""
