"""Files that exist completely or not at all: written under a temporary name, flushed to the disk, then renamed.

Only files and folders that this program has made, by their names and kinds, are opened for writing, emptied or removed.
A symbolic link in place of one is refused, because its target may belong to others.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import re
import shutil
import stat
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from marius_oac.errors import InputError


def json_text(content: Any, indent: int | None = None) -> str:
    """Plain data as JSON. NaN and infinite numbers become null, because JSON has no names for them."""
    return json.dumps(_with_nulls(content), indent=indent, allow_nan=False)


def _with_nulls(content: Any) -> Any:
    if isinstance(content, float):
        return content if math.isfinite(content) else None
    if isinstance(content, Mapping):
        return {key: _with_nulls(value) for key, value in content.items()}
    return [_with_nulls(value) for value in content] if isinstance(content, list | tuple) else content


def sealed(content: Mapping[str, Any]) -> bytes:
    """The text of a JSON file that ends with the SHA-256 of its content, which has no key `sha256`."""
    return json.dumps({**content, "sha256": json_digest(content)}, indent=1, allow_nan=False).encode()


def json_digest(content: Mapping[str, Any]) -> str:
    """SHA-256 of plain data, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


_UNFINISHED = re.compile(r"\.(?P<name>.+)\.unfinished")


def unfinished(path: Path) -> Path:
    """The name under which a file or folder is written, or removed."""
    return path.with_name(f".{path.name}.unfinished")


def unfinished_here(path: Path) -> Path:
    """As `unfinished`, for a file about to be written there. Raises InputError where it is a symbolic link."""
    found = unfinished(path)
    check_no_link(found)
    return found


@contextmanager
def appearing(path: Path) -> Iterator[Path]:
    """Yields a temporary name beside `path`, for a file or folder that is renamed to `path` when the block ends.

    A block that fails leaves nothing behind. Raises InputError if the disk is full or can't be written.
    """
    temporary = unfinished_here(path)
    with disk_errors(path), ExitStack() as stack:
        shutil.rmtree(temporary, ignore_errors=True)
        make_folder(path.parent)
        stack.callback(_remove, temporary)
        yield temporary
        sync(temporary)
        os.rename(temporary, path)
        stack.pop_all()
        sync(path.parent)


def _remove(path: Path) -> None:
    """Removes a file or folder, if it is there."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def clean(folder: Path, files: str, folders: str) -> None:
    """Removes what a killed process left unfinished in a folder: plain files whose finished names match `files`, and
    folders whose finished names match `folders`, regular expressions. Everything else stays, links too."""
    with disk_errors(folder):
        for path in list(folder.iterdir()):
            found = _UNFINISHED.fullmatch(path.name)
            if found is None or path.is_symlink():
                continue
            if path.is_dir() and re.fullmatch(folders, found["name"]):
                shutil.rmtree(path)
            elif path.is_file() and re.fullmatch(files, found["name"]):
                path.unlink()


def remove_file(path: Path) -> None:
    """Removes a plain file that this program has made, if it is there. Raises InputError where it is something else."""
    try:
        kind = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISREG(kind):
        raise InputError("is in the way: it is no file that this program has made", path)
    path.unlink()


def made_of(path: Path, names: Collection[str]) -> bool:
    """Whether the path is a folder, no link, that holds nothing but these names and what was unfinished of them."""
    known = {*names, *(unfinished(Path(name)).name for name in names)}
    return not path.is_symlink() and path.is_dir() and known.issuperset(os.listdir(path))


def remove_folder(path: Path, names: Collection[str]) -> None:
    """Removes a folder that this program has made of these names, if it is there. Raises InputError, and removes
    nothing, where it is something else, or holds anything else."""
    if not os.path.lexists(path):
        return
    if not made_of(path, names):
        raise InputError(f"is in the way: it holds more, or is something else, than {', '.join(names)}", path)
    shutil.rmtree(path)


def check_no_link(path: Path, within: Path | None = None) -> None:
    """Raises InputError where the path is a symbolic link; with `within`, a folder above it, or one between is."""
    above = [within / part for part in path.relative_to(within).parents[:-1]] if within else []
    for each in (*above, path):
        if each.is_symlink():
            raise InputError("is a symbolic link, through which nothing is written or removed", each)


def open_own(path: str | Path, flags: int) -> int:
    """A descriptor of a plain file of this program, made where there is none; an `opener` for `open`.

    Raises InputError where it is a symbolic link, or no file; OSError where it can't be opened.
    """
    check_no_link(Path(path))
    descriptor = os.open(path, flags | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise InputError("is in the way: it is no file that this program has made", path)
    return descriptor


def write_atomically(path: Path, content: str | bytes) -> None:
    """Writes a file under a temporary name, flushes it to the disk and renames it.

    Raises:
        InputError: the disk is full, or can't be written; the file is as it was.
    """
    temporary = unfinished(path)
    with disk_errors(path):
        remove_file(temporary)
        try:
            write_flushed(temporary, content.encode() if isinstance(content, str) else content)
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync(path.parent)


def write_flushed(path: Path, content: bytes) -> None:
    """Writes a new file and waits until the disk has it."""
    with open(path, "xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")  # a Path has made one slash of two


def check_place(path: str | Path) -> None:
    """Raises InputError where a user's new file or folder can't be: at an address, or where its path is not UTF-8, with
    which what is written there could not be found again."""
    if _ADDRESS.match(str(path)):
        raise InputError("is an address; this is written to a local folder: copy it there afterwards", path)
    try:
        os.path.abspath(path).encode()
    except UnicodeEncodeError:
        raise InputError("its path is not UTF-8: choose another folder", os.path.abspath(path)) from None


def make_folder(path: Path) -> None:
    """Makes a folder and those above it, where they are missing, and flushes them, so that they survive a power cut."""
    if path.is_dir():
        return
    missing = [each for each in (path, *path.parents) if not each.exists()]
    try:
        path.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path)) from None
    for each in missing:
        sync(each.parent)


def sync(path: Path) -> None:
    """Flushes a file, or a folder's entries, so that what was made or renamed in it survives a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Within the block a failure of the disk (full, read-only, broken) becomes an InputError that names `path`."""
    try:
        yield
    except OSError as error:
        raise InputError(f"can't be written: {error.strerror or error}", path) from error
