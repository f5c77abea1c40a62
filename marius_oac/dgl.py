"""dgl's graphs, samplers and layers with this package (`pip install 'marius-oac[dgl]'`): what users import.

`load` imports dgl as this package needs it; `to_dgl` and `from_dgl` convert a block; `DglLayer` makes a `dgl.nn` module
a layer of an encoder.
"""

from marius_oac.data.dgl.library import DglLayer, first_thread, from_dgl, load, to_dgl

__all__ = ["DglLayer", "first_thread", "from_dgl", "load", "to_dgl"]
