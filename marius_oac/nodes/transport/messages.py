"""What trainers and shards say to each other, as frames of bytes: a fixed header, then raw little-endian arrays.

| kind | from | frames after the header |
|---|---|---|
| PULL | trainer | what is asked for of each table: rows, or vocabularies, keys and checks, and `Bags` if it pools |
| ROWS | shard | values of each table, float32 [n, D], in the order asked, sums after rows |
| PUSH | trainer | gradients of each table, float32 [n, D], in the order of the pull |
| PATCH | shard | of each table: places in the pull, int64 [k], and their newest values, float32 [k, D] |
| APPLIED | shard | none: everything up to this batch is in the rows |
| LOOK_UP | trainer | as PULL, of one table and never of sums, for those who only look |
| FOUND | shard | its values, and which of them were ever trained, bool [n] |
| SYNC | trainer | dense parameters for the sync server of EASGD, none to read them; `table` says what for: `Sync` |
| SYNCED | shard | w_ps |
| DENSE | trainer | none: it asks for the dense parameters that this shard has, with the optimizer's state |
| FOUND | shard | of DENSE: float32 [n], as `DenseSlice.state` gives it |

In modes that dispatch batches (`modes`) the first shard's node dispatches batches:

| kind | from | frames after the header |
|---|---|---|
| RESERVE | trainer | none: which batch is its next one; `final`: the user wants to stop |
| DISPATCH | coordinator | none: batch `batch_index`; `final`: there is none left |
| ENTER | trainer | none: it is about to pull batch `batch_index` |
| TOKEN | coordinator | none: `step` is the batch's token; comes when the trainer may go on |
| DONE | trainer | steps of the shards, int64 [S], which all have taken batch `batch_index`; its loss, float64 [1] |
| FINISHED | coordinator | none: no batch is left, none is out; the next one would be `batch_index` |
| JOIN | elastic worker | none: it wants to know the run, before anything else |
| WELCOME | coordinator | the run as JSON (`training.elastic`) |
| REFUSE | coordinator | batches, int64 [n], of worker `batch_index`, which is gone: the shard takes them no more |
| ANSWER | trainer | which of them its shard, number `table`, has settled, bool [n]; `step` is where it is |
| FILL | coordinator | tokens, int64 [n], of places that this trainer's shard fills with nothing |
| FILLED | trainer | none: done; `table` and `step` as in ANSWER |

Nothing here is ever unpickled; sizes are checked before they are used. Whatever does not fit is `Malformed`.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np

_HEADER = struct.Struct("<4sBBHqqqdd")
_MAGIC = b"MOA2"
NEVER_STOP = 2**62
"""`stop_at` where nobody wants to stop."""


class Malformed(ValueError):
    """A message that none of us sends."""


class Kind(IntEnum):
    PULL, ROWS, PUSH, PATCH, APPLIED, LOOK_UP, FOUND, SYNC, SYNCED = range(9)
    DENSE, RESERVE, DISPATCH, ENTER, TOKEN, DONE, FINISHED = range(9, 16)
    JOIN, WELCOME, REFUSE, ANSWER, FILL, FILLED = range(16, 22)


class Sync(IntEnum):
    """What a sync server is asked to do."""

    WRITE, READ, EXCHANGE = range(3)


@dataclass(frozen=True)
class Message:
    """One message.

    Attributes:
        sequence: the batch it is about; of LOOK_UP, FOUND, SYNC, SYNCED and DENSE the number of the question.
        table: of LOOK_UP and FOUND; of SYNC what is to be done.
        final: of ROWS: no patch will follow; of RESERVE and DEAL: see above.
        stop_at: of PUSH, ROWS, PATCH and APPLIED: all trainers end before this batch.
        step: in modes that dispatch batches, of TOKEN and PUSH: the token; of APPLIED, ANSWER and FILLED: the global
            step that the shard is at; of ENTER: the batch's examples.
        share, factor: of PUSH: the trainer's part of the batch; what the learning rate is multiplied with.
        arrays: the frames, flat.
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

    def frames(self) -> list:
        """As bytes-like objects."""
        header = _HEADER.pack(
            _MAGIC, self.kind, self.final, self.table, self.batch_index, self.stop_at, self.step, self.share,
            self.factor,
        )  # fmt: skip
        return [header, *(np.ascontiguousarray(each).reshape(-1).view(np.uint8).data for each in self.arrays)]


def parse(frames: Sequence) -> tuple[Message, Sequence]:
    """The message without its arrays, and the frames that hold them.

    Raises:
        Malformed: no header, or not one of ours.
    """
    if not frames or len(frames[0]) != _HEADER.size:
        raise Malformed("no header")
    magic, kind, final, table, batch_index, stop_at, step, share, factor = _HEADER.unpack(frames[0])
    if magic != _MAGIC or kind >= len(Kind) or final > 1 or min(batch_index, stop_at, step) < 0:
        raise Malformed("not a header of ours")
    if not (0 <= share <= 1 and 0 < factor <= 1):
        raise Malformed("a share or a factor outside of 0 to 1")
    return Message(Kind(kind), batch_index, (), table, bool(final), stop_at, step, share, factor), frames[1:]


def array(frame, dtype: type, *shape: int) -> np.ndarray:
    """A frame as an array; -1 is a length that the frame's size says. A view, not to be written.

    Raises:
        Malformed: the frame's size does not fit.
    """
    size, item = memoryview(frame).nbytes, np.dtype(dtype).itemsize
    row = item * int(np.prod([length for length in shape if length >= 0]))
    if (row and size % row) or (-1 not in shape and size != row) or (not row and size):
        raise Malformed(f"{size} bytes are not {np.dtype(dtype)} {list(shape)}")
    return np.frombuffer(frame, dtype).reshape(shape) if size else np.zeros([max(n, 0) for n in shape], dtype)
