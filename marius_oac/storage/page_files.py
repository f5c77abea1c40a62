"""The files that pages lie in: direct or buffered, read and written by many threads at once.

    FOLDER/pages.json         format, version, identity, page size, the files
    FOLDER/N-IDENTITY.pages   4 KiB that say whose file it is, then the slots

Guarantees:
- `read` and `write` may be called by any number of threads, `write` never for a slot that another call reads or writes.
- An error of the disk is an `OSError` that names the file, in the thread that called.
- Nothing outlives `close`.

Measured (`benchmarks/page_io.py`): compiled loops of `preadv` in many threads reach 0.9 and more of fio's io_uring at
the same depth, also beside threads that run Python; `async_io` is as fast at a quarter less processor time, and wakes
its threads a hundredth as often. The binding of io_uring for Python, liburing, prepares every request under the GIL:
beside a busy thread it falls to a third. A pool of threads that call `os.preadv` reaches a third at best, aiofiles a
fifth.
"""

from __future__ import annotations

import errno
import json
import os
import sys
import threading
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from marius_oac.errors import InputError
from marius_oac.storage import async_io, page_kernels

FORMAT, VERSION = "marius-oac pages", 1
LISTING = "pages.json"
HEADER_BYTES = 4096
MOST_PAGES_A_JOB = 128  # a job's thread makes its requests one after the other
_FEWEST_PAGES_A_JOB = 8  # a job costs as much as some pages
_MOST_THREADS = 32
_NICE = 10  # pages are asked for batches ahead: where cores are short, whoever computes goes first


@dataclass(frozen=True)
class Listing:
    """What `pages.json` says. Each file's header says the same, with the file's number."""

    identity: str
    page_bytes: int
    files: tuple[str, ...]
    format: str = FORMAT
    version: int = VERSION

    def dump(self) -> str:
        """What `load` reads back."""
        return json.dumps(asdict(self), indent=1) + "\n"

    def header(self, number: int) -> bytes:
        """The first `HEADER_BYTES` of a file."""
        text = json.dumps({**asdict(self), "files": len(self.files), "number": number})
        return text.encode().ljust(HEADER_BYTES, b"\n")

    @classmethod
    def load(cls, path: Path) -> Listing:
        """Raises InputError: missing, broken, of another version."""
        try:
            found = json.loads(path.read_text("utf-8"))
            if found["format"] != FORMAT:
                raise ValueError
            if found["version"] != VERSION:
                raise InputError(f"page files of format version {found['version']}, not {VERSION}", path)
            return cls(**{**found, "files": tuple(found["files"])})
        except OSError as error:
            raise InputError(f"the run's page files are missing: {error.strerror}", path) from None
        except (ValueError, KeyError, TypeError):
            raise InputError("is damaged", path) from None

    @classmethod
    def new(cls, page_bytes: int, folders: Sequence[Path] = ()) -> Listing:
        """Of files that are still to be made: one per folder, or one beside the listing."""
        identity = uuid.uuid4().hex
        parts = [folder.absolute() for folder in folders] or [Path()]
        return cls(
            identity, page_bytes, tuple(str(part / f"{number}-{identity}.pages") for number, part in enumerate(parts))
        )


def num_threads(io: str, depth: int) -> int:
    """Threads that make up to `depth` requests at once."""
    at_once = MOST_PAGES_A_JOB if io == "direct" and async_io.supported() else 1
    return min(_MOST_THREADS, -(-depth // at_once))


class PageFiles:
    """Opened page files; slots are spread over them segment by segment.

    Args:
        folder: where the listing lies.
        listing: which files.
        io: direct (past the page cache of the system) or buffered.
        depth: requests that are on their way at once. Direct ones by `async_io` in threads of up to 128 each, where
            there is such a thing; else each in a thread of its own, 32 of them at most.
        create: make the files; they must not be there, and their folders must.
        writable: open them for writing.
        warn: called with one line where a file system has no direct I/O and buffered I/O is used.
        bind: called by each thread with its name before its first request.

    Raises:
        InputError: a file is missing, can't be made, is another run's, or of another version.
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
        bind: Callable[[str], None] | None = None,
    ):
        self.listing, self.page_bytes, self._slots = listing, listing.page_bytes, 0
        self._paths = [folder / name for name in listing.files]
        self._descriptors, self._writable = [], writable
        self._made: list[Path] = []
        self._bind, self._contexts, self._own = bind, [], threading.local()
        asynchronous = io == "direct" and async_io.supported()
        self._window = min(depth, MOST_PAGES_A_JOB) if asynchronous else 0
        self._threads = ThreadPoolExecutor(num_threads(io, depth), "io", self._begin)
        try:
            for number, path in enumerate(self._paths):
                self._descriptors.append(self._open(path, number, io, create, writable, warn))
        except BaseException:
            self.close()
            for path in self._made:
                path.unlink()
            raise
        self._kernel_descriptors = np.array(self._descriptors, np.int64)

    def _begin(self) -> None:
        """In each thread, before its first request."""
        if self._bind:
            self._bind("io")
        if sys.platform == "linux":  # elsewhere it is the whole process that would give way
            os.nice(_NICE)
        if self._window:
            with suppress(OSError):  # the system has no more of them: this thread makes one request after the other
                self._own.context = async_io.Context()
                self._contexts.append(self._own.context)

    def _open(self, path: Path, number: int, io: str, create: bool, writable: bool, warn) -> int:
        header = self.listing.header(number)
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
            flags = os.O_RDWR if writable else os.O_RDONLY
            if io == "direct":
                try:
                    return os.open(path, flags | os.O_DIRECT)
                except OSError as error:
                    if error.errno != errno.EINVAL:
                        raise
                    warn(f"{path.parent}: this file system has no direct I/O; storage.io is 'buffered' there")
            return os.open(path, flags)
        except OSError as error:
            raise InputError(f"page file: {error.strerror}", path) from None

    def grow(self, slots: int) -> None:
        """Makes room for so many slots. Raises OSError where the disk has none."""
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

    def submit(self, work: Callable, *arguments):
        """A future of `work(*arguments)` in one of the I/O threads."""
        return self._threads.submit(work, *arguments)

    def jobs(self, count: int) -> list[slice]:
        """Cuts `count` pages into jobs for the threads, none longer than `MOST_PAGES_A_JOB`."""
        size = MOST_PAGES_A_JOB
        if not self._window:  # one request after the other: enough jobs for all threads
            size = max(_FEWEST_PAGES_A_JOB, min(size, -(-count // _MOST_THREADS)))
        return [slice(first, min(first + size, count)) for first in range(0, count, size)]

    def path_of(self, slot: int) -> Path:
        """The file that a slot lies in."""
        return self._paths[slot // page_kernels.SLOTS_PER_SEGMENT % len(self._paths)]

    def read(self, slots: np.ndarray, addresses: np.ndarray) -> int:
        """Reads slots, int64 ascending, to addresses, int64; in an I/O thread at most `MOST_PAGES_A_JOB`.

        Returns the number of requests.
        """
        return self._transfer(False, slots, addresses)

    def write(self, slots: np.ndarray, addresses: np.ndarray) -> int:
        """Writes slots, int64 ascending, from addresses, int64. Returns the number of requests."""
        return self._transfer(True, slots, addresses)

    def _transfer(self, write: bool, slots: np.ndarray, addresses: np.ndarray) -> int:
        counts, context = np.zeros(1, np.int64), getattr(self._own, "context", None)
        rest = (self._kernel_descriptors, slots, addresses, self.page_bytes, HEADER_BYTES)
        if context is None or slots.size > MOST_PAGES_A_JOB:
            vectors = np.empty(2 * page_kernels.MOST_PAGES_AT_ONCE, np.int64)
            at, number = page_kernels.transfer(write, *rest, vectors, counts)
        else:
            handle = context.handle
            at, number = page_kernels.transfer_async(write, handle, self._window, *rest, context.room, counts)
        if at >= 0:
            name = str(self.path_of(int(slots[at])))
            if number == page_kernels.SHORT_READ:
                raise OSError(errno.EIO, "the file ends before the page does", name)
            raise OSError(int(number), os.strerror(int(number)), name)
        return int(counts[0])

    def sync(self) -> None:
        """Returns when the disk has everything that was written."""
        for descriptor in self._descriptors:
            os.fdatasync(descriptor)

    def close(self) -> None:
        """Ends the threads and closes the files. Closing twice does nothing."""
        self._threads.shutdown()
        while self._contexts:
            self._contexts.pop().close()
        while self._descriptors:
            os.close(self._descriptors.pop())

    def __enter__(self) -> PageFiles:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
