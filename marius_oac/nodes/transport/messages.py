"""Messages between trainers and shards, as frames of bytes: a fixed header, then raw little-endian arrays.

| kind | from | frames after the header |
|---|---|---|
| PULL | trainer | the request of each table: rows, or vocabularies, keys and checks, and `Bags` if it pools |
| ROWS | shard | values of each table, float32 [n, D], in the order of the request, sums after rows |
| PUSH | trainer | gradients of each table, float32 [n, D], in the order of the pull |
| PATCH | shard | of each table: positions in the pull, int64 [k], and their newest values, float32 [k, D] |
| APPLIED | shard | none: everything up to this batch is in the rows |
| LOOK_UP | trainer | as PULL, of one table and never of sums; changes nothing |
| FOUND | shard | its values, and which of them were ever trained, bool [n] |
| SYNC | trainer | dense parameters for the sync server of EASGD, none to read them; `table` is the operation, `Sync` |
| SYNCED | shard | w_ps |
| DENSE | trainer | none: asks for this shard's slice of the dense parameters, with the optimizer's state |
| FOUND | shard | of DENSE: float32 [n], as `DenseSlice.state` returns it |

In modes that dispatch batches (`modes`) the first shard's node dispatches batches:

| kind | from | frames after the header |
|---|---|---|
| RESERVE | trainer | none: asks for its next batch; `final`: the user wants to stop |
| DISPATCH | coordinator | none: batch `batch_index`; `final`: none is left |
| ENTER | trainer | none: it is about to pull batch `batch_index` |
| TOKEN | coordinator | none: `step` is the batch's token; sent when the trainer may go on |
| DONE | trainer | steps of the shards, int64 [S], which all have taken batch `batch_index`; its loss, float64 [1] |
| FINISHED | coordinator | none: no batch is left or outstanding; the next one would be `batch_index` |
| JOIN | elastic worker | none: asks what the run is, before anything else |
| WELCOME | coordinator | the run as JSON (`training.elastic`) |
| REFUSE | coordinator | batches, int64 [n], of worker `batch_index`, which is gone: the shard takes them no more |
| ANSWER | trainer | which of them its shard, number `table`, has settled, bool [n]; `step` is the shard's step |
| FILL | coordinator | tokens, int64 [n], of slots that this trainer's shard fills with no gradient |
| FILLED | trainer | none: done; `table` and `step` as in ANSWER |

Nothing is ever unpickled, and sizes are checked before they are used. Anything that does not fit is `Malformed`.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np

from marius_oac.nodes.transport.contract import Buffer, Frames

_HEADER = struct.Struct("<4sBBHqqqdd")
_MAGIC = b"MOA2"
NEVER_STOP = 2**62
"""`stop_at` where no user wants to stop."""


class Malformed(ValueError):
    """A message that no correct peer sends; the text says why."""


class Kind(IntEnum):
    """The kinds of messages; see above."""

    PULL, ROWS, PUSH, PATCH, APPLIED, LOOK_UP, FOUND, SYNC, SYNCED = range(9)
    DENSE, RESERVE, DISPATCH, ENTER, TOKEN, DONE, FINISHED = range(9, 16)
    JOIN, WELCOME, REFUSE, ANSWER, FILL, FILLED = range(16, 22)


class Sync(IntEnum):
    """The operations of a sync server."""

    WRITE, READ, EXCHANGE = range(3)


@dataclass(frozen=True)
class Message:
    """One message.

    Attributes:
        kind: see above.
        batch_index: the batch; of LOOK_UP, FOUND, SYNC, SYNCED and DENSE the number of the request.
        arrays: the frames after the header.
        table: of LOOK_UP and FOUND; of SYNC the operation; of ANSWER and FILLED the shard.
        final: of ROWS: no patch will follow; of RESERVE and DISPATCH: see above.
        stop_at: of PUSH, ROWS, PATCH and APPLIED: all trainers end before this batch.
        step: in modes that dispatch batches, of TOKEN and PUSH: the token; of APPLIED, ANSWER and FILLED: the shard's
            global step; of ENTER: the batch's examples.
        share: of PUSH: the trainer's part of the batch.
        factor: of PUSH: by which the learning rate is multiplied.
    """

    kind: Kind
    batch_index: int
    arrays: Sequence[np.ndarray] = field(default=())
    table: int = 0
    final: bool = False
    stop_at: int = NEVER_STOP
    step: int = 0
    share: float = 1.0
    factor: float = 1.0

    def frames(self) -> list[Buffer]:
        """Returns the message as frames."""
        header = _HEADER.pack(
            _MAGIC, self.kind, self.final, self.table, self.batch_index, self.stop_at, self.step, self.share,
            self.factor,
        )  # fmt: skip
        return [header, *(np.ascontiguousarray(each).reshape(-1).view(np.uint8).data for each in self.arrays)]


def parse(frames: Frames) -> tuple[Message, Frames]:
    """Returns the message without its arrays, and the frames that hold them.

    Raises:
        Malformed: the header is missing or invalid.
    """
    if not frames or len(frames[0]) != _HEADER.size:
        raise Malformed("no header")
    magic, kind, final, table, batch_index, stop_at, step, share, factor = _HEADER.unpack(frames[0])
    if magic != _MAGIC or kind >= len(Kind) or final > 1 or min(batch_index, stop_at, step) < 0:
        raise Malformed("not a header of ours")
    if not (0 <= share <= 1 and 0 < factor <= 1):
        raise Malformed("a share or a factor outside of 0 to 1")
    return Message(Kind(kind), batch_index, (), table, bool(final), stop_at, step, share, factor), frames[1:]


def array(frame: Buffer, dtype: type[np.generic], *shape: int) -> np.ndarray:
    """Returns a read-only view of a frame as an array; -1 stands for the length that follows from the frame's size.

    Raises:
        Malformed: the frame's size does not fit.
    """
    size, item = memoryview(frame).nbytes, np.dtype(dtype).itemsize
    row = item * int(np.prod([length for length in shape if length >= 0]))
    if (row and size % row) or (-1 not in shape and size != row) or (not row and size):
        raise Malformed(f"{size} bytes are not {np.dtype(dtype)} {list(shape)}")
    return np.frombuffer(frame, dtype).reshape(shape) if size else np.zeros([max(n, 0) for n in shape], dtype)
