"""The files that a user names: files, folders of files, patterns, and addresses of these."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from marius_oac.data.layout import MANIFEST
from marius_oac.data.reading.contents import files_in, natural_order
from marius_oac.data.reading.remote import is_address, listed, shown
from marius_oac.errors import InputError

Source = Path | str
"""A file, a folder or a pattern; or the address of one."""


def several(given: Source | Sequence[Source] | None) -> list[Source]:
    """What is given, as a list."""
    if given is None:
        return []
    return [given] if isinstance(given, (str, Path)) else list(given)


def files_of(given: Sequence[Source]) -> list[Source]:
    """All files and addresses of files, in the order given; those of a folder or pattern in natural order.

    Raises:
        InputError: as `paths_of` and `listed`; or a file is named twice.
    """
    found: list[Source] = []
    for each in given:
        found += listed(str(each)) if is_address(each) else paths_of(str(each))
    check_together(found)
    return found


def check_together(files: Sequence[Source]) -> None:
    """Raises InputError if a file is named twice."""
    seen: dict[str, str] = {}
    for file in files:
        name = shown(str(file))
        real = str(file) if is_address(file) else os.path.realpath(file)
        if real in seen:
            raise InputError(f"is named twice, also as {seen[real]}" if seen[real] != name else "is named twice", name)
        seen[real] = name


def partitioned_by(files: Sequence[Source]) -> list[str]:
    """The columns by which files lie in several folders: Hive writes their values into the folders' names
    (`relation=likes/`), and not into the files."""
    values: dict[str, set[str]] = {}
    for file in files:
        for part in shown(str(file)).split("/")[:-1]:
            column, is_one, value = part.partition("=")
            if is_one:
                values.setdefault(column, set()).add(value)
    return [column for column, found in values.items() if len(found) > 1]


def paths_of(name: str) -> Iterator[Path]:
    """Yields the file of that name, the files of the folder, or those that match the pattern, in natural order.

    Raises:
        InputError: nothing matches; the folder can't be read, is a prepared graph, or is refused by `files_in`; it is
            an address; or a name is not UTF-8.
    """
    if "://" in name and not os.path.lexists(name):
        raise InputError("an address is for `marius-oac prepare` alone: copy the files first", shown(name))
    for path in _paths_of(name):
        try:
            str(path).encode()
        except UnicodeEncodeError:
            raise InputError("the name is not UTF-8", ascii(str(path))) from None
        yield path


def _paths_of(name: str) -> Iterator[Path]:
    if os.path.isdir(name):
        yield from _in_folder(Path(name))
    elif os.path.exists(name) or not glob.has_magic(name):
        yield Path(name)
    else:
        found = sorted(glob.glob(name, recursive=True), key=natural_order)
        if not found:
            raise InputError("no file has such a name", name)
        yield from map(Path, found)


def _in_folder(folder: Path) -> list[Path]:
    try:
        names = {entry.name: entry.is_dir() for entry in os.scandir(folder)}
    except OSError as error:
        raise InputError(f"can't be read: {error.strerror}", folder) from None
    if MANIFEST in names:
        raise InputError("is a prepared graph, and no folder of files", folder)
    return [folder / name for name in files_in(names, folder)]
