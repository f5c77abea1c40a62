"""The files of a graph folder, and how they are written.

`train.npy`, `valid.npy`, `test.npy`: ids, C order, [edges, 3] (head, relation, tail) or [edges, 2] (head, tail), int32
if there are at most 2**31 nodes and relations, else int64. `nodes.parquet`, `relations.parquet`: one string column
`name`, in the order of the ids. `graph.json`: version, counts, options, and size and SHA-256 of every other file.

A graph may have negatives of its own for valid and test: `valid_head_negatives.npy` and `valid_tail_negatives.npy`,
[edges, K], are ids of nodes in the place of each edge's head and tail; `valid_negatives.npy`, [n, 2], are pairs of head
and tail that all edges share. The types are those of the edges. `graph.json` then has `negatives` with their `metric`.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from marius_oac.runtime.files.hashing import described, on_threads

FORMAT = "marius_oac.graph"
VERSION = 1
MANIFEST = "graph.json"
HEAD_NEGATIVES, TAIL_NEGATIVES, EDGE_NEGATIVES = "{}_head_negatives.npy", "{}_tail_negatives.npy", "{}_negatives.npy"
"""Files of a split's negatives."""
NAME_ROWS = 1 << 17  # names in a row group, which looking up one name reads (some MiB)


def write_names(path: Path, batches: Iterable[pa.Array]) -> None:
    """Writes names, given in the order of their ids, as a Parquet file with one column `name`."""
    schema = pa.schema([pa.field("name", pa.string(), nullable=False)])
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for names in _regrouped(batches):
            writer.write_table(pa.table([names], schema=schema), row_group_size=NAME_ROWS)


def _regrouped(batches: Iterable[pa.Array]) -> Iterator[pa.Array]:
    """Yields the same names, `NAME_ROWS` at a time, so that the file doesn't depend on the batches."""
    pending = pa.chunked_array([], pa.string())
    for batch in batches:
        pending = pa.chunked_array([*pending.chunks, batch])
        while len(pending) >= NAME_ROWS:
            yield pending[:NAME_ROWS].combine_chunks()
            pending = pending[NAME_ROWS:]
    if len(pending):
        yield pending.combine_chunks()


def write_manifest(folder: Path, content: dict[str, Any], names: Iterable[str]) -> str:
    """Writes `graph.json` with size and SHA-256 of the named files, flushes all to disk, and returns the fingerprint.

    Args:
        content: further keys and values of the manifest.
    """
    names = list(names)
    files = dict(zip(names, on_threads(lambda name, _: described(folder / name), names), strict=True))
    manifest = {"format": FORMAT, "version": VERSION, **content, "files": files}
    with open(folder / MANIFEST, "w", encoding="utf-8") as file:
        json.dump(manifest, file, indent=2, ensure_ascii=False)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    return fingerprint(files)


def fingerprint(files: dict[str, Any]) -> str:
    """SHA-256 (hexadecimal) over the names and digests of a graph's files. It is equal exactly if the graphs are."""
    text = "".join(f"{name}:{files[name]['sha256']}\n" for name in sorted(files))
    return hashlib.sha256(text.encode()).hexdigest()
