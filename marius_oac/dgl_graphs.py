"""Graphs from dgl and for dgl: `DGLGraph` objects, dgl's binary files, and folders of dgl's CSV format.

The CSV format (dgl.data.CSVDataset, version 1.0.0: `meta.yaml` and the files that it names) is read and written without
dgl; the others need it (see `marius_oac.dgl`).

What becomes of a graph: with one type of nodes, names are dgl's ids, else TYPE/ID. The relation of an edge is its type,
or where there is but one type of edges the number that it has as `_TYPE` (dgl.ETYPE) or `relation`; without these edges
have no relations. Boolean `train_mask`, `val_mask` and `test_mask` of edges are the splits; edges with none of them are
left out. Nodes without edges are no part of a prepared graph, so dgl's ids are names and not its ids. Labels, masks and
features of nodes become files in the graph's folder (see `dgl_nodes`). The edges of a graph with labels all train,
unless they have masks or fractions are asked for.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pv
import pyarrow.parquet as pq
import yaml

from marius_oac.data.graph import Graph
from marius_oac.data.prepare import PreparedGraph, PrepareRequest, new_folder, prepare
from marius_oac.data.readers import ReadOptions
from marius_oac.data.splits import SPLITS
from marius_oac.dgl import load
from marius_oac.dgl_nodes import MASKS, NodeData, csv_columns, node_arrays, of_dgl, of_table, write_node_files
from marius_oac.errors import InputError
from marius_oac.files import sync, unfinished

_RELATION = "relation"
_PLAIN = ("_V", "_E", "_V")  # what dgl calls the only types of nodes and edges
_WRITTEN_EDGES = 1 << 19  # at once


def prepare_dgl_source(request: PrepareRequest) -> PreparedGraph:
    """Makes a graph folder of the request's `source`: a file of `dgl.save_graphs`, or a folder in dgl's CSV format.

    Raises:
        InputError: the request says how to read other files; or as `prepare_dgl` and `prepare_dgl_csv`.
    """
    source = Path(str(request.source))
    if request.from_dir is not None or request.read != ReadOptions(relations=request.read.relations):
        raise InputError("dgl says itself what its columns are: --from, and how to read text, are for others", source)
    names = ("read", "valid_fraction", "test_fraction", "seed", "unseen", "duplicates")
    options = {name: getattr(request, name) for name in names}
    return (prepare_dgl_csv if source.is_dir() else prepare_dgl)(source, request.out, **options)


def prepare_dgl(graph: Any, out: Path, **options: Any) -> PreparedGraph:
    """Makes a graph folder of a `DGLGraph`, or of the first graph in a binary file of `dgl.save_graphs`.

    Args:
        options: of `PrepareRequest`; fractions where the edges have no masks.
    Raises:
        InputError: the file can't be read, dgl is missing, or as `prepare`.
    """
    where = "dgl"
    if isinstance(graph, str | Path):
        where, graph = str(graph), _load(Path(graph))
    several = len(graph.ntypes) > 1
    names = _relation_names(graph.canonical_etypes)

    def edges_of(etype: tuple[str, str, str]) -> _Edges:
        ends = _ends(graph, etype)
        if several:
            ends = tuple(_named(kind, ids) for kind, ids in zip(etype[::2], ends, strict=True))
        single = len(names) == 1 and not several
        relation = _single_relation(graph) if single else pa.array([names[etype]] * len(ends[0]))
        return _Edges(*ends, relation, _masks(graph.edges[etype].data))

    nodes = []
    for kind in graph.ntypes:
        ids = range(graph.num_nodes(kind))
        strings = _named(kind, ids) if several else pa.array(ids, pa.int64()).cast(pa.string())
        nodes.append(of_dgl(strings, graph.nodes[kind].data, f"{where}: {kind}" if several else where))
    return _prepare(map(edges_of, graph.canonical_etypes), nodes, out, options)


def prepare_dgl_csv(folder: Path, out: Path, **options: Any) -> PreparedGraph:
    """Makes a graph folder of a folder in dgl's CSV format that holds one graph. Each file is read into memory.

    Args:
        options: of `PrepareRequest`; fractions where the edges have no masks.
    Raises:
        InputError: a file is missing, broken, of another version, or holds several graphs; or as `prepare`.
    """
    meta = _read_meta(Path(folder) / "meta.yaml")
    return _prepare(_csv_edges(Path(folder), meta), _csv_nodes(Path(folder), meta), out, options)


def to_dgl_graph(graph: Graph, labels: Path | None = None, features: Path | None = None) -> Any:
    """A homogeneous `DGLGraph` of all edges, with masks, and relations as `_TYPE` where there are any; int64 ids.

    Args:
        labels, features: files of the graph's nodes, which become `label` (see `dgl_nodes.node_arrays`), masks, `feat`.
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
    """Writes `to_dgl_graph` as dgl's binary file.

    Raises:
        InputError: `path` exists, or can't be written; dgl is missing.
    """
    path = Path(path)
    if os.path.lexists(path):
        raise InputError("exists already; choose another file or remove it", path)
    made, dgl = to_dgl_graph(graph, labels, features), load()
    temporary = unfinished(path)
    try:
        dgl.save_graphs(str(temporary), [made])
        sync(temporary)
        os.rename(temporary, path)
    except (dgl.DGLError, OSError) as error:
        with suppress(OSError):
            temporary.unlink()
        raise InputError(f"can't be written: {str(error).splitlines()[0]}", path) from None


def write_dgl_csv(graph: Graph, out: Path, labels: Path | None = None, features: Path | None = None) -> None:
    """Writes a prepared graph as a folder in dgl's CSV format; its names stand in `names.csv`, which dgl doesn't read.

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
        (folder / "meta.yaml").write_text(yaml.safe_dump(meta, sort_keys=False), "utf-8")
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
        columns[_RELATION] = edges[:, 1]
    for each, mask in MASKS.items():
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


def _prepare(
    edges: Iterable[_Edges], nodes: Sequence[NodeData], out: Path, options: Mapping[str, Any]
) -> PreparedGraph:
    """By way of Parquet files, which are streamed."""
    out = Path(out)
    if os.path.lexists(out):
        raise InputError("exists already; choose another folder or remove it", out)
    with tempfile.TemporaryDirectory(prefix="marius-oac-dgl-") as name, new_folder(out) as folder:
        given, options = _write_edges(edges, Path(name), out), dict(options)
        if list(given) == ["train"] or ("source" in given and any(each.labelled for each in nodes)):
            for fraction in ("valid_fraction", "test_fraction"):
                options[fraction] = options.get(fraction) or 0.0
        made = folder / "graph"
        prepared = prepare(PrepareRequest(**given, out=made, **options))
        write_node_files(Graph.open(made, verify=False), nodes, made)
        for path in made.iterdir():
            path.rename(folder / path.name)
        made.rmdir()
    return replace(prepared, path=out)


def _write_edges(edges: Iterable[_Edges], folder: Path, out: Path) -> dict[str, Path]:
    """Files of edges, as a `PrepareRequest` names them."""
    with ExitStack() as stack:
        writers: dict[str, pq.ParquetWriter] = {}
        for part in edges:
            for split, table in part.by_split():
                if not len(table):
                    continue
                if split not in writers:
                    path = folder / f"{split}.parquet"
                    writers[split] = stack.enter_context(pq.ParquetWriter(path, table.schema))
                if table.schema != writers[split].schema:
                    raise InputError("some edges have relations, masks or names of another kind than the others", out)
                writers[split].write_table(table)
    if len({"all", "train"} & set(writers)) != 1:
        raise InputError("some edges have masks and others none, or there are no edges", out)
    return {"source" if split == "all" else split: folder / f"{split}.parquet" for split in writers}


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
    return {split: data[mask].numpy().astype(bool) for split, mask in MASKS.items() if mask in data}


def _split_masks(graph: Graph) -> dict[str, np.ndarray]:
    counts = [graph.num_edges[split] for split in SPLITS]
    return {mask: np.repeat([each == split for each in SPLITS], counts) for split, mask in MASKS.items()}


def _named(kind: str, ids: Iterable[Any]) -> pa.Array:
    return pa.array([f"{kind}/{number}" for number in ids])


def _relation_names(etypes: Iterable[tuple[str, str, str]]) -> dict[tuple[str, str, str], str]:
    """The edges' type, or where several pairs of node types share it all three."""
    etypes = list(etypes)
    short = [etype[1] for etype in etypes]
    return {etype: etype[1] if short.count(etype[1]) == 1 else "/".join(etype) for etype in etypes}


def _csv_nodes(folder: Path, meta: Mapping[str, Any]) -> list[NodeData]:
    found = []
    for entry in meta["node_data"]:
        path = folder / entry["file_name"]
        table = _read_csv(path, str(meta.get("separator", ",")))
        column = str(entry.get("node_id_field", "node_id"))
        if column not in table.column_names:
            raise InputError(f"has no column {column!r}: {', '.join(table.column_names)}", path)
        names = table.column(column).combine_chunks().cast(pa.string())
        if _several(meta):
            names = _named(str(entry.get("ntype", _PLAIN[0])), names.to_pylist())
        found.append(of_table(names, table, path))
    return found


def _several(meta: Mapping[str, Any]) -> bool:
    """Whether there are several types of nodes."""
    return len({kind for entry in meta["edge_data"] for kind in tuple(entry.get("etype", _PLAIN))[::2]}) > 1


def _csv_edges(folder: Path, meta: Mapping[str, Any]) -> Iterator[_Edges]:
    found = [(entry["file_name"], tuple(entry.get("etype", _PLAIN)), entry) for entry in meta["edge_data"]]
    several = _several(meta)
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
            for split, mask in MASKS.items()
            if mask in table.column_names
        }
        yield _Edges(*ends, relation, masks)


def _read_meta(path: Path) -> dict[str, Any]:
    try:
        meta = yaml.safe_load(path.read_text("utf-8"))
        if str(meta.get("version", "1.0.0")) != "1.0.0":
            raise InputError(f"version {meta['version']} of dgl's CSV format; 1.0.0 is known", path)
        meta["node_data"] = meta.get("node_data") or []
        for key in ("edge_data", "node_data"):
            if not all("file_name" in entry for entry in meta[key]):
                raise KeyError(f"{key}: file_name")
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
