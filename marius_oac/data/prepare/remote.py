"""Files of edges that lie in an object store or on a server: they are copied beside the graph before they are read.

fsspec opens an address: s3://, gs://, hf://, sftp:// and others, some of which take a package more. http and https are
downloaded as known data sets are. Of an address, user, password and query are shown nowhere and written nowhere: they
may be secrets.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO
from urllib.parse import urlsplit

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


def fetch_file(address: str, folder: Path) -> Path:
    """Copies the file into the folder, under its own name.

    Raises:
        InputError: the address names no file, it can't be read, fewer bytes came than it has, or the disk is full.
    """
    if "::" in address:  # fsspec's chains of addresses, each with secrets of its own
        raise InputError("one address is needed, not several joined by ::", address.partition("://")[0])
    name = posixpath.basename(shown(address))
    if name in ("", ".", ".."):
        raise InputError("the address names no file", shown(address))
    folder.mkdir(parents=True)
    target = folder / name
    if address.lower().startswith(("http://", "https://")):
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
def fetched(files: Mapping[str, Path | str], folder: Path) -> Iterator[dict[str, Path]]:
    """The files by split, of which those with an address are copied into the folder. Errors name the address."""
    paths, addresses = {}, {}
    for split, file in files.items():
        if is_address(file):
            paths[split] = fetch_file(str(file), folder / split)
            addresses[str(paths[split])] = shown(str(file))
        else:
            paths[split] = Path(file)
    try:
        yield paths
    except InputError as error:
        for copy, address in addresses.items():
            if error.where is not None and error.where.startswith(copy):
                raise InputError(error.message, address + error.where.removeprefix(copy)) from error
        raise


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
