"""The page files: direct or buffered I/O by many threads at once.

    FOLDER/pages.json         format, version, identity, page size, the files
    FOLDER/N-IDENTITY.pages   a header of 4 KiB that identifies the file, then the slots

Guarantees:
- Any number of threads may call `read` and `write`, but not `write` for a slot that another call reads or writes.
- A disk error is an `OSError` that names the file, in the calling thread.
- Files that are opened for writing are locked (flock(2)) until `close`, and have no hard or symbolic links.
  `disk.owner` prevents copies of a run from writing to the same files one after another.
- `close` ends all threads and closes all files. So does the end of an object that nobody closed and nothing uses.
- Files without names (`nameless`) are gone with the process, however it ends.

Measured (`benchmarks/disk/page_io.py`): compiled loops of `preadv` in many threads reach at least 0.9 of fio's io_uring
at the same depth, also beside threads that run Python. `async_io` is as fast with a quarter less processor time, and
wakes its threads a hundredth as often. The Python binding of io_uring, liburing, prepares every request under the GIL,
so beside a busy thread it drops to a third. A pool of threads that call `os.preadv` reaches a third at best, aiofiles a
fifth.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import sys
import tempfile
import threading
import uuid
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from marius_oac.errors import InputError, shown
from marius_oac.kernels.cpu import async_io
from marius_oac.kernels.cpu import pages as page_kernels
from marius_oac.runtime.closing import Closable
from marius_oac.runtime.files.atomic import check_no_link
from marius_oac.runtime.files.untrusted import read_json, typed

Result = TypeVar("Result")

FORMAT, VERSION = "marius-oac pages", 1
LISTING = "pages.json"
HEADER_BYTES = 4096
MOST_PAGES_A_JOB = 128  # without asynchronous I/O a job makes its requests one after another
MOST_PAGE_BYTES = 1 << 30
_MOST_FILES = 1024
_FEWEST_PAGES_A_JOB = 8  # a job costs as much as some pages
_MOST_THREADS = 32
_INDIRECT = "{}: this file system has no direct I/O; storage.io is 'buffered' there"
_GONE = "was removed or replaced while the run trains; without it no checkpoint of the run can be read"
_NICE = 10  # pages are requested batches ahead, so threads that compute get the cores first


@dataclass(frozen=True)
class Listing:
    """The content of `pages.json`. Each file's header has the same content and the file's number.

    Raises:
        ValueError: a field is invalid.
    """

    identity: str
    page_bytes: int
    files: tuple[str, ...]
    format: str = FORMAT
    version: int = VERSION

    def dump(self) -> str:
        """The text of `pages.json`, which `load` reads."""
        return json.dumps(asdict(self), indent=1) + "\n"

    def header(self, number: int) -> bytes:
        """The first `HEADER_BYTES` of a file."""
        text = json.dumps({**asdict(self), "files": len(self.files), "number": number})
        return text.encode().ljust(HEADER_BYTES, b"\n")

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[0-9a-f]{32}", self.identity):
            raise ValueError(f"identity {shown(self.identity)} is none")
        if self.page_bytes % HEADER_BYTES or not 0 < self.page_bytes <= MOST_PAGE_BYTES:
            raise ValueError(f"page_bytes {self.page_bytes} is no multiple of {HEADER_BYTES} up to {MOST_PAGE_BYTES}")
        for number, file in enumerate(self.files):  # other names might be any file on this machine
            if Path(file).name != f"{number}-{self.identity}.pages" or "\0" in file or ".." in Path(file).parts:
                raise ValueError(f"files.{number} {shown(file)} is no name of a page file")
        if not 0 < len(self.files) <= _MOST_FILES:
            raise ValueError(f"{len(self.files)} files are listed")

    @classmethod
    def load(cls, path: Path) -> Listing:
        """Loads `pages.json`. Raises InputError if it is missing, broken, or of another version."""
        try:
            found = read_json(path, dict[str, Any])
        except OSError as error:
            raise InputError(f"the run's page files are missing: {error.strerror}", path) from None
        if found.get("format") == FORMAT and found.get("version", VERSION) != VERSION:
            raise InputError(f"page files of format version {shown(found.get('version'))}, not {VERSION}", path)
        listing = typed(found, path, cls)
        if listing.format != FORMAT:
            raise InputError("is damaged, or belongs to something else", path)
        return listing

    @classmethod
    def new(cls, page_bytes: int, folders: Sequence[Path] = ()) -> Listing:
        """A listing of files to be made: one per folder, or one beside the listing."""
        identity = uuid.uuid4().hex
        parts = [folder.absolute() for folder in folders] or [Path()]
        return cls(
            identity, page_bytes, tuple(str(part / f"{number}-{identity}.pages") for number, part in enumerate(parts))
        )


def is_page_file(name: str) -> bool:
    """Whether this is a name that `Listing.new` gives to files."""
    return re.fullmatch(r"[0-9]+-[0-9a-f]{32}\.pages", name) is not None


def num_threads(io: str, depth: int) -> int:
    """The number of threads for up to `depth` requests at once."""
    at_once = MOST_PAGES_A_JOB if io == "direct" and async_io.supported() else 1
    return min(_MOST_THREADS, -(-depth // at_once))


class PageFiles(Closable):
    """Open page files. Slots are distributed over them by segment.

    Args:
        folder: of the listing.
        listing: of the files.
        io: direct (without the system's page cache) or buffered.
        depth: the number of requests at once. With direct I/O and `async_io` a thread makes up to 128 at once, else
            there is a thread for each, at most 32.
        create: make the files. They must not exist, their folders must.
        writable: open them for writing.
        warn: called with one line if a file system has no direct I/O and buffered I/O is used.
        bind: called by each thread with its name before its first request.
        nameless: make files without names, in the folders of those of the listing.

    Raises:
        InputError: a file is missing, can't be made, or belongs to another run or version; or it is opened for writing
            and is in use, or has links.
    """

    def __init__(
        self,
        folder: Path,
        listing: Listing,
        io: str,
        depth: int,
        create: bool = False,
        writable: bool = True,
        warn: Callable[[str], None] = lambda line: None,
        bind: Callable[[str], object] | None = None,
        nameless: bool = False,
    ):
        self.listing, self.page_bytes, self._slots = listing, listing.page_bytes, 0
        self._folder, self._paths = folder, [folder / name for name in listing.files]
        self._descriptors: list[int] = []
        self._writable = writable
        self._made: list[Path] = []
        self._own = threading.local()
        self._contexts: list[async_io.Context] = []
        asynchronous = io == "direct" and async_io.supported()
        self._window = min(depth, MOST_PAGES_A_JOB) if asynchronous else 0
        # Nothing that the threads hold refers to this object, so that it can become garbage while they wait for work.
        begin = partial(_begin, bind, asynchronous, self._own, self._contexts)
        self._threads = ThreadPoolExecutor(num_threads(io, depth), "io", begin)
        weakref.finalize(self, _close, self._contexts, self._descriptors)
        if nameless:
            self._paths = [path.parent for path in self._paths]
        try:
            for number, path in enumerate(self._paths):
                opened = _nameless(path, io, warn) if nameless else self._open(path, number, io, create, writable, warn)
                self._descriptors.append(opened)
        except BaseException:
            self.close()
            for path in self._made:
                path.unlink()
            raise
        self._kernel_descriptors = np.array(self._descriptors, np.int64)

    def _open(self, path: Path, number: int, io: str, create: bool, writable: bool, warn: Callable[[str], None]) -> int:
        header = self.listing.header(number)
        if writable:
            check_no_link(path)
        try:
            if create:
                with open(path, "xb") as file:
                    self._made.append(path)
                    file.write(header)
                    file.flush()
                    os.fsync(file.fileno())
            else:
                with open(path, "rb") as file:
                    if file.read(HEADER_BYTES) != header:
                        raise InputError("is not a page file of this run", path)
            descriptor = _opened(path, io, os.O_RDWR if writable else os.O_RDONLY, warn)
        except OSError as error:
            named = f"; it is named in {self._folder / LISTING}" if isinstance(error, FileNotFoundError) else ""
            raise InputError(f"page file: {error.strerror}{named}", path) from None
        if writable:
            try:
                _lock(descriptor, path)
            except BaseException:
                os.close(descriptor)
                raise
        return descriptor

    def grow(self, slots: int) -> None:
        """Extends the files to so many slots. Raises OSError if the disk is full."""
        if slots <= self._slots or not self._writable:
            return
        segment = page_kernels.SLOTS_PER_SEGMENT
        for number, (descriptor, path) in enumerate(zip(self._descriptors, self._paths, strict=True)):
            segments = len(range(number, slots // segment, len(self._descriptors)))
            size = HEADER_BYTES + segments * segment * self.page_bytes
            before = os.fstat(descriptor).st_size
            if size > before:
                try:
                    os.posix_fallocate(descriptor, before, size - before)
                except OSError as error:
                    raise OSError(error.errno, error.strerror, str(path)) from None
        self._slots = slots

    def check_slots(self, slots: np.ndarray) -> None:
        """Raises InputError unless each of these slots, int64 [n], is -1 (of a page that was never written) or exists,
        and none is repeated."""
        segment, count = page_kernels.SLOTS_PER_SEGMENT, len(self._descriptors)
        sizes = [(os.fstat(each).st_size - HEADER_BYTES) // self.page_bytes // segment for each in self._descriptors]
        first_missing = [number + size * count for number, size in enumerate(sizes)]  # the segment, for each file
        room, shortest = min(first_missing) * segment, self._paths[int(np.argmin(first_missing))]
        used = np.sort(slots)
        if used.size and not -1 <= used[0] <= used[-1] < room:
            wrong = int(used[0] if used[0] < -1 else used[-1])
            raise InputError(f"a checkpoint refers to slot {wrong}; the page files have {room:,}", shortest)
        used = used[np.searchsorted(used, 0) :]
        if (used[1:] == used[:-1]).any():
            raise InputError("a checkpoint refers to a slot twice", self._paths[0])

    def submit(self, work: Callable[..., Result], *arguments: Any) -> Future[Result]:
        """Runs `work(*arguments)` in an I/O thread."""
        return self._threads.submit(work, *arguments)

    def jobs(self, count: int) -> list[slice]:
        """Divides `count` pages into jobs for the threads, of at most `MOST_PAGES_A_JOB`."""
        size = MOST_PAGES_A_JOB
        if not self._window:  # a job makes one request after another, so there are jobs for all threads
            size = max(_FEWEST_PAGES_A_JOB, min(size, -(-count // _MOST_THREADS)))
        return [slice(first, min(first + size, count)) for first in range(0, count, size)]

    def path_of(self, slot: int) -> Path:
        """The file of a slot."""
        return self._paths[int(self.numbers_of(np.array(slot)))]

    def numbers_of(self, slots: np.ndarray) -> np.ndarray:
        """The file number of each slot, int64 [n]."""
        return slots // page_kernels.SLOTS_PER_SEGMENT % len(self._paths)

    def read(self, slots: np.ndarray, addresses: np.ndarray) -> int:
        """Reads slots, int64 [n], ascending, to addresses, int64 [n]. In an I/O thread n is at most `MOST_PAGES_A_JOB`.

        Returns the number of requests. Raises OSError, with the file, if the disk failed.
        """
        return self._transfer(False, slots, addresses)

    def write(self, slots: np.ndarray, addresses: np.ndarray) -> int:
        """Writes slots, int64 [n], ascending, from addresses, int64 [n]. Returns and raises as `read`."""
        return self._transfer(True, slots, addresses)

    def _transfer(self, write: bool, slots: np.ndarray, addresses: np.ndarray) -> int:
        counts, context = np.zeros(1, np.int64), getattr(self._own, "context", None)
        rest = (self._kernel_descriptors, slots, addresses, self.page_bytes, HEADER_BYTES)
        vectors = np.empty(2 * page_kernels.MOST_PAGES_AT_ONCE, np.int64)
        if context is None or slots.size > MOST_PAGES_A_JOB:
            at, number = page_kernels.transfer(write, *rest, vectors, counts)
        else:
            handle = context.handle
            at, number = page_kernels.transfer_async(write, handle, self._window, *rest, context.room, counts)
            if write and number == page_kernels.SHORT_READ:  # synchronous calls succeed, or tell the error
                at, number = page_kernels.transfer(write, *rest, vectors, counts)
        if at >= 0:
            name = str(self.path_of(int(slots[at])))
            if number == page_kernels.SHORT_READ and not write:
                raise OSError(errno.EIO, "the file ends before the page does", name)
            number = errno.EIO if number == page_kernels.SHORT_READ else int(number)
            raise OSError(number, os.strerror(number), name)
        return int(counts[0])

    def check_there(self) -> None:
        """Raises InputError if a file, or the listing, was removed or replaced since it was opened: nobody could find
        what is written."""
        for path, descriptor in zip(self._paths, self._descriptors, strict=True):
            if not (path.exists() and os.path.samestat(os.stat(path), os.fstat(descriptor))):
                raise InputError(f"page file: {_GONE}", path)
        if not (self._folder / LISTING).exists():
            raise InputError(_GONE, self._folder / LISTING)

    def sync(self) -> None:
        """Flushes the files to the disk."""
        for descriptor in self._descriptors:
            os.fdatasync(descriptor)

    def close(self) -> None:
        """Ends the threads and closes the files. A second call does nothing."""
        self._threads.shutdown()
        _close(self._contexts, self._descriptors)


def _begin(
    bind: Callable[[str], object] | None, asynchronous: bool, own: threading.local, contexts: list[async_io.Context]
) -> None:
    """Initialises each thread."""
    if bind:
        bind("io")
    if sys.platform == "linux":  # elsewhere it would affect the whole process
        os.nice(_NICE)
    if asynchronous:
        with suppress(OSError):  # beyond the system's limit this thread makes one request after another
            own.context = async_io.take()
            contexts.append(own.context)


def _close(contexts: list[async_io.Context], descriptors: list[int]) -> None:
    while contexts:
        async_io.give_back(contexts.pop())
    while descriptors:
        os.close(descriptors.pop())


def _nameless(folder: Path, io: str, warn: Callable[[str], None]) -> int:
    """A new file without a name in a folder. Raises InputError if it can't be made."""
    try:
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            descriptor = os.dup(file.fileno())
    except OSError as error:
        raise InputError(f"no page file can be made there: {error.strerror}", folder) from None
    if io == "direct":
        try:
            fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | os.O_DIRECT)
        except OSError:
            warn(_INDIRECT.format(folder))
    return descriptor


def _opened(path: Path, io: str, flags: int, warn: Callable[[str], None]) -> int:
    if io == "direct":
        try:
            return os.open(path, flags | os.O_DIRECT)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            warn(_INDIRECT.format(path.parent))
    return os.open(path, flags)


def _lock(descriptor: int, path: Path) -> None:
    """Locks a page file for writing. Raises InputError if it is in use or has hard links."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise InputError("is in use: another process trains with it", path) from None
    except OSError as error:
        raise InputError(f"can't be locked: {error.strerror}", path) from None
    links = os.fstat(descriptor).st_nlink
    if links > 1:
        raise InputError(
            f"has {links} hard links, and what is written to it changes under all of these names; give this run a file "
            f"of its own: cp {path.name} copy && mv copy {path.name}",
            path,
        )
