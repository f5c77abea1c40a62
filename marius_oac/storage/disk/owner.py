"""Whose page files are that lie outside of the run's folder: a copy of the folder names the same ones.

    tables/owner.json     beside the listing: a token, and while it is being changed the next one
    N-IDENTITY.owner      beside the first page file: the folder that the files belong to, by path and inode, and the
                          token

Who opens page files for writing claims them, and changes the token in both places. So of all folders that name the same
files one can write: that which was there first, wherever it has been moved since, and where it is gone the first one
that asks. Every other one either finds the folder that they belong to, or has an older token. Where page files lie in
the run's folder a copy has its own.

Guarantees: a crash at any moment leaves the claim to whoever made it. The files are locked meanwhile (`PageFiles`).
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from marius_oac.errors import InputError
from marius_oac.runtime.console import logger
from marius_oac.runtime.files.atomic import sealed, write_atomically
from marius_oac.runtime.files.untrusted import Described, FilePath, parse_sealed, read_bounded
from marius_oac.storage.disk.files import LISTING, Listing

OWNER = "owner.json"
Model = TypeVar("Model")
_LEVELS = 4  # a node's part of a run lies three folders below the run


class _Tokens(Described):
    token: str
    next: str | None


class _Owner(Described):
    folder: FilePath
    inode: str
    token: str


def claim(tables: Path, listing: Listing, new: bool = False) -> None:
    """From now on the page files belong to the run whose folder `tables` is; nothing is written where they can't.

    Args:
        listing: of the files, which are opened and locked.
        new: they have just been made.

    Raises:
        InputError: they belong to another folder, of which this one is a copy, or were written to since by one that has
            gone elsewhere.
    """
    if not any(Path(name).is_absolute() for name in listing.files):
        return
    first = tables / listing.files[0]
    path, home = first.with_suffix(".owner"), tables.parent.resolve()
    owner, tokens = _read(path, _Owner), _read(tables / OWNER, _Tokens)
    if owner is not None:
        _check(owner, tokens, tables, listing)
    elif not new:
        logger.warning(f"{first}: nothing says that it is this run's alone; a copy of the run must not be trained")
    token = uuid.uuid4().hex
    write_atomically(tables / OWNER, sealed({"token": owner.token if owner else "", "next": token}))
    write_atomically(path, sealed({"folder": str(home), "inode": _inode(home), "token": token}))
    write_atomically(tables / OWNER, sealed({"token": token, "next": None}))


def verify_claim(tables: Path, listing: Listing) -> None:
    """Raises InputError where what says whose the page files are is damaged, or half of it is missing."""
    tokens = _read(tables / OWNER, _Tokens)
    if any(Path(name).is_absolute() for name in listing.files):
        owner = _read((tables / listing.files[0]).with_suffix(".owner"), _Owner)
        if owner is not None and tokens is None:
            raise InputError("is missing", tables / OWNER)


def _check(owner: _Owner, tokens: _Tokens | None, tables: Path, listing: Listing) -> None:
    first, home = tables / listing.files[0], tables.parent.resolve()
    if tokens is None or owner.token not in (tokens.token, tokens.next):
        raise InputError(
            f"was written to since by the run that is, or was, at {owner.folder}: {home} is an older copy of it, or "
            "was brought back without its page files; bring back those of that time, or, where nobody needs what is in "
            f"them now, remove {first.stem}.owner",
            first,
        )
    if owner.inode == _inode(home):
        return
    for other in _others(owner, home):
        if _inode(other) not in (None, _inode(home)) and _lists(other / tables.name, listing):
            raise InputError(
                f"belongs to the run at {other}, of which {home} is a copy: train that one, or copy the page files to "
                f"{home} and name the copies in its {LISTING}",
                first,
            )
    if str(home) != owner.folder:
        logger.warning(f"{first} belongs to {home} from now on: {owner.folder}, for which it was made, is gone")


def _others(owner: _Owner, home: Path) -> Iterator[Path]:
    """Where the folder may be that the files belong to: where it was, or renamed beside it or beside `home`."""
    was = Path(owner.folder)
    yield was
    for place in (was, home):
        for level, above in enumerate(place.parents[:_LEVELS]):
            below = place.parts[len(place.parts) - level :]
            with suppress(OSError):
                for name in sorted(os.listdir(above)):
                    if _inode(above / name / Path(*below)) == owner.inode:
                        yield above / name / Path(*below)


def _lists(tables: Path, listing: Listing) -> bool:
    """Whether a run there names the same files."""
    try:
        return Listing.load(tables / LISTING).identity == listing.identity
    except InputError:
        return False


def _inode(path: Path) -> str | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return f"{found.st_dev}:{found.st_ino}"


def _read(path: Path, model: type[Model]) -> Model | None:
    """Raises InputError where it is damaged."""
    try:
        content = read_bounded(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InputError(f"can't be read: {error.strerror}", path) from None
    return parse_sealed(content, path, model)
