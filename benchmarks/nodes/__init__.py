"""Training over nodes: transport, dense parameters, placement, modes, and the emulated cluster."""
