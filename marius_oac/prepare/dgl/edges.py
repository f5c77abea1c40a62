"""Converts edges from dgl to a graph folder.

With one type of nodes, names are dgl's ids, else TYPE/ID. The relation of an edge is its type. With one type of edges
it is the number that the edge has as `_TYPE` (dgl.ETYPE) or `relation`; without these, edges have no relations. Boolean
`train_mask`, `val_mask` and `test_mask` of edges are the splits; edges with none of them are left out. A prepared graph
has no nodes without edges, so dgl's ids become names, not ids. Labels, masks and features of nodes become files in the
graph's folder (see `dgl.nodes`). If nodes have labels, all edges are for training, unless edges have masks or fractions
are given.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from marius_oac.data.folders import new_folder
from marius_oac.data.graphs.graph import Graph
from marius_oac.errors import InputError
from marius_oac.prepare.dgl.nodes import NodeData, write_node_files
from marius_oac.prepare.prepare import PreparedGraph, PrepareRequest, prepare
from marius_oac.runtime.files.scratch import scratch_folder

RELATION = "relation"


class Edges:
    """Some edges: columns [n] `head` and `tail`, `relation` or None, and the splits' masks, bool [n], if any."""

    def __init__(self, head: Any, tail: Any, relation: Any, masks: Mapping[str, np.ndarray]) -> None:
        columns = {"head": head} | ({} if relation is None else {"relation": relation}) | {"tail": tail}
        self._table = pa.table(columns)
        self._masks = masks

    def __len__(self) -> int:
        return len(self._table)

    def by_split(self) -> Iterator[tuple[str, pa.Table]]:
        """Yields (split, its edges), or ("all", all edges) without masks."""
        if not self._masks:
            yield "all", self._table
        for split, mask in self._masks.items():
            yield split, self._table.filter(pa.array(mask))


def prepare_edges(
    edges: Iterable[Edges], nodes: Sequence[NodeData], where: object, out: Path, options: Mapping[str, Any]
) -> PreparedGraph:
    """Makes a graph folder `out` of edges and nodes, by way of temporary Parquet files, which are streamed.

    Args:
        where: file or folder of the graph, for messages.
        options: of `PrepareRequest`.

    Raises:
        InputError: there are no edges, or some are of another kind than the others; as `prepare`.
    """
    out = Path(out)
    if os.path.lexists(out):
        raise InputError("exists already; choose another folder or remove it", out)
    with scratch_folder() as work, new_folder(out) as folder:
        given, options = _write_edges(edges, work, where), dict(options)
        if list(given) == ["train"] or ("source" in given and any(each.labelled for each in nodes)):
            for fraction in ("valid_fraction", "test_fraction"):
                options[fraction] = options.get(fraction) or 0.0
        made = folder / "graph"
        options |= given
        prepared = prepare(PrepareRequest(out=made, **options))
        write_node_files(Graph.open(made, verify=False), nodes, made)
        for path in made.iterdir():
            path.rename(folder / path.name)
        made.rmdir()
    return replace(prepared, path=out)


def _write_edges(edges: Iterable[Edges], folder: Path, where: object) -> dict[str, Path]:
    """Writes the edges of each split to a file. Returns the files by the names of `PrepareRequest`."""
    count = 0
    with ExitStack() as stack:
        writers: dict[str, pq.ParquetWriter] = {}
        for part in edges:
            count += len(part)
            for split, table in part.by_split():
                if not len(table):
                    continue
                if split not in writers:
                    path = folder / f"{split}.parquet"
                    writers[split] = stack.enter_context(pq.ParquetWriter(path, table.schema))
                if table.schema != writers[split].schema:
                    raise InputError("some edges have relations, masks or names of another kind than the others", where)
                writers[split].write_table(table)
    if not count:
        raise InputError("the graph has no edges", where)
    if "all" in writers and len(writers) > 1:
        raise InputError("some edges have masks and others none", where)
    if not {"all", "train"} & set(writers):
        raise InputError("the edges have masks, and train_mask is true for none", where)
    return {"source" if split == "all" else split: folder / f"{split}.parquet" for split in writers}


def named(kind: str, ids: Iterable[Any]) -> pa.Array:
    """The names KIND/ID of the nodes of one type, strings [n]."""
    return pa.array([f"{kind}/{number}" for number in ids])


def relation_names(etypes: Iterable[tuple[str, str, str]]) -> dict[tuple[str, str, str], str]:
    """The name of each relation: the edges' type, or all three types if several pairs of node types share it."""
    etypes = list(etypes)
    short = [etype[1] for etype in etypes]
    return {etype: etype[1] if short.count(etype[1]) == 1 else "/".join(etype) for etype in etypes}
