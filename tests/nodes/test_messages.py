"""Every kind of message as bytes: the format, what is refused of it, and the page that lists them."""

import math
import struct
from dataclasses import FrozenInstanceError, fields

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marius_oac.nodes.dense.sync_server import SyncServer
from marius_oac.nodes.gba.modes import make_mode
from marius_oac.nodes.shards.shard import Shard
from marius_oac.nodes.transport import messages
from marius_oac.nodes.transport.messages import TYPES, Column, Kind, Malformed, Operation, parse
from tests.nodes.dispatched_world import World
from tests.nodes.test_protocol_simulation import OPTIMIZER, NumberedTable, keyed, store
from tests.nodes.wire import HEADER, SLOTS, framed, tell

FLOATS, NUMBERS, BYTES = np.array([1.5, math.nan], np.float32), np.array([0, 7]), np.arange(3, dtype=np.uint8)
BOOLS, LOSS = np.array([True, False]), np.array([0.5])
TABLES = [NUMBERS, FLOATS]
EXAMPLES = [
    (messages.Pull(3, TABLES), framed(0, 3, TABLES)),
    (messages.Rows(3, TABLES, True, 9), framed(1, 3, TABLES, final=1, stop_at=9)),
    (messages.Rows(3, [], False), framed(1, 3)),
    (messages.Push(3, TABLES, 0.25, 0.5, 9, 4), framed(2, 3, TABLES, share=0.25, factor=0.5, stop_at=9, step=4)),
    (messages.Push(3, TABLES), framed(2, 3, TABLES)),
    (messages.Patch(3, TABLES, 9), framed(3, 3, TABLES, stop_at=9)),
    (messages.Applied(3, 9, 4), framed(4, 3, stop_at=9, step=4)),
    (messages.LookUp(5, 2, [NUMBERS]), framed(5, 5, [NUMBERS], table=2)),
    (messages.Found(5, FLOATS, BOOLS, 2), framed(6, 5, [FLOATS, BOOLS], table=2)),
    (messages.Found(5, FLOATS), framed(6, 5, [FLOATS])),
    (messages.Sync(5, Operation.READ), framed(7, 5, table=1)),
    (messages.Sync(5, Operation.EXCHANGE, FLOATS), framed(7, 5, [FLOATS], table=2)),
    (messages.Synced(5, FLOATS), framed(8, 5, [FLOATS])),
    (messages.Dense(5), framed(9, 5)),
    (messages.Reserve(True), framed(10, final=1)),
    (messages.Dispatch(3), framed(11, 3)),
    (messages.Dispatch(3, True), framed(11, 3, final=1)),
    (messages.Enter(3, 50), framed(12, 3, step=50)),
    (messages.Token(3, 4), framed(13, 3, step=4)),
    (messages.Done(3, NUMBERS, LOSS), framed(14, 3, [NUMBERS, LOSS])),
    (messages.Finished(3), framed(15, 3)),
    (messages.Join(), framed(16)),
    (messages.Welcome(BYTES), framed(17, 0, [BYTES])),
    (messages.Refuse(6, NUMBERS), framed(18, 6, [NUMBERS])),
    (messages.Answer(6, BOOLS, 2, 4), framed(19, 6, [BOOLS], table=2, step=4)),
    (messages.Fill(6, NUMBERS), framed(20, 6, [NUMBERS])),
    (messages.Filled(6, 2, 4), framed(21, 6, table=2, step=4)),
    (messages.Read(6, 2, 4), framed(22, 6, step=2, stop_at=4)),
    (messages.Examples(6, 4, BYTES, BYTES), framed(23, 6, [BYTES, BYTES], stop_at=4)),
]  # fmt: skip


def as_bytes(frames):
    return [bytes(frame) for frame in frames]


def same(one, other):
    """Also of the same types."""
    if isinstance(one, list | tuple):
        return len(one) == len(other) and as_bytes(one) == as_bytes(other)
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    return type(one) is type(other) and one == other


@pytest.mark.parametrize("message, frames", EXAMPLES, ids=[type(message).__name__ for message, _ in EXAMPLES])
def test_the_bytes_are_the_format_and_say_what_was_said(message, frames):
    assert as_bytes(message.frames()) == frames
    assert type(parse(frames)) is type(message)
    for each in fields(message):
        assert same(getattr(message, each.name), getattr(parse(frames), each.name)), each.name
    with pytest.raises(FrozenInstanceError):
        message.kind = 3


def test_every_kind_has_a_type_of_its_own_and_an_example():
    kinds = {type(message): bytes(frames[0])[4] for message, frames in EXAMPLES}
    assert kinds == {found: kind for kind, found in TYPES.items()} and list(TYPES) == list(Kind)
    assert all(made.kind.name.replace("_", "") == made.__name__.upper() for made in kinds)


def numbers_of(slot):
    if slot.type is float:
        return st.floats(slot.low, slot.high)
    return st.integers(int(slot.low), int(slot.high)).map(slot.type)


def arrays_of(column):
    length = st.integers(0, 4) if column.length < 0 else st.just(column.length)
    low, high = max(column.low, -9.0), min(column.high, 9.0)
    made = st.builds(
        lambda count, seed: np.random.default_rng(seed).uniform(low, high + (high == 1), count), length, st.integers(0)
    )
    return (st.none() if column.optional else st.nothing()) | made.map(lambda found: found.astype(column.dtype))


def messages_of(made):
    said = {name: numbers_of(slot) for name, slot in made.slots if name}
    said |= {name: arrays_of(column) for name, column in made.columns}
    if made.of_tables:
        said[made.of_tables] = st.lists(arrays_of(Column(np.float32)) | arrays_of(Column(np.int64)), max_size=7)
    return st.builds(made, **said)


ANY = st.sampled_from([*TYPES.values()]).flatmap(messages_of)


@settings(max_examples=150, deadline=None)
@given(ANY)
def test_whatever_is_said_is_heard(message):
    heard = parse(as_bytes(message.frames()))
    assert type(heard) is type(message)
    assert all(same(getattr(message, each.name), getattr(heard, each.name)) for each in fields(message))
    assert as_bytes(heard.frames()) == as_bytes(message.frames())


def refused(frames, *names):
    """The reason, one line that names these fields."""
    with pytest.raises(Malformed) as raised:
        parse(frames)
    (line,) = str(raised.value).splitlines()
    assert all(f"{name}: " in line for name in names), line
    return line


BIG = 2**62
IN_RANGE = {
    "final": lambda value: value in (0, 1),
    "table": lambda value: 0 <= value < 2**16,
    "batch_index": lambda value: 0 <= value <= BIG,
    "stop_at": lambda value: 0 <= value <= BIG,
    "step": lambda value: 0 <= value <= BIG,
    "share": lambda value: 0 <= value <= 1,
    "factor": lambda value: 0 < value <= 1,
}
TRIED = dict.fromkeys(("batch_index", "stop_at", "step"), [-(2**63), -1, 0, 1, BIG, BIG + 1, 2**63 - 1])
TRIED |= dict.fromkeys(
    ("share", "factor"), [-math.inf, -0.1, 0.0, 5e-324, 0.5, 1.0, 1.0000001, 2.0, math.inf, math.nan]
)
TRIED |= {"final": [0, 1, 2, 255], "table": [0, 1, 2, 3, 2**16 - 1]}


@pytest.mark.parametrize("message, frames", EXAMPLES, ids=[type(message).__name__ for message, _ in EXAMPLES])
def test_each_number_that_may_not_be_is_refused_with_the_others(message, frames):
    """Also numbers that this kind does not have: they hold what they always hold."""
    every, wrong = dict(zip(SLOTS, HEADER.unpack(frames[0])[2:], strict=True)), {}
    for name, slot in message.slots:
        for value in TRIED[slot.name]:
            good = IN_RANGE[slot.name](value) if name else value == SLOTS[slot.name]
            good &= name != "operation" or value <= 2
            said = [HEADER.pack(b"MOA2", message.kind, *(every | {slot.name: value}).values()), *frames[1:]]
            if good:
                assert not name or getattr(parse(said), name) == value
            else:
                assert f"{value} is not from " in refused(said, name or "header")
                wrong[name or slot.name] = slot.name, value
    said = every | dict(wrong.values())
    line = refused(
        [HEADER.pack(b"MOA2", message.kind, *said.values()), *frames[1:]],
        *(name for name in wrong if name not in SLOTS or name in vars(message)),
    )
    assert line.count(" is not from ") == len(wrong) >= 6


COLUMNS = [(made, at, name) for made in TYPES.values() for at, (name, _) in enumerate(made.columns, 1)]


@pytest.mark.parametrize("made, at, name", COLUMNS, ids=[f"{made.__name__}.{name}" for made, _, name in COLUMNS])
def test_each_frame_that_does_not_fit_is_refused(made, at, name):
    frames = next(frames for message, frames in EXAMPLES if type(message) is made and len(frames) > at)
    dtype, whole = dict(made.columns)[name].dtype, frames[at]
    item = np.dtype(dtype).itemsize
    wrong = {
        np.uint8: [],
        np.float32: [],
        np.bool_: [b"\2", b"\xff"],
        np.int64: [struct.pack("<q", each) for each in (-1, BIG + 1, -(2**63))],
        np.float64: [struct.pack("<d", each) for each in (math.nan, math.inf, -math.inf)],
    }[dtype]
    said = [each + whole[item:] for each in wrong] + [whole[:-item] + each for each in wrong]
    said += [whole[:-1], whole + b"\1"] * (item > 1) + [b"", whole * 2] * (name == "loss")
    for each in said:
        refused([*frames[:at], each, *frames[at + 1 :]], name)
    assert said or dtype is np.uint8


@pytest.mark.parametrize("made", TYPES.values(), ids=lambda made: made.__name__)
def test_frames_too_few_or_too_many_are_refused(made):
    for message, frames in EXAMPLES:
        if type(message) is not made or made.of_tables:
            continue
        least = len(frames) - 1 - (made in (messages.Found, messages.Sync) and len(frames) > len(made.columns))
        for count in {*range(len(made.columns) + 3)} - {least, len(made.columns)}:
            said = [frames[0], *[*frames[1:], b"", b"", b""][:count]]
            assert f"{count} frames, not {least}" in refused(said)


@pytest.mark.parametrize(
    "frames", [[], [b""], [framed(9)[0][:-1]], [framed(9)[0] + b"\0"], [framed(24)[0]], [framed(255)[0]],
               [b"MOA1" + framed(9)[0][4:]], [np.zeros(48, np.int64)]],
    ids=["none", "empty", "short", "long", "kind 24", "kind 255", "magic", "long elements"],
)  # fmt: skip
def test_what_has_no_header_of_ours_is_refused(frames):
    assert refused(frames) in ("no header", "not a header of ours")


def test_arrays_are_views_of_what_came():
    """Nothing is allocated by what a message says of its size."""
    for _, frames in EXAMPLES:
        for name, value in vars(parse(frames)).items():
            values = value if isinstance(value, list) else [value] * isinstance(value, np.ndarray)
            for each, frame in zip(values, frames[1:] if isinstance(value, list) else [None], strict=False):
                assert each is frame or not each.flags.owndata, name


@st.composite
def disturbed(draw):
    """Frames of a message, of which some are cut, longer, missing, twice there, or hold other bytes."""
    frames = as_bytes(draw(ANY).frames())
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(frames) - 1)) if frames else 0
        found = bytearray(frames[at]) if frames else bytearray()
        match draw(st.integers(0, 5)):
            case 0 if found:
                found[draw(st.integers(0, len(found) - 1))] = draw(st.integers(0, 255))
            case 1:
                found += draw(st.binary(max_size=9))
            case 2:
                del found[: draw(st.integers(0, 9))]
            case 3:
                frames.insert(at, draw(st.binary(max_size=16)))
            case 4:
                del frames[at : at + 1]
            case _ if found:
                place = draw(st.integers(4, max(4, len(found) - 1)))
                found[place : place + 8] = draw(st.binary(min_size=8, max_size=8))
        if at < len(frames):
            frames[at] = bytes(found)
    return frames


@settings(max_examples=400, deadline=None)
@given(disturbed())
def test_bytes_are_refused_or_are_those_of_what_is_heard(frames):
    try:
        message = parse(frames)
    except Malformed as error:
        assert len(str(error).splitlines()) == 1
    else:
        assert as_bytes(message.frames()) == frames


def shards():
    mode = make_mode("gba", 2, 2, 1)
    yield from (Shard([NumberedTable(store(0), OPTIMIZER)], 2, lockstep) for lockstep in (True, False))
    yield from (Shard([keyed(after)], 1, sync=SyncServer(0.5)) for after in (1, 2))
    yield from World(mode, 2, 0, 3, 2, 1, 2, 0).nodes


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 1), ANY), min_size=1, max_size=12))
def test_a_shard_refuses_in_no_other_way(said):
    for shard in shards():
        for peer, message in said:
            try:
                answers = tell(shard, peer, as_bytes(message.frames()))
            except Malformed as error:
                assert len(str(error).splitlines()) == 1
            else:
                assert all(type(parse(as_bytes(answer.frames()))) is type(answer) for _, answer in answers)


@pytest.mark.parametrize(
    "operation, values, why",
    [
        (Operation.READ, None, "has no parameters yet"),
        (Operation.EXCHANGE, FLOATS, "has no parameters yet"),
        (Operation.WRITE, None, "values to read, or none to write"),
        (Operation.EXCHANGE, None, "values to read, or none to write"),
        (Operation.READ, FLOATS, "values to read, or none to write"),
    ],
)
def test_a_synchronisation_that_does_not_fit_is_refused(operation, values, why):
    shard = Shard([keyed()], 1, sync=SyncServer(0.5))
    with pytest.raises(Malformed, match=f"a synchronisation that does not fit: .*{why}"):
        tell(shard, 0, messages.Sync(1, operation, values).frames())
    for number, (kind, expected) in enumerate(((0, [2, 4]), (2, [3, 4]), (1, [3, 4]))):
        given = None if kind == 1 else np.array([2 + kind, 4], np.float32)
        ((_, answer),) = tell(shard, 0, messages.Sync(number, Operation(kind), given).frames())
        assert isinstance(answer, messages.Synced) and answer.number == number and answer.values.tolist() == expected
