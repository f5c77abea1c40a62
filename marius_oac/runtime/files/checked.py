"""Files of a manifest that are checked as they are read: each block that is read, and no other.

Guarantees: no byte is returned that has not the digest it was written with, nor before it was compared. A file stays
open only while it is read. Any number of threads may read.
"""

from __future__ import annotations

import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from marius_oac.errors import InputError
from marius_oac.runtime.files.blocks import DIGEST_BYTES, block_bytes, block_digest, num_blocks
from marius_oac.runtime.files.untrusted import BlockedFile, Error, open_regular
from marius_oac.runtime.files.untrusted_arrays import checked_header


class CheckedFile:
    """A file whose blocks have known digests.

    Args:
        listed: its size and checksums.
        error: makes the errors.
    """

    def __init__(self, path: Path, listed: BlockedFile, error: Error = InputError):
        self.path, self.size, self.error = path, listed.bytes, error
        self.block_bytes = block_bytes(self.size)
        digests = self._digests = bytes.fromhex(listed.blocks)
        self._last: tuple[int, bytes] = -1, b""  # the last block that was read: a range often begins where one ended
        if xxhash.xxh3_128_hexdigest(digests) != listed.checksum or len(digests) != DIGEST_BYTES * num_blocks(
            self.size
        ):
            raise error("is damaged: the digests of its blocks are not those that it was written with", path)

    def read(self, first: int = 0, end: int | None = None) -> memoryview:
        """Returns the bytes [first, end), by default all; 0 <= first <= end <= size.

        Raises what `error` makes: the file is missing, can't be read, has another size, or a block of the range is
        damaged.
        """
        end = self.size if end is None else end
        if first == end:
            return memoryview(b"")
        block, last = first // self.block_bytes, (end - 1) // self.block_bytes
        begin, (held, content) = block * self.block_bytes, self._last
        if held != block:
            content = self._checked(block, min((last + 1) * self.block_bytes, self.size))
        elif block < last:
            content += self._checked(block + 1, min((last + 1) * self.block_bytes, self.size))
        found = memoryview(content)
        self._last = last, bytes(found[last * self.block_bytes - begin :])
        return found[first - begin : end - begin]

    def _checked(self, block: int, end: int) -> bytes:
        begin = block * self.block_bytes
        try:
            with open_regular(self.path, self.error) as file:
                found = os.fstat(file.fileno()).st_size
                if found != self.size:
                    raise self.error(f"is damaged: {found:,} bytes, {self.size:,} are expected", self.path)
                file.seek(begin)
                content = file.read(end - begin)
        except FileNotFoundError:
            raise self.error("is missing", self.path) from None
        except OSError as problem:
            raise self.error(f"can't be read: {problem.strerror}", self.path) from None
        view = memoryview(content)
        for at in range(0, end - begin, self.block_bytes):
            place = (begin + at) // self.block_bytes * DIGEST_BYTES
            if block_digest(view[at : at + self.block_bytes]) != self._digests[place : place + DIGEST_BYTES]:
                raise self.error("is damaged: its checksum differs from the one it was written with", self.path)
        return content


class CheckedArray:
    """The array of a .npy file, read when it is indexed: by a slice, or by ascending rows.

    Args:
        dtypes, shape: see `untrusted_arrays.map_npy`, whose errors it raises.
    """

    def __init__(self, file: CheckedFile, dtypes: Sequence[type | np.dtype], shape: Sequence[int | None]):
        self._file = file
        beginning = io.BytesIO(file.read(0, min(file.size, file.block_bytes)))
        try:
            self.shape, self.dtype, self._offset = checked_header(beginning, file.size, dtypes, shape)
        except ValueError as problem:
            raise file.error(str(problem), file.path) from None
        self.size = int(np.prod(self.shape))
        self.nbytes = self.size * self.dtype.itemsize
        self._row_bytes = int(np.prod(self.shape[1:])) * self.dtype.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, which: Any) -> np.ndarray:
        if isinstance(which, slice):
            first, end, step = which.indices(len(self))
            found = self._rows(first, max(first, end)) if step > 0 else self._rows(0, len(self))[which]
            return found[::step] if step > 1 else found
        rows = np.asarray(which)
        if not rows.size:
            return self._rows(0, 0)
        apart = np.flatnonzero(np.diff(rows) * self._row_bytes > self._file.block_bytes) + 1
        groups = np.split(rows, apart)
        return np.concatenate([self._rows(int(each[0]), int(each[-1]) + 1)[each - each[0]] for each in groups])

    def _rows(self, first: int, end: int) -> np.ndarray:
        begin = self._offset + first * self._row_bytes
        content = self._file.read(begin, begin + (end - first) * self._row_bytes)
        return np.frombuffer(content, self.dtype).reshape(end - first, *self.shape[1:])


class CheckedFiles:
    """The files of a folder that a manifest lists with the digests of their blocks."""

    def __init__(self, folder: Path, files: Mapping[str, BlockedFile], error: Error = InputError):
        self._files = {name: CheckedFile(folder / name, listed, error) for name, listed in files.items()}
        self._arrays: dict[str, CheckedArray] = {}

    def content(self, name: str) -> bytes:
        """Returns all of a file."""
        return bytes(self._files[name].read())

    def array(self, name: str, dtypes: Sequence[type | np.dtype], shape: Sequence[int | None]) -> CheckedArray:
        """Returns the array of a file."""
        if name not in self._arrays:
            self._arrays[name] = CheckedArray(self._files[name], dtypes, shape)
        return self._arrays[name]
