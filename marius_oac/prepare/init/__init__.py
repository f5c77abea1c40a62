"""`marius-oac init`: writes a first configuration for a graph or a click log."""
