"""What comes before a run: graphs are prepared, first configurations are written, graphs of dgl are converted."""
