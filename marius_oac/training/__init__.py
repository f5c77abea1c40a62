"""What the public functions do: train and resume, on one machine and over nodes; trained models opened again."""
