"""Click-through rates."""
