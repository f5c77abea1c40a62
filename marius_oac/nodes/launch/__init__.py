"""From the command line to a trainer on every node."""
