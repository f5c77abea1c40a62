"""Ownership of page files outside of the run's folder. A copy of the folder refers to the same files.

    tables/owner.json     beside the listing: a token, and during a change the next token
    N-IDENTITY.owner      beside the first page file: the folder that owns the files, by path and inode, and the token

Opening page files for writing claims them, and changes the token in both places. So of all folders that refer to the
same files only one can write: the original, even if it was moved, or if it is gone, the first folder that claims them.
Any other folder either finds the owner, or has an older token. Page files in the run's folder are copied with it.

Guarantees: after a crash at any point the claimant still owns the files. They are locked meanwhile (`PageFiles`).
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
from marius_oac.runtime.files.untrusted import Described, FilePath, parse_sealed, read_if_there
from marius_oac.storage.disk.files import LISTING, Listing

OWNER = "owner.json"
Model = TypeVar("Model")
_LEVELS = 4  # a node's part of a run is three folders below the run


class _Tokens(Described):
    token: str
    next: str | None


class _Owner(Described):
    folder: FilePath
    inode: str
    token: str


def claim(tables: Path, listing: Listing, new: bool = False) -> None:
    """Claims the page files for the run with the folder `tables`.

    Args:
        listing: of the files, which are opened and locked.
        new: they have just been made.

    Raises:
        InputError: the files belong to another folder, of which this one is a copy, or another folder has written to
            them since. Nothing is changed then.
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
    """Raises InputError if a file that records the owner is damaged, or one of the two is missing."""
    tokens = _read(tables / OWNER, _Tokens)
    if any(Path(name).is_absolute() for name in listing.files):
        owner = _read((tables / listing.files[0]).with_suffix(".owner"), _Owner)
        if owner is not None and tokens is None:
            raise InputError("is missing", tables / OWNER)


def _check(owner: _Owner, tokens: _Tokens | None, tables: Path, listing: Listing) -> None:
    first, home = tables / listing.files[0], tables.parent.resolve()
    if tokens is None:
        raise InputError(
            f"is missing, and says whether {first} is this run's: bring it back, or, if no other run has used the page "
            f"files, remove {first.stem}.owner beside them",
            tables / OWNER,
        )
    if owner.token not in (tokens.token, tokens.next):
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
    """Yields where the owner may be: its old path, or renamed beside that or beside `home`."""
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
    """Whether the run there refers to the same files."""
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
    """The content of a file; None if it doesn't exist. Raises InputError if it is damaged."""
    content = read_if_there(path)
    return None if content is None else parse_sealed(content, path, model)
