"""dgl's graphs, samplers and layers with this package (`pip install '/path/to/marius_oac[dgl]'`): what users import.

`load` imports dgl as this package needs it; `to_dgl` and `from_dgl` convert a block, `prepare_dgl` and `to_dgl_graph` a
graph; `write_dgl` writes dgl's binary file; `DglLayer` makes a `dgl.nn` module a layer of an encoder.
"""

from marius_oac.data.dgl.library import DglLayer, first_thread, from_dgl, load, to_dgl
from marius_oac.prepare.dgl.graphs import prepare_dgl, to_dgl_graph, write_dgl

__all__ = [
    "DglLayer", "first_thread", "from_dgl", "load", "prepare_dgl", "to_dgl", "to_dgl_graph", "write_dgl",
]  # fmt: skip
