"""Global batch aggregation: batches and tokens that are dispatched, and gradients that are aggregated."""
