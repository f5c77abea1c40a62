"""Conversion from and to `DGLGraph` objects and dgl's binary files, which need dgl (see `marius_oac.dgl`). See
`dgl.edges` for how a graph is converted, and `dgl.csv_folders` for dgl's other format.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from marius_oac.data.dgl.library import load
from marius_oac.data.graphs.graph import Graph
from marius_oac.data.splits import SPLITS
from marius_oac.errors import InputError
from marius_oac.prepare.dgl.edges import RELATION, Edges, named, prepare_edges, relation_names
from marius_oac.prepare.dgl.nodes import MASKS, data_masks, node_arrays, of_dgl
from marius_oac.prepare.prepare import PreparedGraph
from marius_oac.runtime.files.atomic import sync, unfinished_here


def prepare_dgl(graph: Any, out: Path, **options: Any) -> PreparedGraph:
    """Makes a graph folder of a `DGLGraph`, or of a binary file of `dgl.save_graphs` that holds one.

    Args:
        options: of `PrepareRequest`; fractions only if the edges have no masks.

    Raises:
        InputError: the file can't be read or holds several graphs; a mask or relation has other values; dgl is missing;
            as `prepare`.
    """
    where = "dgl"
    if isinstance(graph, str | Path):
        where, graph = str(graph), _load(Path(graph))
    several = len(graph.ntypes) > 1
    names = relation_names(graph.canonical_etypes)

    def edges_of(etype: tuple[str, str, str]) -> Edges:
        head, tail = (ids.long().numpy() for ids in graph.edges(etype=etype, order="eid"))
        if several:
            head, tail = named(etype[0], head), named(etype[2], tail)
        single = len(names) == 1 and not several
        relation = _single_relation(graph, where) if single else pa.array([names[etype]] * len(head))
        return Edges(head, tail, relation, data_masks(graph.edges[etype].data, f"{where}: edges {names[etype]}"))

    nodes = []
    for kind in graph.ntypes:
        ids = range(graph.num_nodes(kind))
        strings = named(kind, ids) if several else pa.array(ids, pa.int64()).cast(pa.string())
        nodes.append(of_dgl(strings, graph.nodes[kind].data, f"{where}: {kind}" if several else where))
    return prepare_edges(map(edges_of, graph.canonical_etypes), nodes, where, out, options)


def to_dgl_graph(graph: Graph, labels: Path | None = None, features: Path | None = None) -> Any:
    """A homogeneous `DGLGraph` of all edges, with int64 ids, masks, and relations, if any, as `_TYPE`.

    Args:
        labels, features: files of the graph's nodes, which become `label`, masks and `feat`, see `nodes.node_arrays`.
    """
    import torch

    dgl = load()
    edges = torch.from_numpy(np.concatenate([graph.edges(split) for split in SPLITS]).astype(np.int64))
    made = dgl.graph((edges[:, 0], edges[:, -1]), num_nodes=graph.num_nodes)
    if graph.num_relations:
        made.edata[dgl.ETYPE] = edges[:, 1].contiguous()
    for split, mask in _split_masks(graph).items():
        made.edata[split] = torch.from_numpy(mask)
    for name, array in node_arrays(graph, labels, features).items():
        made.ndata[name] = torch.from_numpy(array)
    return made


def write_dgl(graph: Graph, path: Path, labels: Path | None = None, features: Path | None = None) -> None:
    """Writes the graph of `to_dgl_graph` as a binary file of dgl.

    Raises:
        InputError: `path` exists, or can't be written; dgl is missing.
    """
    path = Path(path)
    if os.path.lexists(path):
        raise InputError("exists already; choose another file or remove it", path)
    made, dgl = to_dgl_graph(graph, labels, features), load()
    temporary = unfinished_here(path)
    try:
        dgl.save_graphs(str(temporary), [made])
        sync(temporary)
        os.rename(temporary, path)
    except (dgl.DGLError, OSError) as error:
        with suppress(OSError):
            temporary.unlink()
        raise InputError(f"can't be written: {str(error).splitlines()[0]}", path) from None


def _load(path: Path) -> Any:
    dgl = load()
    try:
        graphs, _ = dgl.load_graphs(str(path))
    except (dgl.DGLError, OSError) as error:
        raise InputError(f"can't be read by dgl: {str(error).splitlines()[0]}", path) from None
    if len(graphs) != 1:
        raise InputError(f"holds {len(graphs)} graphs; one is needed", path)
    return graphs[0]


def _single_relation(graph: Any, where: str) -> np.ndarray | None:
    for name in ("_TYPE", RELATION):
        if name in graph.edata:
            found = graph.edata[name]
            kind = f"{str(found.dtype).removeprefix('torch.')} {list(found.shape)}"
            if found.dim() == 1 and not (found.is_floating_point() or found.is_complex()):
                kind = str(int(found.min())) if len(found) and found.min() < 0 else ""
            if kind:
                raise InputError(f"{name!r} of the edges holds {kind}; whole numbers from 0 are needed", where)
            return found.long().numpy()
    return None


def _split_masks(graph: Graph) -> dict[str, np.ndarray]:
    counts = [graph.num_edges[split] for split in SPLITS]
    return {mask: np.repeat([each == split for each in SPLITS], counts) for split, mask in MASKS.items()}
