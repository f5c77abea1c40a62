"""A search over settings: trials, each a run of its own, chosen by Optuna (docs/tune.md)."""
