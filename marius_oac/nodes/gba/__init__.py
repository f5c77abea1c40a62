"""Global batch aggregation: dispatches batches and tokens, and aggregates gradients."""
