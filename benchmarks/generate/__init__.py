"""Generated graphs and click logs of any size, seeded, with structure that a model can learn."""
