"""Click-through-rate models: networks, and the step that trains them over rows."""
