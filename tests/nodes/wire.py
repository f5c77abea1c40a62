"""Messages between trainers and shards as bytes, packed here by hand: the format that
`marius_oac.nodes.transport.messages` must keep, and messages that nobody sends."""

import struct

import numpy as np

from marius_oac.nodes.transport.messages import parse

HEADER = struct.Struct("<4sBBHqqqdd")
SLOTS = {"final": 0, "table": 0, "batch_index": 0, "stop_at": 2**62, "step": 0, "share": 1.0, "factor": 1.0}


def header(kind, magic=b"MOA2", **numbers):
    """With what is said of these places, and in all others what they hold where nothing is said."""
    return HEADER.pack(magic, kind, *(SLOTS | numbers).values())


def framed(kind, batch_index=0, arrays=(), **numbers):
    """The frames of a message."""
    return [
        header(kind, batch_index=batch_index, **numbers),
        *(np.ascontiguousarray(each).tobytes() for each in arrays),
    ]


def tell(shard, rank, frames):
    """What a shard says to these frames of a trainer."""
    return shard.handle(rank, parse(frames))
