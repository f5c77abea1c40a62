"""Messages between trainers and shards, as frames of bytes: a fixed header, then raw little-endian arrays.

Each kind is a type, with a field for all that it says. A field is a number of the header (`Slot`) or one frame
(`Column`), and its annotation says which, and what it may hold. Some kinds carry frames of each table instead, whose
sizes follow from what was pulled; receivers view these with `array`. docs/nodes.md says what they are for.

Guarantees:
- Nothing is ever unpickled, and nothing is allocated by a size that a message states: arrays are views of its frames.
- `parse` returns fields that hold what their annotations say, or raises `Malformed`. What follows from the messages
  before, such as the number of rows that were pulled, is checked where it is known.
"""

from __future__ import annotations

import math
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import IntEnum
from typing import Annotated, Any, ClassVar, NamedTuple, TypeAlias, dataclass_transform, get_args, get_type_hints

import numpy as np

from marius_oac.nodes.transport.contract import Buffer, Frames

_HEADER = struct.Struct("<4sBBHqqqdd")
_MAGIC = b"MOA2"
NEVER_STOP = 2**62
"""`stop_at` where no user wants to stop; also the largest number that a message holds."""
_UNUSED = {"final": 0, "table": 0, "batch_index": 0, "stop_at": NEVER_STOP, "step": 0, "share": 1.0, "factor": 1.0}
"""The slots of the header after the kind, in order, and what they hold in messages that do not use them."""


class Malformed(ValueError):
    """A message that no correct peer sends; the text says why."""


class Kind(IntEnum):
    """The kinds of messages; each is a type below."""

    PULL, ROWS, PUSH, PATCH, APPLIED, LOOK_UP, FOUND, SYNC, SYNCED = range(9)
    DENSE, RESERVE, DISPATCH, ENTER, TOKEN, DONE, FINISHED = range(9, 16)
    JOIN, WELCOME, REFUSE, ANSWER, FILL, FILLED = range(16, 22)
    READ, EXAMPLES = range(22, 24)


class Operation(IntEnum):
    """The operations of a sync server."""

    WRITE, READ, EXCHANGE = range(3)


class Slot(NamedTuple):
    """A number of the header: the name of its place there, and the least and the largest that it may be."""

    name: str
    low: float = 0
    high: float = NEVER_STOP
    type: Callable[[Any], float] = int

    def read(self, value: float) -> float:
        """Returns the number. Raises Malformed if it may not be that."""
        if not self.low <= value <= self.high:
            raise Malformed(f"{value} is not from {self.low} to {self.high}")
        return self.type(value)


class Column(NamedTuple):
    """A frame that is an array: its type, the least and the largest element, the number of elements (-1: any), and
    whether the frame may be missing, which the last one of a message may."""

    dtype: type[np.generic]
    low: float = -math.inf
    high: float = math.inf
    length: int = -1
    optional: bool = False

    def read(self, frame: Buffer) -> np.ndarray:
        """Returns a view of the frame. Raises Malformed if it does not fit."""
        found = array(frame, self.dtype, self.length)
        numbers = found.view(np.uint8) if found.dtype == np.bool_ else found
        if math.isfinite(self.low) and found.size and not self.low <= numbers.min() <= numbers.max() <= self.high:
            raise Malformed(f"{numbers.min()} to {numbers.max()} are not from {self.low} to {self.high}")
        return found


_Number: TypeAlias = Annotated[int, Slot("batch_index")]
_Step: TypeAlias = Annotated[int, Slot("step")]
_StopAt: TypeAlias = Annotated[int, Slot("stop_at")]
_Span: TypeAlias = Annotated[int, Slot("stop_at")]
_Bytes: TypeAlias = Annotated[np.ndarray, Column(np.uint8)]
_Table: TypeAlias = Annotated[int, Slot("table", 0, 2**16 - 1)]
_Flag: TypeAlias = Annotated[bool, Slot("final", 0, 1, bool)]
_Floats: TypeAlias = Annotated[np.ndarray, Column(np.float32)]
_Numbers: TypeAlias = Annotated[np.ndarray, Column(np.int64, 0, NEVER_STOP)]
_OfTables: TypeAlias = Annotated[Frames, None]


@dataclass_transform(frozen_default=True, eq_default=False)
class Message:
    """The base of all messages. Its subclasses are frozen dataclasses, without being decorated; their arrays are not
    compared, so `==` is identity."""

    kind: ClassVar[Kind]
    slots: ClassVar[list[tuple[str, Slot]]]
    """All numbers of the header, in order, each with its field; "" where this kind has none for it."""
    columns: ClassVar[list[tuple[str, Column]]]
    """The fields that are a frame each, in order."""
    of_tables: ClassVar[str | None]
    """The field with frames of each table, instead of columns."""

    def __init_subclass__(cls, kind: Kind | None = None):
        dataclass(frozen=True, eq=False)(cls)
        if kind is None:
            return
        cls.kind, TYPES[kind] = kind, cls
        hints = get_type_hints(cls, include_extras=True)
        rules = {each.name: get_args(hints[each.name])[1] for each in fields(cls)}  # type: ignore[arg-type]
        used = {rule.name: (name, rule) for name, rule in rules.items() if isinstance(rule, Slot)}
        cls.slots = [used.get(name, ("", Slot(name, unused, unused))) for name, unused in _UNUSED.items()]
        cls.columns = [(name, rule) for name, rule in rules.items() if isinstance(rule, Column)]
        cls.of_tables = next((name for name, rule in rules.items() if rule is None), None)

    def frames(self) -> list[Buffer]:
        """Returns the message as frames; its fields are not checked."""
        header = [getattr(self, name) if name else slot.low for name, slot in self.slots]
        arrays = getattr(self, self.of_tables) if self.of_tables else [getattr(self, name) for name, _ in self.columns]
        sent = [np.ascontiguousarray(memoryview(each)) for each in arrays if each is not None]
        return [_HEADER.pack(_MAGIC, self.kind, *header), *(each.reshape(-1).view(np.uint8).data for each in sent)]


TYPES: dict[int, type[Message]] = {}
"""The type of each kind."""


def parse(frames: Frames) -> Message:
    """Returns the message of these frames, with views of them.

    Raises:
        Malformed: it is no message, or some of its fields hold what they may not; the text names each of these.
    """
    if not frames or memoryview(frames[0]).nbytes != _HEADER.size:
        raise Malformed("no header")
    magic, number, *numbers = _HEADER.unpack(frames[0])
    if magic != _MAGIC or number not in TYPES:
        raise Malformed("not a header of ours")
    made, arrays, wrong = TYPES[number], frames[1:], []
    least, most = sum(not column.optional for _, column in made.columns), len(made.columns)
    if not made.of_tables and not least <= len(arrays) <= most:
        wrong.append(f"{len(arrays)} frames, not {least if least == most else f'{least} to {most}'}")
    found: dict[str, Any] = {made.of_tables: arrays} if made.of_tables else {}
    rules: list[tuple[str, Slot | Column]] = [*made.slots, *made.columns]
    for (name, rule), value in zip(rules, [*numbers, *arrays], strict=False):
        try:
            found[name] = rule.read(value)
        except Malformed as error:
            wrong.append(f"{name or 'header'}: {error}")
    if wrong:
        raise Malformed(f"{made.kind.name}: {'; '.join(wrong)}")
    found.pop("", None)
    return made(**found)


def array(frame: Buffer, dtype: type[np.generic], *shape: int) -> np.ndarray:
    """Returns a read-only view of a frame as an array; -1 stands for the length that follows from the frame's size.

    Raises:
        Malformed: the frame's size does not fit.
    """
    size, item = memoryview(frame).nbytes, np.dtype(dtype).itemsize
    row = item * math.prod(length for length in shape if length >= 0)
    if (row and size % row) or (-1 not in shape and size != row) or (not row and size):
        raise Malformed(f"{size} bytes are not {np.dtype(dtype)} {list(shape)}")
    return np.frombuffer(frame, dtype).reshape(shape) if size else np.zeros([max(n, 0) for n in shape], dtype)


class OfBatch(Message):
    """The base of messages about a batch."""

    batch_index: _Number


class OfRequest(Message):
    """The base of requests beside pulls and pushes, which have numbers, and of their answers."""

    number: _Number


class OfWorker(Message):
    """The base of messages about a worker that is gone."""

    worker: _Number


class Pull(OfBatch, kind=Kind.PULL):
    """A trainer's request, of each table: rows; or vocabularies, keys and checks, how often each was seen where keys
    are admitted late, and `Bags` if the table pools."""

    asked: _OfTables


class Rows(OfBatch, kind=Kind.ROWS):
    """A shard's answer: values of each table, [n, D] as `shards.values` says, in the order of the request, sums after
    rows; then, where batches are dispatched, its slice of the dense parameters. With `final` no patch follows."""

    values: _OfTables
    final: _Flag
    stop_at: _StopAt = NEVER_STOP


class Push(OfBatch, kind=Kind.PUSH):
    """A trainer's gradients of each table, float32 [n, D], in the order of the pull; where batches are dispatched with
    their token, and then those of the dense parameters, and their epoch. Of several blocks of virtual parts: of each
    table bits, which rows each block has, and their gradients (`parts.batch.frames_of`).

    Attributes:
        share: the trainer's part of the batch.
        factor: by which the learning rate is multiplied.
        stop_at: all trainers end before this batch.
    """

    gradients: _OfTables
    share: Annotated[float, Slot("share", 0.0, 1.0, float)] = 1.0
    factor: Annotated[float, Slot("factor", math.ulp(0.0), 1.0, float)] = 1.0
    stop_at: _StopAt = NEVER_STOP
    token: _Step = 0


class Patch(OfBatch, kind=Kind.PATCH):
    """A shard's news of a pull, of each table: positions in it, int64 [k], and their newest values, [k, D]."""

    newer: _OfTables
    stop_at: _StopAt = NEVER_STOP


class Applied(OfBatch, kind=Kind.APPLIED):
    """Everything up to this batch is in the rows; where batches are dispatched: the shard has taken this one, and is
    at this global step."""

    stop_at: _StopAt = NEVER_STOP
    step: _Step = 0


class LookUp(OfRequest, kind=Kind.LOOK_UP):
    """As `Pull`, of one table and never of sums; changes nothing."""

    table: _Table
    asked: _OfTables


class Found(OfRequest, kind=Kind.FOUND):
    """The answer to `LookUp`: values of the rows, and which of them were ever trained. That to `Dense`: a slice with
    the optimizer's state, as `DenseSlice.state` returns it, and nothing in `known`."""

    values: _Floats
    known: Annotated[np.ndarray | None, Column(np.bool_, 0, 1, optional=True)] = None
    table: _Table = 0


class Sync(OfRequest, kind=Kind.SYNC):
    """Dense parameters for the sync server of EASGD; none to read them."""

    operation: Annotated[Operation, Slot("table", 0, len(Operation) - 1, Operation)]
    values: Annotated[np.ndarray | None, Column(np.float32, optional=True)] = None


class Synced(OfRequest, kind=Kind.SYNCED):
    """The answer: w_ps."""

    values: _Floats


class Dense(OfRequest, kind=Kind.DENSE):
    """Asks for a shard's slice of the dense parameters, with the optimizer's state."""


class Reserve(Message, kind=Kind.RESERVE):
    """A trainer asks for its next batch; `stop`: the user wants to stop."""

    stop: _Flag = False


class Dispatch(OfBatch, kind=Kind.DISPATCH):
    """The coordinator's answer: the batch; `final`: none is left."""

    final: _Flag = False


class Enter(OfBatch, kind=Kind.ENTER):
    """A trainer is about to pull a batch, of so many examples."""

    examples: _Step


class Token(OfBatch, kind=Kind.TOKEN):
    """The batch's token; sent when the trainer may go on."""

    token: _Step


class Done(OfBatch, kind=Kind.DONE):
    """All shards have taken the batch, and are at these steps, [S]; its loss, [1]."""

    steps: _Numbers
    loss: Annotated[np.ndarray, Column(np.float64, -sys.float_info.max, sys.float_info.max, 1)]


class Finished(OfBatch, kind=Kind.FINISHED):
    """No batch is left or outstanding; the next one would be `batch_index`."""


class Join(Message, kind=Kind.JOIN):
    """An elastic worker asks what the run is, before anything else."""


class Welcome(Message, kind=Kind.WELCOME):
    """The run as JSON (`nodes.training.elastic`), in bytes."""

    run: _Bytes


class Refuse(OfWorker, kind=Kind.REFUSE):
    """The batches of a worker that is gone: the shard takes them no more."""

    batches: _Numbers


class Answer(OfWorker, kind=Kind.ANSWER):
    """Which of these batches a shard has settled, and the shard's step."""

    settled: Annotated[np.ndarray, Column(np.bool_, 0, 1)]
    shard: _Table = 0
    step: _Step = 0


class Fill(OfWorker, kind=Kind.FILL):
    """The tokens of slots that a shard fills with no gradient."""

    tokens: _Numbers


class Filled(OfWorker, kind=Kind.FILLED):
    """Done; the shard's step."""

    shard: _Table = 0
    step: _Step = 0


class Read(OfRequest, kind=Kind.READ):
    """Asks for the trainer's portion of a span that the other trainer owns (`shards.spans`), in this reading of a
    file."""

    visit: _Step
    span: _Span


class Examples(OfRequest, kind=Kind.EXAMPLES):
    """The answer: the digests of the span's row groups, and the portion (`data.logs.packed`)."""

    span: _Span
    digests: _Bytes
    content: _Bytes
