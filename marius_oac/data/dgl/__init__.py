"""Graphs, samplers and layers of dgl. Only this package imports dgl; users import `marius_oac.dgl`."""
