"""Which of a folder's files hold data, and in which order they are read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path

from marius_oac.errors import InputError


def natural_order(name: str | Path) -> tuple[list[tuple[int, str]], str]:
    """A sort key with which day_9 comes before day_10."""
    parts = re.split(r"(\d+)", str(name))
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts], str(name)


def files_in(names: Mapping[str, bool], where: object) -> list[str]:
    """The names of a folder's files, in natural order.

    Those that begin with "." or "_" are left out: by such files Spark and Hive note how far they are.

    Args:
        names: of all that is in the folder, and whether it is a folder itself.
        where: what messages call the folder.

    Raises:
        InputError: it has no files, or has folders in it.
    """
    found = sorted((name for name in names if not name.startswith((".", "_"))), key=natural_order)
    inner = next((name for name in found if names[name]), None)
    if inner is not None:
        raise InputError(f"has a folder in it, {inner}: name the folders whose files are meant", where)
    if not found:
        raise InputError("has no files", where)
    return found


def matching(names: Mapping[str, bool], pattern: str, where: object) -> list[str]:
    """The names of a folder's files that match a pattern, in natural order. As in a shell, a * at the beginning matches
    no ".".

    Raises:
        InputError: there are none, or a folder is among them.
    """
    hidden = pattern.startswith(".")
    seen = (name for name in names if name.startswith(".") == hidden)
    found = sorted((name for name in seen if fnmatchcase(name, pattern)), key=natural_order)
    if not found:
        raise InputError("no file has such a name", where)
    if folder := next((name for name in found if names[name]), None):
        raise InputError(f"{folder} is a folder, not a file", where)
    return found
