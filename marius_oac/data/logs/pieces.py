"""Digests of the contents of a log's files, by which changes since the first reading are found.

The pieces of a text are consecutive PIECE_BYTES of it, decompressed. Those of a Parquet file are its footer and, for
each row group, the bytes of the columns that are read. A piece's SHA-256 is compared before the piece is used. Counting
the lines of a text reads it completely, so all of its digests are known from the start. The digest of a row group is
known once it has been read. A run keeps the known digests (`log.json`).
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path

from marius_oac.errors import InputError

PIECE_BYTES = 4 << 20
"""Runs keep digests of pieces of this size. With another size, resumed runs would find all files changed."""
DIGITS = 32  # of a SHA-256: 128 bits


class Pieces:
    """The digests of one file's pieces. Any number of threads may use it.

    Args:
        known: the digests of the first pieces; None: the piece has not been read yet.
    """

    def __init__(self, path: Path, known: Sequence[str | None] = ()):
        self._path, self._known, self._lock = path, list(known), threading.Lock()

    def check(self, number: int, content: Iterable[bytes], name: str) -> None:
        """Compares a piece with its digest, or records the digest if the piece is read for the first time.

        Args:
            content: of the piece, in parts.
            name: of the piece, for messages.

        Raises:
            InputError: the piece has changed.
        """
        digest = hashlib.sha256()
        for part in content:
            digest.update(part)
        self.learn(number, digest.hexdigest()[:DIGITS], name)

    def learn(self, number: int, found: str, name: str) -> None:
        """Compares the digest of a piece that this process or another one has read, as `check` does."""
        with self._lock:
            self._known.extend([None] * (number + 1 - len(self._known)))
            before = self._known[number]
            self._known[number] = before or found
        if before not in (None, found):
            raise InputError(f"has changed since it was first read: {name} is not what it was", self._path)

    def known(self) -> tuple[str | None, ...]:
        """The digests so far, as for the constructor."""
        with self._lock:
            return tuple(self._known)


def contradict(some: Sequence[str | None], others: Sequence[str | None]) -> bool:
    """Whether the two have different digests of a piece."""
    return any(one and other and one != other for one, other in zip(some, others, strict=False))
