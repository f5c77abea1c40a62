"""From files of edges to a prepared graph folder."""
