"""Training on graphs: speed, rows, planning, sampling, orderings, memory, quality, evaluation."""
