"""Records which custom code the user has trained with. Only such code runs without asking.

A run names the files of its custom code, and keeps their texts. A run may come from anybody, so opening one runs none
of the code unless its SHA-256 is recorded here. Training records it: a user who names FILE.py in a configuration and
trains with it trusts it.

The record is a folder of the user, $XDG_STATE_HOME/marius_oac/own_code or ~/.local/state/marius_oac/own_code, with an
empty file for each text, named by its SHA-256. One system call creates a file, so no file is half-written, and any
number of processes may use the folder at once. It holds up to MOST files; those used least recently are removed.
A folder that belongs to another user, or that others may write to, is ignored.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from marius_oac.errors import InputError
from marius_oac.runtime.console import logger
from marius_oac.runtime.files.atomic import make_folder, sync

MOST = 4096
_NAME = re.compile(r"[0-9a-f]{64}")


def is_known(text: bytes) -> bool:
    """Whether this user has trained with a file of this content."""
    try:
        folder = _folder()
        _check_own(folder)
        return stat.S_ISREG(os.lstat(folder / _digest(text)).st_mode)
    except (OSError, InputError):
        return False


def record(texts: Iterable[bytes]) -> None:
    """Records texts as trusted. If they can't be recorded, a warning says so."""
    names = sorted(map(_digest, texts))
    if not names:
        return
    try:
        folder = _folder()
        make_folder(folder.parent)
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        _check_own(folder)
        for name in names:
            os.close(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
            os.utime(folder / name)  # the time of the last use, also if the file exists
        sync(folder)
        _forget_oldest(folder)
    except (OSError, InputError) as error:
        reason = error.message if isinstance(error, InputError) else f"{error.filename}: {error.strerror}"
        logger.warning(f"what code you train with can't be noted down ({reason}): later commands will need --trust")


def _folder() -> Path:
    """The folder of the record. Raises InputError if the user has no home."""
    state = Path(os.environ.get("XDG_STATE_HOME", ""))
    if not state.is_absolute():  # the XDG specification says to ignore it
        try:
            state = Path.home() / ".local" / "state"
        except RuntimeError:
            raise InputError("there is no home folder", "HOME") from None
    return state / "marius_oac" / "own_code"


def _check_own(folder: Path) -> None:
    """Raises InputError if others than this user could have written to the folder."""
    found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise InputError("is no folder that you alone may write to", folder)


def _forget_oldest(folder: Path) -> None:
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries if _NAME.fullmatch(entry.name)]
    if len(names) <= MOST:
        return
    ages = []
    for name in names:
        with suppress(FileNotFoundError):  # another process has removed it
            ages.append((os.lstat(folder / name).st_mtime_ns, name))
    for _, name in sorted(ages)[: len(ages) - MOST]:
        with suppress(FileNotFoundError):
            os.unlink(folder / name)


def _digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()
