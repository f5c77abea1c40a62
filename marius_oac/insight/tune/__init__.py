"""A search over settings: trials, each a run, chosen by Optuna (docs/tune.md)."""
