"""Types of kernels' arguments as text, for the record of what runs compile (`signatures.txt`).

| text | type |
|---|---|
| `int64`, `float32`, `bool` | a number |
| `=3` | an integer that the compiler knows |
| `float32[2C]`, `const float32[2C]` | an array of two axes in C order, writable or not |
| `(int64, float32)` | a tuple |
| `kernels.cpu.rows.Table(int64, (), ...)` | a named tuple of the package |
| `types.Side:int64` | an enumeration of the package |
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any

from numba import types

PACKAGE = "marius_oac."
_TOKEN = re.compile(r"\s*(const |=-?\d+|[\w.]+(?:\[\d+[CFA]\]|:\w+)?|[(),])")
_ARRAY = re.compile(r"(\w+)\[(\d+)([CFA])\]")


def text_of(given: Any) -> str:
    """The text of a type, or of a tuple of types. Raises ValueError for a type that has none."""
    if isinstance(given, tuple):
        return f"({', '.join(map(text_of, given))})"
    if isinstance(given, types.BaseNamedTuple):
        return _place(given.instance_class) + text_of(tuple(given))
    elif isinstance(given, types.IntEnumMember):
        return f"{_place(given.instance_class)}:{given.dtype}"
    elif isinstance(given, types.BaseTuple):
        return text_of(tuple(given))
    elif isinstance(given, types.IntegerLiteral):
        return f"={given.literal_value}"
    elif type(given) is types.Array and given.aligned:
        return f"{'' if given.mutable else 'const '}{given.dtype}[{given.ndim}{given.layout}]"
    elif isinstance(given, types.Number | types.Boolean):
        return str(given)
    raise ValueError(f"no text for {given!r}")


def _place(found: type) -> str:
    if not found.__module__.startswith(PACKAGE):
        raise ValueError(f"no text for {found!r}")
    return f"{found.__module__.removeprefix(PACKAGE)}.{found.__qualname__}"


def types_of(text: str) -> tuple[Any, ...]:
    """The types of a text that `text_of` has made of a tuple. Raises ValueError for any other text."""
    tokens = [*_tokens(text)]
    if tokens[:1] != ["("]:
        raise ValueError(f"no types: {text!r}")
    found = _members(tokens)
    if tokens:
        raise ValueError(f"too much: {text!r}")
    return found


def _tokens(text: str) -> Iterator[str]:
    at = 0
    while at < len(text):
        if not (match := _TOKEN.match(text, at)):
            raise ValueError(f"not understood: {text[at:]!r}")
        yield match[1].strip()
        at = match.end()


def _members(tokens: list[str]) -> tuple[Any, ...]:
    _take(tokens, "(")
    found: list[Any] = []
    while tokens[:1] != [")"]:
        if found:
            _take(tokens, ",")
        found.append(_type(tokens))
    _take(tokens, ")")
    return tuple(found)


def _take(tokens: list[str], expected: str) -> None:
    if not tokens or tokens.pop(0) != expected:
        raise ValueError(f"{expected!r} is missing")


def _type(tokens: list[str]) -> Any:
    if not tokens:
        raise ValueError("a type is missing")
    if tokens[0] == "(":
        return _tuple(_members(tokens))
    word = tokens.pop(0)
    if word == "const" or _ARRAY.fullmatch(word):
        match = _ARRAY.fullmatch(tokens.pop(0) if word == "const" and tokens else word)
        if not match:
            raise ValueError(f"no array: {word!r}")
        return types.Array(_number(match[1]), int(match[2]), match[3], readonly=word == "const")
    if word.startswith("="):
        return types.literal(int(word[1:]))
    if ":" in word:
        name, _, number = word.partition(":")
        return types.IntEnumMember(attribute(name), _number(number))
    if "." in word:
        return _tuple(_members(tokens), attribute(word))
    return _number(word)


def _number(word: str) -> Any:
    found = getattr(types, word, None)
    if not isinstance(found, types.Number | types.Boolean):
        raise ValueError(f"no number: {word!r}")
    return found


def _tuple(members: Sequence[Any], named: type | None = None) -> Any:
    return types.BaseTuple.from_types(members, named)


def attribute(place: str) -> Any:
    """What a module of the package has under this name: `kernels.cpu.rows.Table`. Raises ValueError if nothing."""
    module, _, name = place.rpartition(".")
    try:
        return getattr(import_module(PACKAGE + module), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"no {place}: {error}") from None
