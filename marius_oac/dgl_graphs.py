"""Graphs from dgl and for dgl: `DGLGraph` objects, dgl's binary files, and folders of dgl's CSV format.

The CSV format (dgl.data.CSVDataset, version 1.0.0: `meta.yaml` and the files that it names) is read and written without
dgl; the others need it (see `marius_oac.dgl`).

What becomes of a graph: with one type of nodes, names are dgl's ids, else TYPE/ID. The relation of an edge is its type,
or where there is but one type of edges the number that it has as `_TYPE` (dgl.ETYPE) or `relation`; without these edges
have no relations. Boolean `train_mask`, `val_mask` and `test_mask` of edges are the splits; edges with none of them are
left out. Nodes without edges are no part of a prepared graph, so dgl's ids are names and not its ids.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pv
import pyarrow.parquet as pq
import yaml

from marius_oac.data.graph import Graph
from marius_oac.data.prepare import PreparedGraph, PrepareRequest, new_folder, prepare
from marius_oac.data.splits import SPLITS
from marius_oac.dgl import load
from marius_oac.errors import InputError

_MASKS = dict(zip(SPLITS, ("train_mask", "val_mask", "test_mask"), strict=True))
_RELATION = "relation"
_PLAIN = ("_V", "_E", "_V")  # what dgl calls the only types of nodes and edges
_WRITTEN_EDGES = 1 << 19  # at once


def prepare_dgl(graph: Any, out: Path, **options: Any) -> PreparedGraph:
    """Makes a graph folder of a `DGLGraph`, or of the first graph in a binary file of `dgl.save_graphs`.

    Args:
        options: of `PrepareRequest`; fractions where the edges have no masks.
    Raises:
        InputError: the file can't be read, dgl is missing, or as `prepare`.
    """
    if isinstance(graph, str | Path):
        graph = _load(Path(graph))
    several = len(graph.ntypes) > 1
    if len(graph.canonical_etypes) == 1 and not several:
        edges = [_Edges(*_ends(graph, graph.canonical_etypes[0]), _single_relation(graph), _masks(graph.edata))]
        return _prepare(edges, out, options)
    names = _relation_names(graph.canonical_etypes)

    def edges_of(etype: tuple[str, str, str]) -> _Edges:
        ends = _ends(graph, etype)
        if several:
            ends = tuple(_named(kind, ids) for kind, ids in zip(etype[::2], ends, strict=True))
        return _Edges(*ends, pa.array([names[etype]] * len(ends[0])), _masks(graph.edges[etype].data))

    return _prepare(map(edges_of, graph.canonical_etypes), out, options)


def prepare_dgl_csv(folder: Path, out: Path, **options: Any) -> PreparedGraph:
    """Makes a graph folder of a folder in dgl's CSV format that holds one graph. Each file is read into memory.

    Args:
        options: of `PrepareRequest`; fractions where the edges have no masks.
    Raises:
        InputError: a file is missing, broken, of another version, or holds several graphs; or as `prepare`.
    """
    return _prepare(_csv_edges(Path(folder)), out, options)


def to_dgl_graph(graph: Graph) -> Any:
    """A homogeneous `DGLGraph` of all edges, with masks, and relations as `_TYPE` where there are any; int64 ids."""
    import torch

    dgl = load()
    edges = torch.from_numpy(np.concatenate([graph.edges(split) for split in SPLITS]).astype(np.int64))
    made = dgl.graph((edges[:, 0], edges[:, -1]), num_nodes=graph.num_nodes)
    if graph.num_relations:
        made.edata[dgl.ETYPE] = edges[:, 1].contiguous()
    for split, mask in _split_masks(graph).items():
        made.edata[split] = torch.from_numpy(mask)
    return made


def write_dgl_csv(graph: Graph, out: Path) -> None:
    """Writes a prepared graph as a folder in dgl's CSV format; its names stand in `names.csv`, which dgl doesn't read.

    Raises:
        InputError: `out` exists, or can't be written.
    """
    if Path(out).exists():
        raise InputError("exists already; choose another folder or remove it", out)
    meta = {
        "version": "1.0.0",
        "dataset_name": Path(out).name,
        "edge_data": [{"file_name": "edges.csv"}],
        "node_data": [{"file_name": "nodes.csv"}],
    }
    with new_folder(Path(out)) as folder:
        (folder / "meta.yaml").write_text(yaml.safe_dump(meta, sort_keys=False), "utf-8")
        nodes = pa.array(np.arange(graph.num_nodes))
        pv.write_csv(pa.table({"node_id": nodes}), folder / "nodes.csv")
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
        columns[_RELATION] = edges[:, 1]
    for each, mask in _MASKS.items():
        columns[mask] = np.full(len(edges), each == split, np.int8)  # dgl reads numbers, no words
    return pa.table({name: np.ascontiguousarray(column) for name, column in columns.items()})


class _Edges:
    """Some edges: `head` and `tail`, `relation` or None, and the splits' masks, if there are any."""

    def __init__(self, head: Any, tail: Any, relation: Any, masks: Mapping[str, np.ndarray]) -> None:
        columns = {"head": head} | ({} if relation is None else {"relation": relation}) | {"tail": tail}
        self._table = pa.table(columns)
        self._masks = masks

    def by_split(self) -> Iterator[tuple[str, pa.Table]]:
        if not self._masks:
            yield "all", self._table
        for split, mask in self._masks.items():
            yield split, self._table.filter(pa.array(mask))


def _prepare(edges: Iterable[_Edges], out: Path, options: Mapping[str, Any]) -> PreparedGraph:
    """By way of Parquet files, which are streamed."""
    with tempfile.TemporaryDirectory(prefix="marius-oac-dgl-") as name, ExitStack() as stack:
        folder, writers = Path(name), {}
        for part in edges:
            for split, table in part.by_split():
                if split not in writers:
                    path = folder / f"{split}.parquet"
                    writers[split] = stack.enter_context(pq.ParquetWriter(path, table.schema))
                if table.schema != writers[split].schema:
                    raise InputError("some edges have relations, masks or names of another kind than the others", out)
                writers[split].write_table(table)
        if len({"all", "train"} & set(writers)) != 1:
            raise InputError("some edges have masks and others none, or there are no edges", out)
        stack.close()
        files = {split: folder / f"{split}.parquet" for split in writers}
        given = {"source": files["all"]} if "all" in files else files
        return prepare(PrepareRequest(**{key: path for key, path in given.items()}, out=Path(out), **options))


def _load(path: Path) -> Any:
    dgl = load()
    try:
        graphs, _ = dgl.load_graphs(str(path), [0])
    except (dgl.DGLError, OSError) as error:
        raise InputError(f"can't be read by dgl: {str(error).splitlines()[0]}", path) from None
    return graphs[0]


def _ends(graph: Any, etype: tuple[str, str, str]) -> tuple[np.ndarray, np.ndarray]:
    heads, tails = graph.edges(etype=etype, order="eid")
    return heads.long().numpy(), tails.long().numpy()


def _single_relation(graph: Any) -> np.ndarray | None:
    for name in ("_TYPE", _RELATION):
        if name in graph.edata:
            return graph.edata[name].long().numpy()
    return None


def _masks(data: Mapping[str, Any]) -> dict[str, np.ndarray]:
    return {split: data[mask].numpy().astype(bool) for split, mask in _MASKS.items() if mask in data}


def _split_masks(graph: Graph) -> dict[str, np.ndarray]:
    counts = [graph.num_edges[split] for split in SPLITS]
    return {mask: np.repeat([each == split for each in SPLITS], counts) for split, mask in _MASKS.items()}


def _named(kind: str, ids: Iterable[Any]) -> pa.Array:
    return pa.array([f"{kind}/{number}" for number in ids])


def _relation_names(etypes: Iterable[tuple[str, str, str]]) -> dict[tuple[str, str, str], str]:
    """The edges' type, or where several pairs of node types share it all three."""
    etypes = list(etypes)
    short = [etype[1] for etype in etypes]
    return {etype: etype[1] if short.count(etype[1]) == 1 else "/".join(etype) for etype in etypes}


def _csv_edges(folder: Path) -> Iterator[_Edges]:
    meta = _read_meta(folder / "meta.yaml")
    found = [(entry["file_name"], tuple(entry.get("etype", _PLAIN)), entry) for entry in meta["edge_data"]]
    several = len({kind for _, etype, _ in found for kind in etype[::2]}) > 1
    names = _relation_names(etype for _, etype, _ in found)
    for name, etype, entry in found:
        table = _read_csv(folder / name, str(meta.get("separator", ",")))
        wanted = [str(entry.get(key, key.removesuffix("_field"))) for key in ("src_id_field", "dst_id_field")]
        missing = [column for column in wanted if column not in table.column_names]
        if missing:
            raise InputError(f"has no column {missing[0]!r}: {', '.join(table.column_names)}", folder / name)
        graphs = str(entry.get("graph_id_field", "graph_id"))
        if graphs in table.column_names and len(table.column(graphs).unique()) > 1:
            raise InputError("holds several graphs", folder / name)
        ends = [table.column(column) for column in wanted]
        relation = table.column(_RELATION) if _RELATION in table.column_names and len(found) == 1 else None
        if several:
            ends = [_named(kind, column.to_pylist()) for kind, column in zip(etype[::2], ends, strict=True)]
        if len(found) > 1:
            relation = pa.array([names[etype]] * len(table))
        masks = {
            split: table.column(mask).to_numpy().astype(bool)
            for split, mask in _MASKS.items()
            if mask in table.column_names
        }
        yield _Edges(*ends, relation, masks)


def _read_meta(path: Path) -> dict[str, Any]:
    try:
        meta = yaml.safe_load(path.read_text("utf-8"))
        if str(meta.get("version", "1.0.0")) != "1.0.0":
            raise InputError(f"version {meta['version']} of dgl's CSV format; 1.0.0 is known", path)
        if not all("file_name" in entry for entry in meta["edge_data"]):
            raise KeyError("edge_data: file_name")
    except OSError as error:
        raise InputError(f"can't be read: {error.strerror}", path) from None
    except (yaml.YAMLError, UnicodeDecodeError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"is not a description of dgl's CSV format ({type(error).__name__}: {error})", path) from None
    return meta


def _read_csv(path: Path, separator: str) -> pa.Table:
    try:
        # With threads an error has no row number.
        options = pv.ReadOptions(use_threads=False)
        return pv.read_csv(path, options, pv.ParseOptions(delimiter=separator))
    except OSError as error:
        raise InputError(f"can't be read: {error.strerror or error}", path) from None
    except (pa.ArrowException, ValueError) as error:
        raise InputError(f"can't be read: {error}", path) from None
