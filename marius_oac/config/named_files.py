"""Which keys name files: metadata of their fields. Imports neither torch nor numba."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic import BaseModel


@dataclass(frozen=True)
class Named:
    """Says of a field what its text, or each of its texts, names; `words` name no file."""

    kind: str
    words: tuple[str, ...] = field(default=(), compare=False)


FILE = Named("file")
"""A file, a folder, or a pattern of files."""
GRAPH = Named("graph")
"""A graph's folder, or a known data set."""
MODULE = Named("module")
"""FILE.py:NAME, or the name of something built in."""

Model = TypeVar("Model", bound=BaseModel)
_Change = Callable[[str, Named, str], str]


def with_named(section: Model, changes: Mapping[Named, Callable[[str], str]]) -> Model:
    """Returns a copy of a section, and of those in it, whose texts that name files are changed, by what they name."""
    return _with(section, "", lambda key, mark, text: changes[mark](text) if mark in changes else text)


def named(section: BaseModel, kind: Named) -> Iterator[tuple[str, str]]:
    """The keys of a section, and of those in it, that name files of one kind, each with a text; items of a list have
    the list's key."""
    found: list[tuple[str, str]] = []

    def seen(key: str, mark: Named, text: str) -> str:
        if mark == kind:
            found.append((key, text))
        return text

    _with(section, "", seen)
    yield from found


def _with(section: Model, prefix: str, change: _Change, listed: bool = False) -> Model:
    changed: dict[str, Any] = {}
    for name, about in type(section).model_fields.items():
        before, key = getattr(section, name), prefix if listed else f"{prefix}.{name}".lstrip(".")
        mark = next((each for each in about.metadata if isinstance(each, Named)), None)
        after = _changed(before, key, mark, change)
        if after != before:
            changed[name] = after
    return section.model_copy(update=changed) if changed else section


def _changed(value: Any, key: str, mark: Named | None, change: _Change, listed: bool = False) -> Any:
    if isinstance(value, BaseModel):
        return _with(value, key, change, listed)
    if isinstance(value, tuple):
        return tuple(_changed(each, key, mark, change, listed=True) for each in value)
    return change(key, mark, value) if mark and isinstance(value, str) and value not in mark.words else value
