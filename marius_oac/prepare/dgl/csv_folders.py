"""dgl's CSV format: folders with `meta.yaml` and the files that it names (dgl.data.CSVDataset, version 1.0.0). They are
read without dgl. See `dgl.edges` for how a graph is converted.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pv
from pydantic import AfterValidator, Field

from marius_oac.config.errors import read_mapping
from marius_oac.data.reading.readers import check_readable, checked_names
from marius_oac.errors import InputError, shown
from marius_oac.prepare.dgl.edges import RELATION, Edges, named, prepare_edges, relation_names
from marius_oac.prepare.dgl.nodes import FEATURES, LABEL, MASKS, NodeData
from marius_oac.prepare.prepare import PreparedGraph
from marius_oac.runtime.files.untrusted import Described, typed

META = "meta.yaml"
_PLAIN = ("_V", "_E", "_V")  # what dgl calls the only types of nodes and edges


def prepare_dgl_csv(folder: Path, out: Path, **options: Any) -> PreparedGraph:
    """Makes a graph folder of a folder in dgl's CSV format that holds one graph. Each file is read into memory.

    Args:
        options: of `PrepareRequest`; fractions only if the edges have no masks.

    Raises:
        InputError: a file is missing, broken, of another version, or holds several graphs; as `prepare`.
    """
    meta = _read_meta(Path(folder) / META)
    return prepare_edges(_csv_edges(Path(folder), meta), _csv_nodes(Path(folder), meta), folder, out, options)


def _csv_nodes(folder: Path, meta: _Meta) -> list[NodeData]:
    found = []
    for entry in meta.node_data or ():
        path = folder / entry.file_name
        table = _read_csv(path, meta.separator)
        names = _ids(table, entry.node_id_field, path).cast(pa.string())
        _check_once(names, path)
        if _several(meta):
            names = named(entry.ntype, names.to_pylist())
        found.append(_node_data(names, table, path))
    return found


def _check_once(names: pa.Array, path: Path) -> None:
    """Refuses a node with two rows."""
    numbers = names.dictionary_encode().indices.to_numpy()  # a new name has the next number
    again = np.flatnonzero(np.diff(np.maximum.accumulate(numbers)) == 0)
    if len(again):
        row = int(again[0]) + 1
        first = 1 + int(np.argmax(numbers == numbers[row]))
        raise InputError(f"row {row + 1}: node {names[row].as_py()!r} stands in row {first} already", path)


def _several(meta: _Meta) -> bool:
    """Whether there are several types of nodes."""
    return len({kind for entry in meta.edge_data for kind in entry.etype[::2]}) > 1


def _csv_edges(folder: Path, meta: _Meta) -> Iterator[Edges]:
    found, several = meta.edge_data, _several(meta)
    names = relation_names(entry.etype for entry in found)
    for entry in found:
        name, etype = entry.file_name, entry.etype
        table = _read_csv(folder / name, meta.separator)
        head, tail = (_ids(table, column, folder / name) for column in (entry.src_id_field, entry.dst_id_field))
        graphs = entry.graph_id_field
        if graphs in table.column_names and len(table.column(graphs).unique()) > 1:
            raise InputError("holds several graphs", folder / name)
        relation = None
        if RELATION in table.column_names and len(found) == 1:
            relation = _ids(table, RELATION, folder / name)
        if several:
            head, tail = named(etype[0], head.to_pylist()), named(etype[2], tail.to_pylist())
        if len(found) > 1:
            relation = pa.array([names[etype]] * len(table))
        yield Edges(head, tail, relation, _masks(table, folder / name))


def _node_data(names: pa.Array, table: pa.Table, path: Path) -> NodeData:
    """The data in a CSV file of nodes with these names, strings [n]. `feat` is a number, or numbers joined by commas.

    Raises:
        InputError: a mask has no value; features are no numbers, or nodes differ in how many they have.
    """
    masks = _masks(table, path)
    found = {key: table.column(key) for key in (LABEL, FEATURES) if key in table.column_names}
    labels = found[LABEL].to_numpy() if LABEL in found else None
    features = found.get(FEATURES)
    if features is not None:
        try:
            features = pc.split_pattern(features.cast(pa.string()), ",")
            widths = set(pc.unique(pc.list_value_length(features)).to_pylist())
            if len(widths) != 1:
                raise InputError(f"{FEATURES!r} has {min(widths)} to {max(widths)} numbers", path)
            flat = pc.utf8_trim_whitespace(pc.list_flatten(features)).cast(pa.float32())
            features = flat.to_numpy(zero_copy_only=False).reshape(len(names), -1)
        except (pa.ArrowException, TypeError) as error:
            raise InputError(f"{FEATURES!r} must be numbers with commas between them ({error})", path) from None
    return NodeData(names, labels, masks, features, str(path))


def _ids(table: pa.Table, name: str, path: Path) -> pa.Array:
    """A column that holds names or integers from 0. Raises InputError if there is none, or it holds something else."""
    if name not in table.column_names:
        raise InputError(f"has no column {name!r}: {', '.join(table.column_names)}", path)
    column = table.column(name).combine_chunks()
    return checked_names(column if len(column) else column.cast(pa.string()), name, 1, path)


def _masks(table: pa.Table, path: Path) -> dict[str, np.ndarray]:
    """The masks by split, bool [n] each. Raises InputError if a value is missing."""
    found = {split: table.column(mask) for split, mask in MASKS.items() if mask in table.column_names}
    for split, mask in found.items():
        if mask.null_count:
            row = 1 + pc.index(pc.is_null(mask), True).as_py()
            raise InputError(f"row {row} has no value in column {MASKS[split]!r}", path)
    return {split: mask.to_numpy() for split, mask in found.items()}


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
        types = pv.ConvertOptions(column_types=dict.fromkeys(MASKS.values(), pa.bool_()))
        return pv.read_csv(path, options, pv.ParseOptions(delimiter=separator), types)
    except OSError as error:
        raise InputError(f"can't be read: {error.strerror or error}", path) from None
    except (pa.ArrowException, ValueError) as error:
        raise InputError(f"can't be read: {error}", path) from None
