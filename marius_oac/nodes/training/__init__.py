"""Training on several nodes: `train`, `resume`, elastic workers, and the process of a trainer."""
