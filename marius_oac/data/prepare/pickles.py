"""Reads what a pickle says of arrays and lists, without doing what it says: nothing is imported, called or built.

A pickle is a program for a stack machine; Python's own machine imports and calls what the program names. This one knows
the operations that describe plain values, NumPy arrays and torch tensors. A named function is a `Name`, a pair of
texts, and of the few calls that are known only a description is kept: `Array`, `Tensor`. All others are refused. Bytes
of arrays stay in the file; a `Span` says where.

The operations are those of `pickletools` in Python's library, protocols 2 to 4.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

MOST_OPERATIONS = 1 << 26
"""Of a pickle. A list of texts takes two or three for each."""
_TEXT_BYTES = 1024  # of a text that is kept; a longer one is the bytes of an array
_MOST_TEXTS = 1 << 16  # different ones
_MARK = object()


class DamagedPickle(ValueError):
    """It is no pickle, is cut off, or has what is not read here."""


class Span(NamedTuple):
    """Bytes of the file: `length` from `offset` on. In protocol 2 each stands as the character of its number, and the
    text is in UTF-8 (`text`)."""

    offset: int
    length: int
    text: bool


class Name(NamedTuple):
    """A function or class that the pickle names."""

    module: str
    name: str


class Stored(NamedTuple):
    """The numbers of a tensor, which lie beside the pickle: class (such as `LongStorage`), key, how many they are."""

    kind: str
    key: str
    numbers: int


class Tensor(NamedTuple):
    """A torch tensor: its numbers, where it begins in them, shape and strides, counted in numbers."""

    stored: Stored
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(slots=True)
class Kind:
    """NumPy's name of a type (`i8`), and its byte order."""

    name: str
    order: str = "="


@dataclass(slots=True)
class Array:
    """A NumPy array. `data` is a list where its type is `O`."""

    shape: tuple[int, ...] = ()
    kind: Kind | None = None
    fortran: bool = False
    data: Span | bytes | list[Any] | None = None


def read_pickle(content: Any, start: int, stop: int) -> tuple[Any, int]:
    """The value of the pickle in `content[start:stop]`, bytes or a memory map, and where it ends.

    Returns:
        None, bool, int, float, str, dict (with texts as keys), list, tuple, or one of this module's classes.

    Raises:
        DamagedPickle: it is none, is cut off, or has what is not read here.
    """
    machine = _Machine(content, start, stop)
    try:
        for _ in range(MOST_OPERATIONS):
            code = machine.byte()
            if code == _STOP:
                return machine.stack.pop(), machine.place
            operation = _OPERATIONS.get(code)
            if operation is None:
                raise DamagedPickle(f"operation {bytes([code])!r} at byte {machine.place - 1:,} is not read here")
            operation(machine)
    except DamagedPickle:
        raise
    except (IndexError, TypeError, ValueError, AttributeError, OverflowError, struct.error):
        raise DamagedPickle(f"it is damaged at byte {machine.place:,}") from None
    raise DamagedPickle(f"it has more than {MOST_OPERATIONS:,} operations")


class _Machine:
    def __init__(self, content: Any, start: int, stop: int) -> None:
        self._content, self.place, self._stop = content, start, stop
        self.stack: list[Any] = []
        self.memo: list[Any] = []
        self._texts: dict[bytes, str] = {}

    def skip(self, count: int) -> int:
        """Goes on by so many bytes; returns where they begin."""
        begin, self.place = self.place, self.place + count
        if self.place > self._stop:
            raise DamagedPickle("it is cut off")
        return begin

    def bytes(self, count: int) -> bytes:
        begin = self.skip(count)
        return self._content[begin : begin + count]

    def byte(self) -> int:
        return self._content[self.skip(1)]

    def number(self, size: int, signed: bool = False) -> int:
        return int.from_bytes(self.bytes(size), "little", signed=signed)

    def check_protocol(self) -> None:
        """0 and 1 have other operations; 5 has other arrays."""
        found = self.byte()
        if not 2 <= found <= 4:
            raise DamagedPickle(f"it is a pickle of protocol {found}; 2, 3 and 4 are read here")

    def line(self) -> str:
        end = self._content.find(b"\n", self.place, min(self._stop, self.place + _TEXT_BYTES))
        if end < 0:
            raise DamagedPickle("it is cut off")
        return self.bytes(end + 1 - self.place)[:-1].decode()

    def text(self, length: int) -> str | Span:
        if length > _TEXT_BYTES:
            return Span(self.skip(length), length, True)
        found = self.bytes(length)
        known = self._texts.get(found)
        if known is None:
            if len(self._texts) == _MOST_TEXTS:
                raise DamagedPickle(f"it has more than {_MOST_TEXTS:,} different texts")
            known = self._texts[found] = found.decode("utf-8", "surrogatepass")
        return known

    def span(self, length: int) -> Span:
        return Span(self.skip(length), length, False)

    def since_mark(self) -> list[Any]:
        """Takes what is above the uppermost mark, and the mark."""
        place = len(self.stack) - 1
        while self.stack[place] is not _MARK:
            place -= 1
            if place < 0:
                raise IndexError
        found = self.stack[place + 1 :]
        del self.stack[place:]
        return found

    def last(self, count: int) -> tuple[Any, ...]:
        found = tuple(self.stack[-count:])
        if len(found) < count or any(each is _MARK for each in found):
            raise IndexError
        del self.stack[-count:]
        return found

    def remember(self, number: int) -> None:
        """Picklers count from 0."""
        if number != len(self.memo):
            raise IndexError
        self.memo.append(self.stack[-1])

    def recall(self, number: int) -> None:
        self.stack.append(self.memo[number])

    def add(self, items: Sequence[Any]) -> None:
        found = self.stack[-1]
        if type(found) is not list:
            raise TypeError
        found.extend(items)

    def set(self, items: Sequence[Any]) -> None:
        found = self.stack[-1]
        if type(found) is not dict or len(items) % 2 or any(type(key) is not str for key in items[::2]):
            raise TypeError
        found.update(zip(items[::2], items[1::2], strict=True))

    def call(self) -> None:
        function, arguments = self.last(2)
        if type(function) is not Name or type(arguments) is not tuple:
            raise TypeError
        known = _CALLS.get(function)
        if known is None:
            raise DamagedPickle(f"it calls {'.'.join(function)}, which is not read here")
        self.stack.append(known(*arguments))

    def build(self) -> None:
        thing, state = self.last(2)
        if type(thing) is Kind:
            thing.order = {"<": "<", ">": ">", "|": "=", "=": "="}[state[1]]
        elif type(thing) is Array:
            _, shape, kind, fortran, data = state
            fits = type(kind) is Kind and type(fortran) is bool and type(data) in (Span, bytes, list)
            if not fits or thing.data is not None:
                raise TypeError
            thing.shape, thing.kind, thing.fortran, thing.data = _lengths(shape), kind, fortran, data
        else:
            raise DamagedPickle("it builds an object that is not read here")
        self.stack.append(thing)

    def name(self) -> None:
        module, name = self.last(2)
        if type(module) is not str or type(name) is not str:
            raise TypeError
        self.stack.append(Name(module, name))

    def stored(self) -> None:
        """What torch calls a persistent id."""
        (found,) = self.last(1)
        what, kind, key, _, count = found[:5]
        if what != "storage" or type(kind) is not Name or type(key) is not str or type(count) is not int:
            raise TypeError
        self.stack.append(Stored(kind.name, key, count))


def _lengths(shape: Any) -> tuple[int, ...]:
    if type(shape) is not tuple or any(type(each) is not int or not 0 <= each < 1 << 48 for each in shape):
        raise TypeError
    return shape


def _encoded(text: Any, encoding: Any) -> Span | bytes:
    """Protocol 2 has no bytes: it has a text and encodes it."""
    if encoding != "latin1" or type(text) not in (str, Span):
        raise TypeError
    return text.encode("latin1") if type(text) is str else text


def _kind(name: Any, *_: Any) -> Kind:
    if type(name) is not str:
        raise TypeError
    return Kind(name)


def _empty_array(kind: Any, *_: Any) -> Array:
    if kind != Name("numpy", "ndarray"):
        raise TypeError
    return Array()


def _tensor(stored: Any, offset: Any, shape: Any, strides: Any, *_: Any) -> Tensor:
    if type(stored) is not Stored or type(offset) is not int or offset < 0:
        raise TypeError
    return Tensor(stored, offset, _lengths(shape), _lengths(strides))


_CALLS: dict[Name, Callable[..., Any]] = {
    Name("numpy.core.multiarray", "_reconstruct"): _empty_array,
    Name("numpy._core.multiarray", "_reconstruct"): _empty_array,
    Name("numpy", "dtype"): _kind,
    Name("_codecs", "encode"): _encoded,
    Name("__builtin__", "bytes"): lambda: b"",
    Name("builtins", "bytes"): lambda: b"",
    Name("collections", "OrderedDict"): lambda: {},
    Name("torch._utils", "_rebuild_tensor_v2"): _tensor,
}

_STOP = ord(".")
_Operation = Callable[[_Machine], None]


def _push(made: Callable[[_Machine], Any]) -> _Operation:
    return lambda machine: machine.stack.append(made(machine))


def _named(machine: _Machine) -> Name:
    return Name(machine.line(), machine.line())


_OPERATIONS: dict[int, _Operation] = {
    ord(code): operation
    for code, operation in {
        "\x80": lambda m: m.check_protocol(),
        "\x95": lambda m: m.skip(8),
        "(": _push(lambda m: _MARK),
        "N": _push(lambda m: None),
        "\x88": _push(lambda m: True),
        "\x89": _push(lambda m: False),
        "J": _push(lambda m: m.number(4, signed=True)),
        "K": _push(lambda m: m.number(1)),
        "M": _push(lambda m: m.number(2)),
        "\x8a": _push(lambda m: m.number(m.number(1), signed=True)),
        "G": _push(lambda m: struct.unpack(">d", m.bytes(8))[0]),
        "X": _push(lambda m: m.text(m.number(4))),
        "\x8c": _push(lambda m: m.text(m.number(1))),
        "\x8d": _push(lambda m: m.text(m.number(8))),
        "B": _push(lambda m: m.span(m.number(4))),
        "C": _push(lambda m: m.span(m.number(1))),
        "\x8e": _push(lambda m: m.span(m.number(8))),
        "}": _push(lambda m: {}),
        "]": _push(lambda m: []),
        ")": _push(lambda m: ()),
        "t": _push(lambda m: tuple(m.since_mark())),
        "\x85": _push(lambda m: m.last(1)),
        "\x86": _push(lambda m: m.last(2)),
        "\x87": _push(lambda m: m.last(3)),
        "q": lambda m: m.remember(m.number(1)),
        "r": lambda m: m.remember(m.number(4)),
        "\x94": lambda m: m.remember(len(m.memo)),
        "h": lambda m: m.recall(m.number(1)),
        "j": lambda m: m.recall(m.number(4)),
        "a": lambda m: m.add(m.last(1)),
        "e": lambda m: m.add(m.since_mark()),
        "s": lambda m: m.set(m.last(2)),
        "u": lambda m: m.set(m.since_mark()),
        "c": _push(_named),
        "\x93": lambda m: m.name(),
        "R": lambda m: m.call(),
        "b": lambda m: m.build(),
        "Q": lambda m: m.stored(),
    }.items()
}
"""In the order of `pickletools`: protocol and frame, mark, constants, numbers, texts, bytes, collections, memo, items,
names, calls, torch's storages."""
