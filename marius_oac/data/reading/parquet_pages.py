"""Reads Parquet files in bounded memory: the decoded size of their pages is checked before any page is decoded.

A few kilobytes of Parquet can decode to gigabytes: pages are compressed, repeated texts are stored once, and lists of
equal values are run-length encoded. Footers can't be trusted, so the headers of the pages are read, as Arrow reads
them. Dictionary-encoded texts stay indices until their lengths are known.

What a footer says of column chunks is read here, too: pyarrow's `RowGroupMetaData.column` aborts the process where one
is damaged, as an exception passes through its binding (pyarrow 26).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from marius_oac.errors import InputError
from marius_oac.kernels.cpu.jit import compiled
from marius_oac.runtime.files.untrusted import open_regular

MOST_PAGE_BYTES = 256 << 20
"""The largest decompressed page. Writers make pages of about 1 MiB, except for larger values."""
MOST_BATCH_BYTES = 1 << 30
"""The largest size of the texts that are decoded at once."""
MOST_LISTED, MOST_PER_BYTE = 1 << 28, 512
"""A row group of a column of lists may have MOST_LISTED values, all of which may be in one row, or MOST_PER_BYTE values
for each byte in the file if that is more."""
MOST_PER_TEXT_BYTE = 4096
"""Lists of texts may decode to MOST_BATCH_BYTES, or to so many bytes for each of their bytes in the file if that is
more."""
_HEADER_BYTES, _MOST_HEADER_BYTES = 512, 1 << 20
_DATA, _DICTIONARY, _DATA_V2 = 0, 2, 3
_CODECS = ("uncompressed", "snappy", "gzip", "lzo", "brotli", "lz4", "zstd", "lz4_raw")
_DELTA_BYTE_ARRAY = 7
_DEEPEST = 8  # structs and lists within each other
_END_BYTES = 8  # at the end of a file: the footer's length, and "PAR1"


class Chunk(NamedTuple):
    """What the footer says of a column chunk; see parquet-format, `ColumnMetaData`."""

    path: str
    compression: str
    encodings: frozenset[int]
    num_values: int
    total_compressed_size: int
    data_page_offset: int
    dictionary_page_offset: int | None


def column_chunks(path: Path) -> list[list[Chunk]]:
    """Of each row group its column chunks, in the order of the schema's columns. Raises InputError if the file is
    damaged."""
    try:
        with open_regular(path) as file:
            end = os.fstat(file.fileno()).st_size - _END_BYTES
            size = int.from_bytes(os.pread(file.fileno(), 4, max(0, end)), "little")
            fields = _Thrift(os.pread(file.fileno(), size, max(0, end - size))).fields
        groups = [[_chunk(column[3]) for column in group[1]] for group in fields[4]]
        if len({len(group) for group in groups}) > 1:
            raise ValueError("row groups differ in their columns")
        return groups
    except (LookupError, ValueError, TypeError, AttributeError) as error:
        raise InputError(f"not a Parquet file, or a damaged one: its footer ({error!r})", path) from None


def _chunk(fields: dict[int, Any]) -> Chunk:
    used = {*fields[2], *(each[2] for each in fields.get(13, ()))}
    name = ".".join(part.decode("utf-8", "replace") for part in fields[3])
    found = Chunk(name, _CODECS[fields[4]], frozenset(used), fields[5], fields[7], fields[9], fields.get(11))
    places = (found.data_page_offset, found.dictionary_page_offset or 0)
    if min(found.num_values, found.total_compressed_size, *places) < 0 or fields[4] < 0:
        raise ValueError("a negative number")
    return found


@dataclass(frozen=True)
class ReadingPlan:
    """How columns can be read: the number of rows at once, and the paths of columns that stay dictionaries."""

    rows: int
    dictionaries: tuple[str, ...]


def parquet_batches(
    path: Path, columns: Sequence[str], rows: int, groups: Sequence[int] | None = None, buffer_bytes: int = 0
) -> Iterator[pa.RecordBatch]:
    """Yields batches of at most so many rows. Columns of texts may be dictionaries, which `decoded` decodes.

    Args:
        groups: the row groups to read; None: all.
        buffer_bytes: how many bytes of a column are read at once; 0: a row group's.

    Raises:
        InputError: a page or a list is too large.
        pa.ArrowException, OSError: the file is no Parquet file, is damaged, or can't be read.
    """
    plan = reading_plan(path, columns, rows)
    # With pre_buffer Arrow would hold the whole file in memory.
    settings = {"pre_buffer": False, "buffer_size": buffer_bytes, "read_dictionary": list(plan.dictionaries)}
    with pq.ParquetFile(path, **settings) as parquet:
        chosen = list(range(parquet.num_row_groups) if groups is None else groups)
        yield from parquet.iter_batches(plan.rows, chosen, list(columns), use_threads=True)


def reading_plan(path: Path, columns: Sequence[str], rows: int) -> ReadingPlan:
    """How a caller that opens the file can read at most so many rows at once. Raises as `parquet_batches`."""
    about = os.stat(path)
    known = (about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns)
    return _planned(known, path, tuple(columns), rows)


def decoded(column: pa.Array, path: Path) -> pa.Array:
    """The column, decoded if it is a dictionary. Raises InputError if that would take too much memory."""
    if not pa.types.is_dictionary(column.type):
        return column
    kinds = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    if any(kind(column.type.value_type) for kind in kinds):
        needed = pc.sum(pc.binary_length(column.dictionary).take(column.indices).cast(pa.int64())).as_py() or 0
        if needed > MOST_BATCH_BYTES:
            most = f"{MOST_BATCH_BYTES >> 20:,} MiB are read at once"
            raise InputError(f"{len(column):,} texts become {needed >> 20:,} MiB; at most {most}", path)
    return column.dictionary_decode()


@contextmanager
def parquet_errors(path: Path) -> Iterator[None]:
    """Within the block, errors of Arrow and of the system become an InputError that names the file."""
    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise InputError(f"not a Parquet file, or a damaged one: {error}", path) from None


@lru_cache(256)
def _planned(known: tuple[int, ...], path: Path, columns: tuple[str, ...], rows: int) -> ReadingPlan:
    """The plan; `known` identifies the file and when it was written."""
    dictionaries, widest = set(), 0
    with open_regular(path) as file, pq.ParquetFile(path) as parquet:
        leaves = [parquet.metadata.schema.column(number) for number in range(parquet.metadata.num_columns)]
        for group, chunks in enumerate(column_chunks(path)):
            width = 0
            if len(chunks) != len(leaves):
                raise InputError(f"row group {group} has {len(chunks)} columns, not {len(leaves)}", path)
            for chunk, leaf in zip(chunks, leaves, strict=True):
                if leaf.path.partition(".")[0] not in columns:
                    continue
                where = f"column {leaf.path!r}, row group {group}"
                dictionary, page, values, place = _largest(file, chunk, where, path)
                if leaf.max_repetition_level and values > max(MOST_LISTED, MOST_PER_BYTE * chunk.total_compressed_size):
                    raise InputError(f"{where}: {values:,} values of lists, at most {MOST_LISTED:,} are read", path)
                if leaf.physical_type == "BYTE_ARRAY" and leaf.max_repetition_level:
                    # Arrow can't keep dictionaries in lists across row groups.
                    _check_listed_texts(file, chunk, place, values, where, path)
                elif leaf.physical_type == "BYTE_ARRAY" and dictionary * rows > MOST_BATCH_BYTES:
                    dictionaries.add(leaf.path)
                if _DELTA_BYTE_ARRAY in chunk.encodings:
                    width += page  # a text may share the whole of the text before
                if leaf.physical_type == "FIXED_LEN_BYTE_ARRAY":
                    width += leaf.length
            widest = max(widest, width)
    return ReadingPlan(max(1, min(rows, MOST_BATCH_BYTES // max(1, widest))), tuple(sorted(dictionaries)))


def _check_listed_texts(
    file: BinaryIO, chunk: Chunk, place: tuple[int, int, int], values: int, where: str, path: Path
) -> None:
    """Raises InputError if the values would be too large, were each as long as the longest text of the dictionary. One
    row may have them all.

    Args:
        place: of the dictionary page: where it is, its bytes there, and decompressed.
    """
    at, packed, size = place
    most = max(MOST_BATCH_BYTES, MOST_PER_TEXT_BYTE * chunk.total_compressed_size)
    if size * values <= most:
        return
    content, longest = os.pread(file.fileno(), packed, at), size
    with suppress(pa.ArrowException, OSError, ValueError):  # a codec that this build lacks
        if chunk.compression != _CODECS[0]:
            content = pa.decompress(content, size, chunk.compression, asbytes=True)
        longest = _longest(np.frombuffer(content, np.uint8))
    if longest * values > most:
        what = f"{values:,} texts in lists, of up to {longest:,} bytes"
        raise InputError(f"{where}: {what}, are more than {most >> 20:,} MiB", path)


@compiled
def _longest(content: np.ndarray) -> np.int64:
    """The length of the longest of consecutive texts, each preceded by its length in 4 bytes; content is uint8 [n]."""
    at, longest = np.int64(0), np.int64(0)
    while at + 4 <= content.size:
        length = np.int64(content[at]) | np.int64(content[at + 1]) << 8
        length |= np.int64(content[at + 2]) << 16 | np.int64(content[at + 3]) << 24
        longest = max(longest, length)
        at += 4 + length
    return longest


def _largest(file: BinaryIO, chunk: Chunk, where: str, path: Path) -> tuple[int, int, int, tuple[int, int, int]]:
    """Measures a column chunk. Returns the decompressed bytes of the dictionary and of the largest page, the number of
    values, and of the dictionary its position, its bytes in the file, and its decompressed bytes."""
    at = chunk.data_page_offset
    if 0 < (chunk.dictionary_page_offset or 0) < at:  # where Arrow begins
        at = chunk.dictionary_page_offset or 0
    end, values, dictionary, largest, place = at + chunk.total_compressed_size, 0, 0, 0, (0, 0, 0)
    while at < end and values < chunk.num_values:
        length, header = _page_header(file, at, where, path)
        kind, size, packed = (header.get(number, 0) for number in (1, 2, 3))
        if not 0 <= size <= MOST_PAGE_BYTES:
            raise InputError(f"{where}: a page of {size:,} bytes, at most {MOST_PAGE_BYTES >> 20} MiB are read", path)
        if packed < 0:
            raise InputError(f"{where}: is damaged: a page of {packed} bytes", path)
        if kind == _DICTIONARY:
            dictionary, place = max(dictionary, size), (at + length, packed, size)
        elif kind in (_DATA, _DATA_V2):
            largest = max(largest, size)
            values += max(0, header.get({_DATA: 5, _DATA_V2: 8}[kind], {}).get(1, 0))
        at += length + packed
    return dictionary, largest, values, place


def _page_header(file: BinaryIO, at: int, where: str, path: Path) -> tuple[int, dict[int, Any]]:
    """The header's length, and its fields by number (parquet-format, `PageHeader`, in Thrift's compact protocol)."""
    size = _HEADER_BYTES
    while size <= _MOST_HEADER_BYTES:
        content = os.pread(file.fileno(), size, at) if 0 <= at < 1 << 62 else b""
        try:
            reader = _Thrift(content)
            _check_numbers(reader.fields)
            return reader.at, reader.fields
        except IndexError:
            size = size * 16 if len(content) == size else _MOST_HEADER_BYTES + 1
        except (ValueError, AttributeError):
            break
    raise InputError(f"{where}: is damaged: there is no page at byte {at:,}", path)


def _check_numbers(fields: dict[int, Any]) -> None:
    """Raises ValueError or AttributeError if a page header's kind, sizes or numbers of values are none."""
    of_kinds = [fields.get(number, {}).get(1, 0) for number in (5, 8)]
    if not all(isinstance(each, int) for each in (*(fields.get(number, 0) for number in (1, 2, 3)), *of_kinds)):
        raise ValueError


class _Thrift:
    """One struct of the compact protocol: its integers, texts, lists and structs by field number. Others are skipped.

    Raises:
        IndexError: the content ends before the struct does.
        ValueError: it is no struct.
    """

    def __init__(self, content: bytes):
        self._content, self.at = content, 0
        self.fields = self._struct(0)

    def _struct(self, depth: int) -> dict[int, Any]:
        fields, number = {}, 0
        while head := self._byte():
            number = number + (head >> 4) if head >> 4 else self._integer()
            fields[number] = self._value(head & 15, depth, boolean=None)
        return fields

    def _value(self, kind: int, depth: int, boolean: int | None = 1) -> Any:
        if depth > _DEEPEST:
            raise ValueError
        if kind in (1, 2):  # true and false; in a list each takes a byte
            return self._skip(boolean) if boolean else kind == 1
        if kind == 3:
            return self._byte()
        if kind in (4, 5, 6):
            return self._integer()
        if kind == 7:
            return self._skip(8)
        if kind == 8:
            size = self._varint()
            self._skip(size)
            return self._content[self.at - size : self.at]
        if kind in (9, 10):
            head = self._byte()
            return [self._value(head & 15, depth + 1) for _ in range(self._varint() if head >> 4 == 15 else head >> 4)]
        if kind == 12:
            return self._struct(depth + 1)
        raise ValueError

    def _byte(self) -> int:
        self.at += 1
        return self._content[self.at - 1]

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value
            if shift > 63:
                raise ValueError

    def _integer(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)

    def _skip(self, count: int) -> None:
        self.at += count
        if self.at > len(self._content):
            raise IndexError
