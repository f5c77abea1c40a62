"""The engine in a user's own training loop: `marius_oac.torch` is its door."""
