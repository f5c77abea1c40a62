"""How much memory and disk a run needs, said before it starts."""
