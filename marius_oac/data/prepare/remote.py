"""Files of edges that lie in an object store or on a server: each is copied beside the graph while it is read.

fsspec opens an address: s3://, gs://, hf://, sftp:// and others, some of which take a package more. http and https are
downloaded as known data sets are. Of an address, user, password and query are shown nowhere and written nowhere: they
may be secrets.
"""

from __future__ import annotations

import posixpath
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO
from urllib.parse import urlsplit

from marius_oac.data.prepare.contents import files_in, matching
from marius_oac.data.prepare.download import PIECE_BYTES, download, new_file
from marius_oac.errors import InputError
from marius_oac.runtime.progress import Progress

_ADDRESS = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]+)://(?:[^/@]*@)?(?P<rest>[^?#]*).*", re.IGNORECASE | re.DOTALL)

_SECRET = re.compile(r"(?<=://)[^/@\s]*@|\?\S*")  # user and password, or the query, of an address within a text


def is_address(source: object) -> bool:
    """Whether this is SCHEME://PLACE, and not a path or a data set's name."""
    return isinstance(source, str) and _ADDRESS.fullmatch(source) is not None


def shown(address: str) -> str:
    """The address without what may be secret."""
    return _ADDRESS.sub(r"\g<scheme>://\g<rest>", address)


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
        if urlsplit(address).username is not None:
            raise InputError("a user and a password are not sent over http", shown(address))
        with _called(address, shown(address)):
            download(address, target)
        return target
    with new_file(target) as file, _opened(address) as (source, size):
        done = 0
        with Progress(f"fetching {name}", "B", size) as progress:
            while piece := _read(source, address):
                file.write(piece)
                done += len(piece)
                progress.add(len(piece))
                if size is not None and done > size:  # it may never end
                    break
        if size is not None and done != size:
            amount = "more" if done > size else "fewer"
            raise InputError(f"{amount} bytes came than it has: {done:,} of {size:,}", shown(address))
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


def check_there(address: str) -> None:
    """Raises InputError if fsspec finds no such file. Of http and https nothing is asked before they are read."""
    if not _is_web(address):
        with _opened(address):
            pass


def listed(address: str) -> list[str]:
    """The addresses of the files that an address stands for, in the order of their names: those of a folder if it ends
    in "/", those that match if the last part of its path has a "*", else the address itself.

    Raises:
        InputError: there are none, the folder has folders in it, or can't be read; or several addresses are joined.
    """
    if "::" in address:  # fsspec's chains of addresses, each with secrets of its own
        raise InputError("one address is needed, not several joined by ::", address.partition("://")[0])
    place, _, last = address.rpartition("/")
    if _is_web(address) or (last and "*" not in address):
        return [address]
    if "*" in place:
        raise InputError("a * is understood behind the last / alone", shown(address))
    import fsspec  # not needed otherwise

    try:
        system, path = fsspec.url_to_fs(place)
        found = system.ls(path, detail=True)
    except Exception as error:  # whatever a protocol's package raises, the user can't read the folder
        raise _failed(address, error) from None
    kinds = {posixpath.basename(each["name"].rstrip("/")): each["type"] for each in found if each["name"] != path}
    names = {name: kind == "directory" for name, kind in kinds.items()}
    some = matching(names, last, shown(address)) if last else files_in(names, shown(address))
    return [f"{place}/{name}" for name in some]


@contextmanager
def _called(address: str, name: str) -> Iterator[None]:
    """Errors name the address as it is shown."""
    try:
        yield
    except InputError as error:
        raise InputError(error.message, name if error.where == address else error.where) from None


@contextmanager
def _opened(address: str) -> Iterator[tuple[BinaryIO, int | None]]:
    """The file, and how many bytes it has, where that is known."""
    import fsspec  # not needed otherwise

    try:
        system, path = fsspec.url_to_fs(address)
        size, file = system.size(path), system.open(path, "rb")
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
    said = _SECRET.sub("", str(error)) or type(error).__name__
    return InputError(f"can't be read: {said}", shown(address))
