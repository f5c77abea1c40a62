"""dgl, as far as training uses it: its samplers. Only `data.dgl` and `prepare.dgl` import dgl."""
