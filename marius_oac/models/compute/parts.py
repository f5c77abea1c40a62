"""The class that a configuration names: one of the package by its name, or one of the user's by FILE.py:CLASS."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

from marius_oac.config.parts import Part, own_file
from marius_oac.errors import ConfigError
from marius_oac.models.compute.user_code import blaming_frames, load_own

Base = TypeVar("Base")


def part_class(name: str, shipped: Mapping[str, Part], base: type[Base], key: str) -> type[Base]:
    """The class of a name.

    Args:
        shipped: those of the package.
        base: which the user's class must be derived from; users import it from `marius_oac`.
        key: of the configuration, for messages.

    Raises:
        ConfigError: there is no such name, file or class.
    """
    if name in shipped:
        module, _, attribute = shipped[name].place.partition(":")
        found: type[Base] = getattr(importlib.import_module(f"marius_oac.models.{module}"), attribute)
        return found
    own = own_file(name)
    if own is None:
        what = key.rpartition(".")[2]
        raise ConfigError(f"there is no {what} {name!r}; known: {', '.join(shipped)}, or FILE.py:CLASS", key)
    path, attribute = own
    loaded = load_own(path, attribute, key)
    if not (isinstance(loaded, type) and issubclass(loaded, base)):
        raise ConfigError(f"{path} has no class {attribute!r} derived from marius_oac.{base.__name__}", key)
    missing = sorted(getattr(loaded, "__abstractmethods__", ()))
    if missing:
        raise ConfigError(f"{path}: class {attribute!r} has no {missing[0]}", key)
    return loaded


def blaming_own(name: str, key: str) -> AbstractContextManager[None]:
    """Within the block, errors in the file of FILE.py:CLASS name its line; nothing happens for another name."""
    own = own_file(name)
    return blaming_frames([own[0]], key) if own else nullcontext()
