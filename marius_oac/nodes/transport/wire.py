"""The first frame of every message between a client and a server: fixed, checked, never more than `HEAD.size` bytes.

    magic 4s | kind u8 | 0 u8, u16 | number u64 | taken u64        little endian

`number` counts the data messages of a connection and direction from 1; `taken` is how many of the other direction have
been returned to the caller (`windows.py`).
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple

MAGIC = b"MOA1"
HEAD = struct.Struct("<4sBBHQQ")


class Kind(IntEnum):
    """The kinds of messages."""

    HELLO = 1
    CHALLENGE = 2
    PROOF = 3
    WELCOME = 4
    REFUSED = 5
    DATA = 6
    TAKEN = 7
    PROBE = 8  # empty; from sending it a ROUTER learns whether the peer is still there
    BYE = 9
    FAILED = 10  # a server's last message: why it can't go on


_KINDS = {int(kind): kind for kind in Kind}


class Head(NamedTuple):
    """The first frame, parsed."""

    kind: Kind
    number: int
    taken: int


class Malformed(Exception):
    """A message that no correct peer of this version sends. The text is the reason, a constant."""


def head(kind: Kind, number: int = 0, taken: int = 0) -> bytes:
    """Returns the first frame of a message."""
    return HEAD.pack(MAGIC, kind, 0, 0, number, taken)


def parse(data: bytes | memoryview) -> Head:
    """Parses the first frame of a message.

    Raises:
        Malformed: it is invalid.
    """
    if len(data) != HEAD.size:
        raise Malformed("malformed message")
    magic, number_of_kind, zero, zeros, number, taken = HEAD.unpack(data)
    kind = _KINDS.get(number_of_kind)
    if magic != MAGIC or zero or zeros or kind is None:
        raise Malformed("malformed message")
    return Head(kind, number, taken)
