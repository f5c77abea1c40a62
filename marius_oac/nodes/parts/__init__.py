"""Virtual parts of a global batch, which make a run's bits independent of the number of trainers."""
