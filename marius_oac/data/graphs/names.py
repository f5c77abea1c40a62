"""The names of nodes and relations in a prepared graph's Parquet files, read on demand."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from marius_oac.data.reading.parquet_pages import decoded, parquet_batches
from marius_oac.errors import InputError

NEAR_NAMES_LIMIT = 50_000  # comparing an unknown name with more than these would take seconds
ROWS_AT_ONCE = 1 << 16
_TEXTS = (pa.string(), pa.large_string())


def check_names(path: Path, count: int) -> None:
    """Raises InputError unless the file's metadata say that it holds `count` names."""
    with _reading(path), pq.ParquetFile(path) as file:
        schema, rows = file.schema_arrow, file.metadata.num_rows
        if schema.names != ["name"] or schema.field("name").type not in _TEXTS:
            raise InputError("names are needed, in one column 'name' of texts", path)
        if rows != count:
            raise InputError(f"holds {rows:,} names, {count:,} are expected", path)


def names_of(path: Path, ids: Sequence[int] | np.ndarray, count: int) -> list[str]:
    """The names of ids, in the order of `ids`. Only the row groups that hold them are read.

    Raises:
        InputError: an id is outside [0, count), or the file is damaged.
    """
    wanted = np.asarray(ids, dtype=np.int64)
    outside = wanted[(wanted < 0) | (wanted >= count)]
    if len(outside):
        raise InputError(f"there is no id {outside[0]}: ids are 0 to {count - 1}", path.stem)
    names = np.empty(len(wanted), dtype=object)
    if not len(wanted):
        return []
    with _reading(path):
        with pq.ParquetFile(path) as file:
            sizes = [file.metadata.row_group(group).num_rows for group in range(file.metadata.num_row_groups)]
        starts = np.concatenate([[0], np.cumsum(sizes)])
        groups = np.searchsorted(starts, wanted, side="right") - 1
        for group in np.unique(groups):
            start = starts[group]
            for batch in parquet_batches(path, ["name"], ROWS_AT_ONCE, [int(group)]):
                at = np.flatnonzero((wanted >= start) & (wanted < start + len(batch)))
                chosen = batch.column("name").take(pa.array(wanted[at] - start))
                names[at] = _filled(decoded(chosen, path), path).to_pylist()
                start += len(batch)
    return names.tolist()


def ids_of(path: Path, names: Sequence[str], count: int, kind: str) -> np.ndarray:
    """The ids of names, int64 [len(names)]. Memory holds a batch of the file and `names`, for a graph of any size.

    Args:
        count: the number of names in the file.
        kind: "node" or "relation", for messages.

    Raises:
        InputError: a name is unknown (lists similar names), or the file is damaged.
    """
    if not count:
        raise InputError("this graph has no relations", kind)
    asked, inverse = np.unique(np.asarray(names, dtype=object).astype(str), return_inverse=True)
    found = np.full(len(asked), -1, dtype=np.int64)
    question, start = pa.array(asked.tolist(), pa.string()), 0
    for batch in name_batches(path):
        hits = pc.index_in(batch, value_set=question.cast(batch.type))
        at = np.flatnonzero(hits.is_valid().to_numpy(zero_copy_only=False))
        found[hits.take(pa.array(at)).to_numpy(zero_copy_only=False)] = start + at
        start += len(batch)
    ids = found[inverse]
    if ((ids < 0) | (ids >= count)).any():
        unknown = str(names[int(np.argmax((ids < 0) | (ids >= count)))])
        raise InputError(f"unknown {kind} {unknown!r}{_nearest(path, unknown, count)}")
    return ids


def name_batches(path: Path, rows: int = ROWS_AT_ONCE) -> Iterator[pa.Array]:
    """Yields all names in the order of their ids, `rows` at a time. Raises InputError if the file is damaged."""
    with _reading(path):
        for batch in parquet_batches(path, ["name"], rows):
            yield _filled(decoded(batch.column("name"), path), path)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"is not a Parquet file of names, or a damaged one: {error}", path) from None


def _filled(names: pa.Array, path: Path) -> pa.Array:
    if names.null_count:
        raise InputError("is damaged: a name is missing", path)
    return names


def _nearest(path: Path, unknown: str, count: int) -> str:
    if count > NEAR_NAMES_LIMIT:
        return ""
    known = [name for batch in name_batches(path) for name in batch.to_pylist()]
    near = difflib.get_close_matches(unknown, known, n=3, cutoff=0.6)
    return f"; near: {', '.join(near)}" if near else ""
