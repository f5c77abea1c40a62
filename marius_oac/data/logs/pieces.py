"""What a file of a log was when it was first read, piece by piece.

A piece of a text is the next PIECE_BYTES of it, decompressed; those of a Parquet file are its footer, and of each row
group the bytes of the columns that are read. A piece's SHA-256 is compared before anything of it is used. A text is
read through when its lines are counted, so all of its pieces are known from the start; row groups are known when they
have been read once. A run keeps what is known (`log.json`).
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path

from marius_oac.errors import InputError

PIECE_BYTES = 4 << 20
"""Runs keep the digests of pieces of this size: with another they would find all of their files changed."""
_DIGITS = 32  # of a SHA-256: 128 bits


class Pieces:
    """The pieces of one file. Any number of threads may use it.

    Args:
        known: the digest of each piece, None of one that has not been read yet; there may be more.
    """

    def __init__(self, path: Path, known: Sequence[str | None] = ()):
        self._path, self._known, self._lock = path, list(known), threading.Lock()

    def check(self, number: int, content: Iterable[bytes], name: str) -> None:
        """Notes a piece that is read for the first time.

        Args:
            content: of the piece, part by part.
            name: what the piece is called.

        Raises:
            InputError: it is not what it was.
        """
        digest = hashlib.sha256()
        for part in content:
            digest.update(part)
        found = digest.hexdigest()[:_DIGITS]
        with self._lock:
            self._known.extend([None] * (number + 1 - len(self._known)))
            before = self._known[number]
            self._known[number] = before or found
        if before not in (None, found):
            raise InputError(f"has changed since it was first read: {name} is not what it was", self._path)

    def known(self) -> tuple[str | None, ...]:
        """The digests, as `known` of the constructor."""
        with self._lock:
            return tuple(self._known)


def contradict(some: Sequence[str | None], others: Sequence[str | None]) -> bool:
    """Whether a piece that both know is not the same."""
    return any(one and other and one != other for one, other in zip(some, others, strict=False))
