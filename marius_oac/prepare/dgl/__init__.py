"""Graphs of dgl become prepared graphs, with features and labels. Users import `marius_oac.dgl`."""
