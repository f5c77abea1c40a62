"""Converts dgl's data of nodes to the files of node classification: `labels.tsv` (see `data.graphs.labels`) and
`features.parquet` (see `data.graphs.features`) in the graph's folder.

dgl keeps a node's class as `label`, its split as `train_mask`, `val_mask` or `test_mask`, and its features as `feat`.
Nodes without a mask get no label. What can't be converted (several labels per node, features of only some types of
nodes) is left out with a warning.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pv
import pyarrow.parquet as pq

from marius_oac.data.graphs.features import open_features
from marius_oac.data.graphs.graph import Graph
from marius_oac.data.graphs.labels import read_labels
from marius_oac.data.splits import SPLITS
from marius_oac.errors import InputError
from marius_oac.runtime.console import logger
from marius_oac.runtime.files.scratch import scratch_folder
from marius_oac.types import present

LABEL, FEATURES = "label", "feat"
LABELS_FILE, FEATURES_FILE = "labels.tsv", "features.parquet"
MASKS = dict(zip(SPLITS, ("train_mask", "val_mask", "test_mask"), strict=True))
_MARKS = "a mask is true or false, or 1 or 0"
_AT_ONCE = 16 << 20  # bytes of features


@dataclass(frozen=True)
class NodeData:
    """The data of the nodes of one type.

    Attributes:
        names: strings [n].
        labels: [n], integers or strings; None: there are none. Other shapes and floats are left out later.
        masks: bool [n] of each split that has one.
        features: float32 [n, F]; None: there are none.
        where: file or type of nodes, for messages.
    """

    names: pa.Array
    labels: np.ndarray | None
    masks: Mapping[str, np.ndarray]
    features: np.ndarray | None
    where: str

    @property
    def labelled(self) -> bool:
        """Whether there are labels, and masks that say what they are for."""
        return self.labels is not None and bool(self.masks)


def of_dgl(names: pa.Array, data: Mapping[str, Any], where: str) -> NodeData:
    """The data in dgl's `ndata` of a type of nodes with these names, strings [n].

    Raises:
        InputError: as `data_masks`.
    """
    masks = data_masks(data, where)
    arrays = {key: data[key].numpy() for key in (LABEL, FEATURES) if key in data}
    features = arrays.get(FEATURES)
    if features is not None:
        features = features.astype(np.float32, copy=False).reshape(len(names), -1)
    return NodeData(names, arrays.get(LABEL), masks, features, where)


def data_masks(data: Mapping[str, Any], where: str) -> dict[str, np.ndarray]:
    """The masks among dgl's tensors of one type of nodes or edges, by split, bool [n] each.

    Raises:
        InputError: a mask is no vector of booleans, or of integers 0 and 1.
    """
    return {split: _mask(data[mask], mask, where) for split, mask in MASKS.items() if mask in data}


def _mask(mask: Any, name: str, where: str) -> np.ndarray:
    if mask.dim() != 1 or mask.is_floating_point() or mask.is_complex():
        kind = str(mask.dtype).removeprefix("torch.")
        raise InputError(f"{name!r} holds {kind} {list(mask.shape)}; {_MARKS}", where)
    found = mask.numpy()
    wrong = (found != 0) & (found != 1)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise InputError(f"{name!r} holds {found[row]} (of number {row}); {_MARKS}", where)
    return found.astype(np.bool_)


def write_node_files(graph: Graph, nodes: Sequence[NodeData], folder: Path) -> None:
    """Writes the labels and features of the graph's nodes, if there are any, into the folder.

    Raises:
        InputError: a node is in two splits, or a name can't be written.
    """
    if any(each.labelled for each in nodes):
        _write_labels(graph, [each for each in nodes if each.labelled], folder / LABELS_FILE)
    elif any(each.labels is not None for each in nodes):
        _leave_out("labels", "no node has a mask that says what it is for", nodes)
    widths = {None if each.features is None else each.features.shape[1] for each in nodes}
    if len(widths) > 1:
        _leave_out("features", "not all types of nodes have as many", nodes)
    elif widths - {None, 0}:
        _write_features(graph, nodes, folder / FEATURES_FILE)


def _leave_out(what: str, why: str, nodes: Sequence[NodeData]) -> None:
    logger.warning(f"{', '.join(each.where for each in nodes)}: {what} are left out: {why}")


def _write_labels(graph: Graph, nodes: Sequence[NodeData], path: Path) -> None:
    parts = []
    for each in nodes:
        found = present(each.labels)
        if found.ndim > 1 or found.dtype.kind == "f":
            _leave_out("labels", "one whole number, or one name, is needed for each node", [each])
            continue
        masks = np.stack([each.masks.get(split, np.zeros(len(each.names), bool)) for split in SPLITS])
        twice = masks.sum(0) > 1
        if twice.any():
            raise InputError(f"node {each.names[int(np.argmax(twice))].as_py()!r} is in two splits", each.where)
        rows = np.flatnonzero(masks.any(0))
        splits = np.array(SPLITS)[masks[:, rows].argmax(0)]
        labels = pa.array(found[rows]).cast(pa.string())
        parts.append(pa.table({"name": each.names.take(pa.array(rows)), "label": labels, "split": splits}))
    if not parts:
        return
    table = pa.concat_tables(parts)
    known = np.zeros(len(table), bool)
    for names in _graph_names(graph):
        known[pc.index_in(names, value_set=table.column("name")).drop_null().to_numpy()] = True
    options = pv.WriteOptions(include_header=False, delimiter="\t", quoting_style="none")  # a .tsv has no quoting
    with path.open("wb") as out:
        out.write(b"name\tlabel\tsplit\n")
        try:
            pv.write_csv(table.filter(pa.array(known)), out, options)
        except pa.ArrowInvalid as error:
            raise InputError(f"a name or label can't stand in {path.name}: {error}", nodes[0].where) from None


def _write_features(graph: Graph, nodes: Sequence[NodeData], path: Path) -> None:
    names = pa.chunked_array([each.names for each in nodes])
    features = [present(each.features) for each in nodes]
    width = features[0].shape[1]
    starts = np.cumsum([0, *(len(each.names) for each in nodes)])
    schema = pa.schema([("name", pa.string()), ("features", pa.list_(pa.float32(), width))])
    with pq.ParquetWriter(path, schema) as writer:
        for part in _graph_names(graph, max(1, _AT_ONCE // (4 * width))):
            rows = pc.index_in(part, value_set=names)
            if rows.null_count:
                missing = part.filter(pc.is_null(rows))[0].as_py()
                raise InputError(f"edges have a node that is none: {missing!r}", nodes[0].where)
            rows = rows.to_numpy().astype(np.int64)
            values = np.empty((len(part), width), np.float32)
            for start, each in zip(starts, features, strict=False):
                own = (rows >= start) & (rows < start + len(each))
                values[own] = each[rows[own] - start]
            column = pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), width)
            writer.write_batch(pa.record_batch([part, column], schema=schema))


def _graph_names(graph: Graph, at_once: int = 1 << 19) -> Iterator[pa.Array]:
    with pq.ParquetFile(graph.path / "nodes.parquet") as file:
        for batch in file.iter_batches(at_once, columns=["name"]):
            yield batch.column("name").cast(pa.string())


def node_arrays(graph: Graph, labels: Path | None, features: Path | None) -> dict[str, np.ndarray]:
    """The arrays of the graph's nodes by dgl's names, read from files of labels and features; None: no such file.

    `label` is int64 [N]: the label itself if all are integers, else the number of its class; -1: none. Masks are
    bool [N], `feat` is float32 [N, F].

    Raises:
        InputError: as `read_labels` and `open_features`.
    """
    arrays: dict[str, np.ndarray] = {}
    if labels is not None:
        found = read_labels(labels, graph)
        whole = all(name.lstrip("+-").isdecimal() for name in found.names)
        values = np.array([int(name) if whole else number for number, name in enumerate(found.names)], np.int64)
        arrays[LABEL] = np.full(graph.num_nodes, -1, np.int64)
        for split, mask in MASKS.items():
            arrays[mask] = np.zeros(graph.num_nodes, bool)
            arrays[mask][found.nodes[split]] = True
            arrays[LABEL][found.nodes[split]] = values[found.classes[split]]
    if features is not None:
        with scratch_folder() as folder:
            arrays[FEATURES] = np.array(open_features(features, graph, folder / "features"))
    return arrays
