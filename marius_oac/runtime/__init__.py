"""What everything runs on: channels and workers, signals, files, the machine, what is said to the user."""
