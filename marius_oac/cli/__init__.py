"""The command `marius-oac`: arguments to a configuration, a configuration to one call."""
