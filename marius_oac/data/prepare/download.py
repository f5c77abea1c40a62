"""Downloads known data sets to a temporary file, checks and renames it. Archives are read, never unpacked.

Only the wanted members of an archive are copied, to file names of our choice, so that the archive's paths don't matter.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
import urllib.error
import urllib.parse
import urllib.request
import uuid
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path, PurePosixPath
from typing import IO, Any, BinaryIO

from marius_oac.data.prepare.registry import KnownDataset, verify
from marius_oac.errors import InputError
from marius_oac.runtime.progress import Progress
from marius_oac.types import present

TIMEOUT_SECONDS = 30.0  # without a single byte
PIECE_BYTES = 1 << 20


def default_cache_dir() -> Path:
    """The folder $XDG_CACHE_HOME/marius_oac, or ~/.cache/marius_oac."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "marius_oac"


def fetch(dataset: KnownDataset, cache_dir: Path, timeout: float = TIMEOUT_SECONDS) -> dict[str, Path]:
    """The data set's files by split, downloaded into `cache_dir/downloads/<name>` unless they exist.

    Raises:
        InputError: as `download`; a known checksum differs (the file is removed).
    """
    folder = cache_dir / "downloads" / dataset.name
    paths = {split: folder / _file_name(dataset, split) for split in dataset.files}
    if not all(path.is_file() for path in paths.values()):
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"can't be made: {error.strerror}", folder) from None
        if "archive" in dataset.urls:
            _fetch_archive(dataset, folder, paths, timeout)
        else:
            for split, path in paths.items():
                download(dataset.urls[split], path, timeout=timeout)
    for split, path in paths.items():
        try:
            verify(dataset, split, path)
        except InputError:
            path.unlink(missing_ok=True)
            raise
    return paths


def _file_name(dataset: KnownDataset, split: str) -> str:
    if dataset.ogb:
        return PurePosixPath(dataset.members[split]).name
    compressed = split in dataset.urls and dataset.urls[split].endswith(".gz")
    return f"{split}.txt{'.gz' if compressed else ''}"


def _fetch_archive(dataset: KnownDataset, folder: Path, paths: dict[str, Path], timeout: float) -> None:
    url = dataset.urls["archive"]
    archive = folder / ("archive.zip" if url.endswith(".zip") else "archive.tgz")
    download(url, archive, timeout=timeout)
    try:
        extract(archive, {dataset.members[split]: path for split, path in paths.items()})
    finally:
        archive.unlink(missing_ok=True)


def download(url: str, target: Path, sha256: str | None = None, timeout: float = TIMEOUT_SECONDS) -> None:
    """Downloads one file. `target` is complete or doesn't exist.

    Args:
        url: http or https.
        sha256: of the file's bytes, hexadecimal; None: not checked.
        timeout: seconds without data after which the download fails.

    Raises:
        InputError: another kind of address, no connection, an error status, fewer bytes than announced, another
            checksum, or a full disk.
    """
    if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
        raise InputError("only http and https addresses are fetched", url)
    request = urllib.request.Request(url, headers={"User-Agent": "marius_oac"})
    digest, done = hashlib.sha256(), 0
    with new_file(target) as file:
        try:
            with urllib.request.urlopen(request, timeout=timeout) as answer:
                length = answer.headers.get("Content-Length")
                total = int(length) if length and length.isdecimal() else None
                with Progress(f"downloading {target.name}", "B", total) as progress:
                    while piece := _receive(answer, url):
                        file.write(piece)
                        digest.update(piece)
                        done += len(piece)
                        progress.add(len(piece))
        except urllib.error.HTTPError as error:
            with error:
                raise InputError(f"the server answers {error.code} {error.reason}", url) from None
        except urllib.error.URLError as error:
            raise InputError(f"no connection: {error.reason}", url) from None
        except TimeoutError:
            raise InputError(f"the server was silent for {timeout:g} s", url) from None
        if total is not None and done != total:
            raise InputError(f"the download was cut off: {done:,} of {total:,} bytes came", url)
        if sha256 is not None and digest.hexdigest() != sha256:
            raise InputError(f"wrong checksum: SHA-256 {digest.hexdigest()}, {sha256} is expected", url)


def _receive(answer: BinaryIO, url: str) -> bytes:
    try:
        return answer.read(PIECE_BYTES)
    except TimeoutError:
        raise
    except (HTTPException, OSError) as error:
        raise InputError(f"the download was cut off: {error}", url) from None


@contextmanager
def new_file(target: Path) -> Iterator[BinaryIO]:
    """A file beside `target` that is renamed to `target` if the block succeeds, and removed otherwise."""
    part = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}.part")
    try:
        with open(part, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, target)
    except OSError as error:
        raise InputError(f"can't be written: {error.strerror or error}", target) from None
    finally:
        part.unlink(missing_ok=True)


def extract(archive: Path, members: dict[str, Path]) -> None:
    """Copies members of a .zip or .tgz, given by their paths in it, to the given targets.

    Raises:
        InputError: the archive is damaged or lacks a member (or the member is a link or folder), or the disk is full.
    """
    try:
        if archive.suffix == ".zip":
            with zipfile.ZipFile(archive) as opened:
                plain = {_plain(info.filename): info for info in opened.infolist() if not info.is_dir()}
                for member, target in members.items():
                    with opened.open(_pick(plain, member, archive)) as source:
                        _copy(source, target)
        else:
            with tarfile.open(archive, "r:*") as opened_tar:
                found = {_plain(info.name): info for info in opened_tar if info.isfile()}
                for member, target in members.items():
                    # None only for members that are no regular files
                    with present(opened_tar.extractfile(_pick(found, member, archive))) as file:
                        _copy(file, target)
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        raise InputError(f"the archive is damaged: {error}", archive) from None
    except OSError as error:
        raise InputError(f"the archive can't be read: {error.strerror or error}", archive) from None


def _plain(name: str) -> str:
    return str(PurePosixPath(name))


def _pick(found: dict[str, Any], member: str, archive: Path) -> Any:
    if member not in found:
        raise InputError(f"the archive has no file {member!r}; it has {', '.join(sorted(found)[:10])}", archive)
    return found[member]


def _copy(source: IO[bytes], target: Path) -> None:
    with new_file(target) as file:
        shutil.copyfileobj(source, file, PIECE_BYTES)
