"""Ids of names, in the order of the names, from dictionaries that may share names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from marius_oac.data.reading.database import STREAM_ROWS, Database

NAMES_BYTES = 256 << 20
"""Of names that are sorted in memory, where their table of hashes takes three times that; DuckDB sorts more."""


class Numbering:
    """Numbers of the names of one table: strings by bytes, integers by value.

    Args:
        table: what the names are of, also the database's name for them.
        work: an existing folder, where the database's answer is kept.
    """

    def __init__(self, table: str, work: Path, database: Database) -> None:
        self._table, self._path, self._database = table, work / f"{table}.ids", database
        self._held: list[pa.Array] = []
        self._sizes: list[int] = []
        self._in_database = False
        self.count = 0
        """Of different names, after `resolve`."""

    def add(self, names: pa.Array) -> None:
        """Appends a dictionary: names that differ, texts with offsets of 64 bits, or int64."""
        self._sizes.append(len(names))
        self._held.append(names)
        if self._in_database or sum(each.nbytes for each in self._held) > NAMES_BYTES:
            self._hand_over()

    def _hand_over(self) -> None:
        kind = "BIGINT" if pa.types.is_integer(self._held[0].type) else "VARCHAR"
        if not self._in_database:
            self._database.execute(f"CREATE TABLE {self._table}_parts (i BIGINT, name {kind})")
        first = sum(self._sizes) - sum(map(len, self._held))
        for names in self._held:
            numbers = pa.array(np.arange(first, first + len(names)))
            incoming = pa.table({"i": numbers, "name": names})
            self._database.run(f"INSERT INTO {self._table}_parts SELECT * FROM incoming", incoming)
            first += len(names)
        self._in_database, self._held = True, []

    def resolve(self) -> None:
        """Gives the ids. Call it once, after the last `add` and before other methods."""
        if self._in_database:
            self._resolve_there()
            return
        if len(self._held) == 1:
            self._names, place = self._held[0], None
        else:
            place, self._names = coded(self._held)
        self._held = []
        self.count = len(self._names)
        self._order = pc.sort_indices(self._names)
        ids = np.empty(self.count, np.int32)
        ids[self._order.to_numpy()] = np.arange(self.count, dtype=np.int32)
        self._ids = ids if place is None else ids[place]

    def _resolve_there(self) -> None:
        table, parts = self._table, f"{self._table}_parts"
        self._database.execute(
            f"CREATE TABLE {table} AS SELECT name, row_number() OVER (ORDER BY name) - 1 AS id "
            f"FROM (SELECT DISTINCT name FROM {parts})"
        )
        self.count = self._database.execute(f"SELECT count(*) FROM {table}")[0][0]
        with open(self._path, "wb") as file:
            ids = f"SELECT n.id FROM {parts} AS p JOIN {table} AS n ON n.name = p.name ORDER BY p.i"
            for batch in self._database.stream(ids):
                file.write(np.ascontiguousarray(batch.column(0), np.int64).data)
        self._database.execute(f"DROP TABLE {parts}")

    def ids(self, number: int) -> np.ndarray:
        """The ids of the names of a dictionary, by the number of its `add`: int32, or int64 by the database."""
        first, size = sum(self._sizes[:number]), self._sizes[number]
        if not self._in_database:
            return self._ids[first : first + size]
        return np.fromfile(self._path, np.int64, size, offset=8 * first)

    def names(self) -> Iterator[pa.Array]:
        """Yields all names in the order of their ids, as strings."""
        if self._in_database:
            for batch in self._database.stream(f"SELECT name::VARCHAR AS name FROM {self._table} ORDER BY id"):
                yield batch.column("name")
            return
        for first in range(0, self.count, STREAM_ROWS):
            yield self._names.take(self._order[first : first + STREAM_ROWS]).cast(pa.string())

    def name(self, number: int) -> str:
        """The name of one id."""
        if self._in_database:
            return self._database.execute(f"SELECT name::VARCHAR FROM {self._table} WHERE id = {number}")[0][0]
        return str(self._names[self._order[number].as_py()].as_py())


def coded(pieces: Sequence[pa.Array]) -> tuple[np.ndarray, pa.Array]:
    """The place of each name in a dictionary of all, int32 [n], and the dictionary, with offsets of 64 bits."""
    whole = pa.chunked_array(pieces)
    if pa.types.is_string(whole.type):
        whole = whole.cast(pa.large_string())  # together they may be larger than 2 GiB
    found = whole.dictionary_encode()
    return np.concatenate([each.indices.to_numpy() for each in found.chunks]), found.chunks[-1].dictionary
