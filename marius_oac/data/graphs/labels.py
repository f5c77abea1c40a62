"""Labels of nodes: a file with the name, the class and the split of each labelled node.

The file is text (.tsv, .csv, .gz of these) with a header, or Parquet, with the columns `name`, `label` and `split`
(train, valid or test).
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from marius_oac.data.graphs.graph import Graph
from marius_oac.data.graphs.node_lookup import NodeLookup
from marius_oac.data.reading.edge_file import EdgeFile, ReadOptions
from marius_oac.data.reading.readers import read_edges
from marius_oac.data.reading.text import line_of_row
from marius_oac.data.splits import SPLITS, Split
from marius_oac.errors import InputError
from marius_oac.runtime.files.scratch import scratch_folder

COLUMNS = ("name", "label", "split")
SUFFIXES = (".tsv", ".csv", ".tsv.gz", ".csv.gz", ".parquet")
_INTEGER = re.compile(r"[+-]?[0-9]+")


@dataclass(frozen=True)
class Labels:
    """Labelled nodes; see `read_labels`.

    Attributes:
        nodes: ids of each split, int64 [n], ascending; no node is in two.
        classes: of each split, the class of each node, int64 [n], aligned with `nodes`.
        names: the name of each class.
        fingerprint: SHA-256 (hexadecimal) of all of it.
    """

    nodes: Mapping[Split, np.ndarray]
    classes: Mapping[Split, np.ndarray]
    names: tuple[str, ...]
    fingerprint: str


def read_labels(path: str | os.PathLike[str], graph: Graph) -> Labels:
    """Reads a file of labels (see above). Classes are numbered in the order of their names, or by value if all names
    are integers. Memory: about 50 bytes per labelled node.

    Raises:
        InputError: the file can't be read, is damaged or has other columns; a node or split is unknown; a label is
            empty; a node has two rows; no node of train has some class; there are fewer than two classes.
    """
    source = Path(path)
    if not source.name.lower().endswith(SUFFIXES):
        raise InputError(f"unknown kind of file; labels come as {', '.join(SUFFIXES)}", source)
    numbers: dict[str, int] = {}
    classes, splits = [], []
    with scratch_folder() as work, NodeLookup(graph, work) as lookup:
        for names, labels, parts in _rows(source):
            splits.append(_split_numbers(source, lookup.rows, parts))
            classes.append(_class_numbers(labels, numbers))
            lookup.add(names)
        ids = np.empty(lookup.rows, np.int64)
        lookup.find(ids)
    rows = _Rows(source, ids, np.concatenate(classes), np.concatenate(splits), list(numbers))
    rows.check_nodes(graph)
    rows.check_classes()
    return rows.by_node()


@dataclass(frozen=True)
class _Rows:
    """Rows of a file: the node, int64, the class, int64, by its place in `names`, and the split, int8; [n] each."""

    path: Path
    ids: np.ndarray
    classes: np.ndarray
    splits: np.ndarray
    names: list[str]

    def check_nodes(self, graph: Graph) -> None:
        """Refuses a node that is not in the graph, and a node with two rows."""
        if (self.ids < 0).any():
            row = int(np.argmax(self.ids < 0))
            try:
                graph.node_ids([_name(self.path, row)])  # its error lists similar names
            except InputError as error:
                _refuse(self.path, row, error.message)
        order = np.argsort(self.ids, kind="stable")
        again = order[1:][np.diff(self.ids[order]) == 0]
        if len(again):
            row = int(again.min())
            earlier = _place(self.path, int(np.argmax(self.ids == self.ids[row])))
            _refuse(self.path, row, f"node {graph.node_names([self.ids[row]])[0]!r} has a label already, in {earlier}")

    def check_classes(self) -> None:
        """Refuses labels that no classifier can be trained on, and classes that training would never see."""
        if not (self.splits == 0).any():
            raise InputError("no node is in train", self.path)
        if len(self.names) < 2:
            raise InputError(f"all labels are {self.names[0]!r}: two classes are needed at least", self.path)
        trained = np.zeros(len(self.names), np.bool_)
        trained[self.classes[self.splits == 0]] = True
        if not trained.all():
            row = int(np.argmin(trained[self.classes]))
            split, name = SPLITS[self.splits[row]], self.names[self.classes[row]]
            _refuse(self.path, row, f"no node of train has the label {name!r} of this one of {split}")

    def by_node(self) -> Labels:
        """The labels ordered by node, which does not depend on the order of the rows."""
        numbers = all(_INTEGER.fullmatch(name) for name in self.names)
        names = sorted(self.names, key=lambda name: (int(name), name) if numbers else name)
        place = {name: number for number, name in enumerate(names)}
        final = np.array([place[name] for name in self.names], np.int64)
        digest = hashlib.sha256(json.dumps(names).encode())
        nodes: dict[Split, np.ndarray] = {}
        classes: dict[Split, np.ndarray] = {}
        for number, split in enumerate(SPLITS):
            rows = np.flatnonzero(self.splits == number)
            rows = rows[np.argsort(self.ids[rows])]
            nodes[split], classes[split] = self.ids[rows], final[self.classes[rows]]
            digest.update(f"{split} {len(rows)}\n".encode())
            for array in (nodes[split], classes[split]):
                array.setflags(write=False)
                digest.update(array.astype("<i8", copy=False))
        return Labels(nodes, classes, tuple(names), digest.hexdigest())


def _rows(path: Path) -> Iterator[tuple[pa.Array, pa.Array, pa.Array]]:
    """Yields names, labels and splits, as strings."""
    if path.suffix.lower() == ".parquet":
        _check_type(path)
    options = ReadOptions(columns=COLUMNS, header=True, comment="")
    for batch in read_edges(EdgeFile(path, options, holds="labels")):
        names, labels, splits = (column.cast(pa.string()) for column in batch.columns)
        yield names, labels, splits


def _check_type(path: Path) -> None:
    """Refuses labels in Parquet that are floats, dates and so on. The reader's message would be about ids."""
    with suppress(pa.ArrowException, OSError, KeyError):  # the reader reports these
        held = pq.read_schema(path).field("label").type
        plain = held.value_type if pa.types.is_dictionary(held) else held
        if not (pa.types.is_integer(plain) or plain in (pa.string(), pa.large_string(), pa.string_view())):
            raise InputError(f"column 'label' holds {held}: names (strings) or integers are needed", path)


def _name(path: Path, row: int) -> str:
    """The name in a row, counted from 0."""
    for names, _, _ in _rows(path):
        if row < len(names):
            return names[row].as_py()
        row -= len(names)
    raise InputError("was changed while it was read", path)


def _split_numbers(path: Path, first_row: int, names: pa.Array) -> np.ndarray:
    """The index into `SPLITS` of each row, int8 [n]."""
    found = pc.index_in(names, value_set=pa.array(SPLITS))
    if found.null_count:
        at = pc.index(pc.is_null(found), True).as_py()
        near = difflib.get_close_matches(names[at].as_py(), SPLITS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        _refuse(path, first_row + at, f"unknown split {names[at].as_py()!r}: {', '.join(SPLITS)} are known{hint}")
    return found.to_numpy(zero_copy_only=False).astype(np.int8)


def _class_numbers(labels: pa.Array, numbers: dict[str, int]) -> np.ndarray:
    """The class of each label, int64 [n]. Classes are numbered as they appear; new ones are added to `numbers`."""
    encoded = labels.dictionary_encode()
    new = [numbers.setdefault(label, len(numbers)) for label in encoded.dictionary.to_pylist()]
    return np.array(new, np.int64)[encoded.indices.to_numpy(zero_copy_only=False)]


def _place(path: Path, row: int) -> str:
    """How a message names a row, counted from 0: by its line, or in Parquet by its number from 1."""
    return f"row {row + 1}" if path.suffix.lower() == ".parquet" else f"line {line_of_row(path, row)}"


def _refuse(path: Path, row: int, reason: str) -> NoReturn:
    if path.suffix.lower() == ".parquet":
        raise InputError(f"{_place(path, row)}: {reason}", path)
    raise InputError(reason, f"{path}:{line_of_row(path, row)}")
