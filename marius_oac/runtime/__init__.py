"""What the other packages run on: channels, workers, signals, files, the machine, and messages to the user."""
