"""Files of edges that lie in an object store or on a server: each is copied beside the graph while it is read.

fsspec opens an address: s3://, gs://, hf://, sftp:// and others, some of which take a package more. http and https are
downloaded as known data sets are. Of an address, user, password and query are shown nowhere and written nowhere: they
may be secrets.
"""

from __future__ import annotations

import glob
import posixpath
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO
from urllib.parse import unquote

from marius_oac.data.reading.contents import files_in, matching
from marius_oac.data.reading.download import PIECE_BYTES, download, new_file, store
from marius_oac.errors import InputError
from marius_oac.runtime.standstill import Activity

_ADDRESS = re.compile(
    r"(?P<scheme>[a-z][a-z0-9+.-]+)://(?:(?P<user>[^/]*)@)?(?P<rest>[^?#]*)(?P<query>.*)", re.IGNORECASE | re.DOTALL
)
_SECRET = re.compile(r"(?<=://)[^/\s]*@|\?\S*")  # user and password, or the query, of an address within a text
_SLASHED = re.compile(r"[^/:]*:[^/]*[^/\d][^/]*/.*@.*", re.DOTALL)  # user:pass/word@place, which is no valid address
_IPV6 = re.compile(r"(?<=://)\[[0-9a-fA-F:.]+\]")
_MARKS = ("#", "?", "::")  # that divide addresses


def is_address(source: object) -> bool:
    """Whether this is SCHEME://PLACE, and not a path or a data set's name."""
    return isinstance(source, str) and _ADDRESS.fullmatch(source) is not None


def shown(address: str) -> str:
    """The address without what may be secret; a path as it is."""
    found = _ADDRESS.fullmatch(address)
    if found is None:
        return _SECRET.sub("", address) if "://" in address else address
    return f"{found['scheme']}://{'...' if _SLASHED.fullmatch(found['rest']) else found['rest']}"


def _is_web(address: str) -> bool:
    return address.lower().startswith(("http://", "https://"))


def fetch_file(address: str, folder: Path) -> Path:
    """Copies the file into the folder, under its own name.

    Raises:
        InputError: the address names no file, it can't be read, other than its bytes came, or the disk is full.
    """
    name = posixpath.basename(shown(address))
    if name in ("", ".", ".."):
        raise InputError("the address names no file", shown(address))
    folder.mkdir(parents=True)
    target = folder / name
    if _is_web(address):
        download(address, target, called=shown(address))
        return target
    with new_file(target) as file, Activity(f"{name} is being fetched"), _opened(address) as (source, size):
        pieces = iter(lambda: _read(source, address), b"")
        done = store(pieces, file, target, size, "fetching", shown(address))
        if size is not None and done < size:
            raise InputError(f"fewer bytes came than it has: {done:,} of {size:,}", shown(address))
    return target


@contextmanager
def fetched(file: Path | str, folder: Path) -> Iterator[Path]:
    """The file. One with an address is copied into the folder, which is made, and removed after the block; errors name
    the address."""
    if not is_address(file):
        yield Path(file)
        return
    copy = fetch_file(str(file), folder)
    try:
        yield copy
    except InputError as error:
        if error.where is not None and error.where.startswith(str(copy)):
            raise InputError(error.message, shown(str(file)) + error.where.removeprefix(str(copy))) from error
        raise
    finally:
        shutil.rmtree(folder)


def listed(address: str) -> list[str]:
    """The addresses of the files that an address stands for, in natural order: those of a folder if it ends in "/",
    those that match if the last part of its path is a pattern, else the address itself. Of http and https nothing is
    asked.

    Raises:
        InputError: there are none, the folder has folders in it, or can't be read; a name can't be part of an address;
            or several addresses are joined.
    """
    if "::" in _IPV6.sub("", address):  # fsspec's chains of addresses, each with secrets of its own
        raise InputError("one address is needed, not several joined by ::", address.partition("://")[0])
    place, _, last = address.rpartition("/")
    if _is_web(address):
        return [address]
    if last and not glob.has_magic(address.partition("?")[0]):
        with _opened(address):
            return [address]
    if glob.has_magic(place):
        raise InputError("a pattern is understood behind the last / alone", shown(address))
    names = _contents(place, address)
    some = matching(names, last, shown(address)) if last else files_in(names, shown(address))
    for name in some:
        if any(mark in name for mark in _MARKS):
            raise InputError(f"no address has a name with {' or '.join(_MARKS)} in it: {name}", shown(address))
    return [f"{place}/{name}" for name in some]


def _contents(place: str, address: str) -> dict[str, bool]:
    """The names in a folder, each with whether it is a folder itself. Errors name the address."""
    import fsspec  # not needed otherwise

    try:
        system, path = fsspec.url_to_fs(place)
        system.invalidate_cache(path)  # of an earlier call in this process
        found = system.ls(path, detail=True)
    except Exception as error:  # whatever a protocol's package raises, the user can't read the folder
        raise _failed(address, error) from None
    # Object stores may have an empty object of the folder's own name.
    others = [each for each in found if each["name"].rstrip("/") != path.rstrip("/")]
    return {posixpath.basename(each["name"].rstrip("/")): each["type"] == "directory" for each in others}


@contextmanager
def _opened(address: str) -> Iterator[tuple[BinaryIO, int | None]]:
    """The file, and how many bytes it has, where that is known."""
    import fsspec  # not needed otherwise

    try:
        system, path = fsspec.url_to_fs(address)
        system.invalidate_cache(path)
        about = system.info(path)
        if about.get("type") == "directory":
            raise InputError("is a folder: write it with a / at its end", shown(address))
        if about.get("type") == "other":
            raise InputError("is no regular file (a pipe or a device)", shown(address))
        size, file = about.get("size"), system.open(path, "rb")
    except InputError:
        raise
    except Exception as error:  # whatever a protocol's package raises, the user can't reach the file
        raise _failed(address, error) from None
    with file:
        yield file, size


def _read(source: BinaryIO, address: str) -> bytes:
    try:
        return source.read(PIECE_BYTES)
    except Exception as error:  # as above
        raise _failed(address, error) from None


def _failed(address: str, error: Exception) -> InputError:
    if isinstance(error, FileNotFoundError):
        return InputError("no such file", shown(address))
    said = str(error)
    if found := _ADDRESS.fullmatch(address):  # packages repeat parts of an address in words of their own
        secrets = [found["user"] or "", *re.split("[:@/]", found["user"] or ""), found["query"][1:]]
        if _SLASHED.fullmatch(found["rest"]):
            secrets += [found["rest"], *re.split("[:@/]", found["rest"].rpartition("@")[0])]
        secrets += [unquote(each) for each in secrets]
        for secret in sorted({each for each in secrets if len(each) > 1}, key=len, reverse=True):
            said = said.replace(secret, "...")
    said = _SECRET.sub("", said) or type(error).__name__
    return InputError(f"can't be read: {said}", shown(address))
