"""`marius-oac init`: a first configuration for a graph or a click log that nobody has described yet."""
