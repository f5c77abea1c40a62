"""dgl's CSV format: folders with `meta.yaml` and the files that it names (dgl.data.CSVDataset, version 1.0.0). They are
read and written without dgl. See `dgl.edges` for how a graph is converted.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pv
import pyarrow.parquet as pq
import yaml
from pydantic import AfterValidator, Field

from marius_oac.config.errors import read_mapping
from marius_oac.data.dgl.columns import MASKS, refuse_row, table_ids, table_masks
from marius_oac.data.dgl.edges import RELATION, Edges, named, prepare_edges, relation_names
from marius_oac.data.dgl.nodes import NodeData, csv_columns, node_arrays, of_table
from marius_oac.data.graphs.graph import Graph
from marius_oac.data.prepare.prepare import PreparedGraph, new_folder
from marius_oac.data.prepare.readers import check_readable
from marius_oac.data.prepare.splits import SPLITS
from marius_oac.data.prepare.text import line_of_row
from marius_oac.errors import InputError, shown
from marius_oac.runtime.files.untrusted import Described, typed

META = "meta.yaml"
_PLAIN = ("_V", "_E", "_V")  # what dgl calls the only types of nodes and edges
_WRITTEN_EDGES = 1 << 19  # at once


def prepare_dgl_csv(folder: Path, out: Path, **options: Any) -> PreparedGraph:
    """Makes a graph folder of a folder in dgl's CSV format that holds one graph. Each file is read into memory.

    Args:
        options: of `PrepareRequest`; fractions only if the edges have no masks.

    Raises:
        InputError: a file is missing, broken, of another version, or holds several graphs; as `prepare`.
    """
    meta = _read_meta(Path(folder) / META)
    return prepare_edges(_csv_edges(Path(folder), meta), _csv_nodes(Path(folder), meta), folder, out, options)


def write_dgl_csv(graph: Graph, out: Path, labels: Path | None = None, features: Path | None = None) -> None:
    """Writes a prepared graph as a folder in dgl's CSV format. Names go to `names.csv`, which dgl doesn't read.

    Args:
        labels, features: as `to_dgl_graph`.

    Raises:
        InputError: `out` exists, or can't be written.
    """
    if os.path.lexists(out):
        raise InputError("exists already; choose another folder or remove it", out)
    meta = {
        "version": "1.0.0",
        "dataset_name": Path(out).name,
        "edge_data": [{"file_name": "edges.csv"}],
        "node_data": [{"file_name": "nodes.csv"}],
    }
    with new_folder(Path(out)) as folder:
        (folder / META).write_text(yaml.safe_dump(meta, sort_keys=False), "utf-8")
        nodes = pa.array(np.arange(graph.num_nodes))
        columns = csv_columns(node_arrays(graph, labels, features))
        pv.write_csv(pa.table({"node_id": nodes} | columns), folder / "nodes.csv")
        names = pq.read_table(graph.path / "nodes.parquet").column("name")
        pv.write_csv(pa.table({"node_id": nodes, "name": names}), folder / "names.csv")
        writer = None
        with ExitStack() as stack:
            for split in SPLITS:
                edges = graph.edges(split)
                for begin in range(0, len(edges), _WRITTEN_EDGES):
                    table = _csv_table(np.asarray(edges[begin : begin + _WRITTEN_EDGES]), split)
                    writer = writer or stack.enter_context(pv.CSVWriter(folder / "edges.csv", table.schema))
                    writer.write_table(table)


def _csv_table(edges: np.ndarray, split: str) -> pa.Table:
    columns = {"src_id": edges[:, 0], "dst_id": edges[:, -1]}
    if edges.shape[1] == 3:
        columns[RELATION] = edges[:, 1]
    for each, mask in MASKS.items():
        columns[mask] = np.full(len(edges), each == split, np.int8)  # dgl reads numbers, not true and false
    return pa.table({name: np.ascontiguousarray(column) for name, column in columns.items()})


def _csv_nodes(folder: Path, meta: _Meta) -> list[NodeData]:
    found = []
    for entry in meta.node_data or ():
        path = folder / entry.file_name
        table = _read_csv(path, meta.separator)
        names = table_ids(table, entry.node_id_field, path).combine_chunks().cast(pa.string())
        _check_once(names, path)
        if _several(meta):
            names = named(entry.ntype, names.to_pylist())
        found.append(of_table(names, table, path))
    return found


def _check_once(names: pa.Array, path: Path) -> None:
    """Refuses a node with two rows."""
    numbers = names.dictionary_encode().indices.to_numpy()  # a new name has the next number
    again = np.flatnonzero(np.diff(np.maximum.accumulate(numbers)) == 0)
    if len(again):
        row = int(again[0]) + 1
        first = line_of_row(path, int(np.argmax(numbers == numbers[row])))
        refuse_row(path, row, f"node {names[row].as_py()!r} stands in line {first} already")


def _several(meta: _Meta) -> bool:
    """Whether there are several types of nodes."""
    return len({kind for entry in meta.edge_data for kind in entry.etype[::2]}) > 1


def _csv_edges(folder: Path, meta: _Meta) -> Iterator[Edges]:
    found, several = meta.edge_data, _several(meta)
    names = relation_names(entry.etype for entry in found)
    for entry in found:
        name, etype = entry.file_name, entry.etype
        table = _read_csv(folder / name, meta.separator)
        head, tail = (table_ids(table, column, folder / name) for column in (entry.src_id_field, entry.dst_id_field))
        graphs = entry.graph_id_field
        if graphs in table.column_names and len(table.column(graphs).unique()) > 1:
            raise InputError("holds several graphs", folder / name)
        relation = None
        if RELATION in table.column_names and len(found) == 1:
            relation = table_ids(table, RELATION, folder / name)
        if several:
            head, tail = named(etype[0], head.to_pylist()), named(etype[2], tail.to_pylist())
        if len(found) > 1:
            relation = pa.array([names[etype]] * len(table))
        yield Edges(head, tail, relation, table_masks(table, folder / name))


class _File(Described):
    """The description of a file of nodes or edges in `meta.yaml`."""

    file_name: Annotated[str, AfterValidator(lambda name: _inside(name))]
    ntype: str = _PLAIN[0]
    etype: tuple[str, str, str] = _PLAIN
    node_id_field: str = "node_id"
    src_id_field: str = "src_id"
    dst_id_field: str = "dst_id"
    graph_id_field: str = "graph_id"


class _Meta(Described):
    edge_data: list[_File]
    node_data: list[_File] | None = None
    separator: Annotated[str, Field(pattern=r"^[\x01-\x7f]$")] = ","


def _inside(name: str) -> str:
    if Path(name).is_absolute() or ".." in Path(name).parts or "\0" in name:
        raise ValueError(f"{shown(name)} must be a file of the folder")
    return name


def _read_meta(path: Path) -> _Meta:
    tree, _ = read_mapping(path, "edge_data: [{file_name: ...}]")
    if str(tree.get("version", "1.0.0")) != "1.0.0":
        raise InputError(f"version {str(tree['version'])[:20]} of dgl's CSV format; 1.0.0 is known", path)
    return typed(tree, path, _Meta)


def _read_csv(path: Path, separator: str) -> pa.Table:
    check_readable(path)
    try:
        # With threads, errors have no row numbers.
        options = pv.ReadOptions(use_threads=False)
        return pv.read_csv(path, options, pv.ParseOptions(delimiter=separator))
    except OSError as error:
        raise InputError(f"can't be read: {error.strerror or error}", path) from None
    except (pa.ArrowException, ValueError) as error:
        raise InputError(f"can't be read: {error}", path) from None
