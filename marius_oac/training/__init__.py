"""The public functions: train and resume, on one machine and over nodes; use of trained models."""
