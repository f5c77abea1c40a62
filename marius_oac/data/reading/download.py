"""Downloads known data sets to a temporary file, checks and renames it. Archives are read, never unpacked.

Only the wanted members of an archive are copied, to file names of our choice, so that the archive's paths don't matter.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import sys
import tarfile
import time
import uuid
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import IO, Any, BinaryIO

from marius_oac.data.reading.registry import KnownDataset, verify
from marius_oac.errors import InputError
from marius_oac.runtime.console import logger
from marius_oac.runtime.progress import Progress
from marius_oac.runtime.standstill import Activity
from marius_oac.types import present

SLOWEST, PATIENCE = 1 << 10, 60.0  # bytes a second that must come, on average in so many seconds
PIECE_BYTES = 1 << 20
_MOST_SAID = 1 << 12  # bytes of a message
_START = (
    "import json, sys\n"
    "sys.path[:] = json.loads(sys.argv.pop(1))\n"
    "from marius_oac.data.reading.http_get import main\n"
    "main()"
)  # no `-m`, which would import from the present folder


def fetch(dataset: KnownDataset, cache_dir: Path) -> dict[str, Path]:
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
            _fetch_archive(dataset, folder, paths)
        else:
            for split, path in paths.items():
                download(dataset.urls[split], path)
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


def _fetch_archive(dataset: KnownDataset, folder: Path, paths: dict[str, Path]) -> None:
    url = dataset.urls["archive"]
    archive = folder / ("archive.zip" if url.endswith(".zip") else "archive.tgz")
    download(url, archive)
    try:
        extract(archive, {dataset.members[split]: path for split, path in paths.items()})
    finally:
        archive.unlink(missing_ok=True)


def download(url: str, target: Path, called: str | None = None, patience: float = PATIENCE) -> None:
    """Downloads one file. `target` is complete or doesn't exist.

    A process of its own speaks with the server (`http_get`). It ends with this call, however that ends.

    Args:
        url: http or https.
        called: what messages call the address.
        patience: seconds in each of which 1 KiB must come, on average.

    Raises:
        InputError: another kind of address, no connection, an error status, fewer bytes than announced, a server that
            is too slow, or too little room on the disk.
    """
    called = called or url
    with new_file(target) as file, Activity(f"{target.name} is being downloaded"), _asked(url) as process:
        pieces = _pieces(process, patience, called)
        line, _, first = next(pieces, b"").partition(b"\n")
        about = json.loads(line or "{}")
        total: int | None = about.get("length")
        done = store(chain([first], pieces), file, target, total, "downloading", called)
        if process.wait():
            came = f": {done:,} of {total:,} bytes came" if done and total else ""
            raise InputError(_reason(process) + came, called)
    if not about["whole"]:
        logger.warning(f"{called}: the server did not say how long the file is: part of it may be missing")


def store(pieces: Iterable[bytes], file: BinaryIO, target: Path, size: int | None, doing: str, called: str) -> int:
    """Writes the pieces of a file and shows how far it is. Returns how many bytes came.

    Args:
        target: where the file will lie. size: of the file; None: unknown.

    Raises:
        InputError: the disk has less room than that; more came, or of an unknown size more than half of what was free.
    """
    free, done = shutil.disk_usage(target.parent).free, 0
    if size is not None and size > free:
        raise InputError(f"the file has {size:,} bytes, and the disk has {free:,} bytes free", called)
    with Progress(f"{doing} {target.name}", "B", size) as progress:
        for piece in pieces:
            file.write(piece)
            done += len(piece)
            progress.add(len(piece))
            if size is not None and done > size:
                raise InputError(f"more bytes came than it has: {done:,} of {size:,}", called)
            if size is None and done > free // 2:  # it may never end
                what = "it is not known how long the file is, and more came than half of what the disk had free"
                raise InputError(what, called)
    return done


@contextmanager
def _asked(url: str) -> Iterator[subprocess.Popen[bytes]]:
    words = [json.dumps([each for each in sys.path if each]), str(os.getpid())]
    command = [sys.executable, "-P", "-W", "ignore", "-c", _START, *words]
    pipe = subprocess.PIPE  # by which the address goes, too: it may be secret, and all users see command lines
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0, start_new_session=True) as process:
        try:
            with suppress(BrokenPipeError):
                present(process.stdin).write(url.encode("utf-8", "surrogatepass"))
                present(process.stdin).close()
            yield process
        finally:
            process.kill()


def _pieces(process: subprocess.Popen[bytes], patience: float, called: str) -> Iterator[bytes]:
    """What the process writes, as it comes."""
    pipe, poll, came, waited = present(process.stdout).fileno(), select.poll(), 0, 0.0
    poll.register(pipe, select.POLLIN)
    while True:
        before = time.monotonic()
        ready = poll.poll(1000 * max(0.001, patience - waited))
        waited += time.monotonic() - before  # for the server alone: the disk may be slow
        if ready:
            if not (piece := os.read(pipe, PIECE_BYTES)):
                return
            came += len(piece)
            yield piece
        if waited >= patience:
            if came < SLOWEST * patience:
                raise InputError(f"in {patience:g} s less than {SLOWEST / 1024:g} KiB/s came", called)
            came, waited = 0, 0.0


def _reason(process: subprocess.Popen[bytes]) -> str:
    try:
        return str(json.loads(present(process.stderr).read(_MOST_SAID))["error"])
    except (ValueError, LookupError, TypeError):
        return "the process that downloads has failed"


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
