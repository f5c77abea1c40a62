"""Tables on disk under a fixed budget of memory: pages come before a batch needs them, and leave when none will soon.

The road of a batch through the tier:

    announce   in plan order, batches ahead: the batch will use these rows            -> a Claim
    fetch      in plan order: its pages get frames, those that lack are being read     (I/O threads)
    wait       before its rows are read: the pages are there, and stay
    release    when its rows are written: the pages may go

A changed page that has to leave its frame is copied out first and written after the frame's new page has been read; it
goes to a new slot (see `page_slots`), so that a checkpoint's pages are never overwritten.

Guarantees:
- A page that a claim holds stays in memory. Claims get all their frames at once or none, and in order; a claim that has
  them waits for nobody but the disk. So no two wait for each other.
- A page is read only when its last write has ended, and only if its bytes have the checksum that they were written with:
  a torn, stale, misplaced or flipped page is an error that names it.
- The first error of an I/O thread is raised by every call that waits, then and later; so is `Closed` after `abort`.
- After `close` no thread and no file is left. What is not in a checkpoint then is gone.

One lock protects directory and slots; no disk is waited for while it is held.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field

import numpy as np

from marius_oac.errors import InputError
from marius_oac.runtime.channel import Closed
from marius_oac.storage import page_kernels
from marius_oac.storage.contract import RowLayout
from marius_oac.storage.page_directory import WRITING, Directory, zeros
from marius_oac.storage.page_files import PageFiles
from marius_oac.storage.page_slots import Slots
from marius_oac.storage.reserved import reserve

BLOCK_BYTES = 4096  # what direct I/O is aligned to
PAGE_TABLE_BYTES = 26  # of each page of a table: directory, slot, checksum, and the references to two slots
FRAME_BYTES = 53  # of each frame beside its page: directory, two entries of announced batches
_ENTRIES_PER_FRAME = 2


@dataclass
class Claim:
    """Pages that a batch uses, int64 ascending."""

    pages: np.ndarray
    sequence: int = -1
    ticket: int = -1


@dataclass
class Traffic:
    """What went between memory and disk. A page that was never written is computed, not read."""

    pages_asked: int = 0
    pages_read: int = 0
    pages_computed: int = 0
    pages_written: int = 0
    requests: int = 0


@dataclass(frozen=True)
class PagedTable:
    """A table as the tier knows it: its pages are [first_page, first_page + num_pages)."""

    name: str
    layout: RowLayout
    rows_per_page: int
    first_page: int
    num_pages: int

    def pages_of(self, rows: np.ndarray) -> np.ndarray:
        """The pages of ascending rows, without repetition."""
        pages = np.empty(rows.size, np.int64)
        return pages[: page_kernels.pages_of(rows, self.rows_per_page, self.first_page, pages)]

    def shape(self) -> list[int]:
        """What `page_kernels.copy_pages` needs to know."""
        layout = self.layout
        narrow = layout.value_dtype == "bfloat16"
        return [
            self.first_page, self.rows_per_page, layout.row_bytes, layout.dimension, int(narrow),
            layout.state_offset if narrow else 8 + 4 * layout.dimension, layout.state_width,
        ]  # fmt: skip


@dataclass
class _Load:
    """Pages that one job brings into their frames, and the changed pages that it takes out of them before."""

    claim: Claim
    pages: np.ndarray
    frames: np.ndarray
    slots: np.ndarray  # -1: never written
    out_pages: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    out_frames: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    out_slots: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    checksums: np.ndarray = field(default_factory=lambda: np.zeros(0, np.uint64))


Fill = Callable[[np.ndarray, np.ndarray], None]


def page_bytes_for(row_bytes: Sequence[int]) -> int:
    """A good page size for tables of such rows: the smallest multiple of 4 KiB of which the widest rows fill 7/8."""
    size, widest = BLOCK_BYTES, max(row_bytes)
    while size < widest or (size % widest) * 8 > size:
        size += BLOCK_BYTES
    return size


def frames_in(budget: int, page_bytes: int) -> int:
    """Frames that a budget of so many bytes is enough for."""
    return max(1, budget // (page_bytes + FRAME_BYTES))


class DiskTier:
    """Frames of memory over page files, for some tables.

    Args:
        files: where the pages lie; closed with the tier. A page holds a row of any table at least.
        layouts: of each table, by name.
        capacities: most rows of each table.
        budget: bytes for frames and what they need; see `frames_in`.
        look_ahead: batches that may be announced and not fetched yet.
    """

    def __init__(
        self,
        files: PageFiles,
        layouts: dict[str, RowLayout],
        capacities: Sequence[int],
        budget: int,
        look_ahead: int = 0,
    ):
        self.files, self.page_bytes, self.traffic = files, files.page_bytes, Traffic()
        self.tables: dict[str, PagedTable] = {}
        first = 0
        for (name, layout), capacity in zip(layouts.items(), capacities, strict=True):
            rows = self.page_bytes // layout.row_bytes
            self.tables[name] = PagedTable(name, layout, rows, first, -(-capacity // rows))
            first += self.tables[name].num_pages
        self._shapes = np.array([table.shape() for table in self.tables.values()], np.int64)
        self.frames = min(frames_in(budget, self.page_bytes), first)
        self.slot_of, self.checksum_of = zeros(first, np.int64), zeros(first, np.uint64)  # of slots 1 more; 0: none
        entries = max(_ENTRIES_PER_FRAME * self.frames, 1 << 10)
        self.directory = Directory(first, self.frames, entries, look_ahead, self.slot_of)
        self._slots = Slots(files.grow)
        size = self.frames * self.page_bytes
        self.memory = np.frombuffer(reserve(size), np.uint8, size).reshape(self.frames, self.page_bytes)
        self.address = self.memory.ctypes.data
        self._fills: dict[str, Fill] = {}
        self._lock = threading.RLock()
        self._flushing = threading.Lock()  # taken before `_lock`
        self._room, self._loaded = threading.Condition(self._lock), threading.Condition(self._lock)
        self._unfinished: dict[int, int] = {}  # jobs of each ticket, oldest first
        self._tickets = self._writes = 0
        self._error: BaseException | None = None
        self.not_finite: str | None = None
        """The first table and rows that held NaN or infinite numbers when they were written."""

    def fill_with(self, table: str, fill: Fill) -> None:
        """`fill(pages, frames)` puts pages of the table that were never written to their initial rows."""
        self._fills[table] = fill

    def announce(self, sequence: int, rows: Sequence[np.ndarray]) -> Claim:
        """Batch `sequence` will use these rows of each table, int64 ascending. In the order of the sequence.

        Waits while too many batches are announced. Raises ValueError where the budget can't hold the batch.
        """
        claim = Claim(
            np.concatenate([table.pages_of(part) for table, part in zip(self.tables.values(), rows, strict=True)]),
            sequence,
        )
        if claim.pages.size > self.frames:
            need = claim.pages.size * (self.page_bytes + FRAME_BYTES)
            raise ValueError(
                f"batch {sequence} uses {claim.pages.size:,} pages and the budget holds {self.frames:,}; it needs "
                f"{need / 2**20:,.1f} MiB at least"
            )
        with self._room:
            self._wait(self._room, lambda: self.directory.can_announce(claim.pages))
            self.directory.announce(claim.pages, sequence)
        return claim

    def fetch(self, claim: Claim) -> None:
        """Gets the claim's pages frames, waiting while others hold too many, and starts reading those that lack."""
        with self._room:
            self._wait(self._room, lambda: self.directory.shortage(claim.pages) == 0)
            with self._failing():
                missing, victims = self.directory.hold(claim.pages, claim.sequence)
                loads = self._loads(claim, missing, victims)
            self.traffic.pages_asked += claim.pages.size
            claim.ticket, self._tickets = self._tickets, self._tickets + 1
            if loads:
                self._unfinished[claim.ticket] = len(loads)
            self._room.notify_all()
        for load in loads:
            self.files.submit(self._load, load)

    def wait(self, claim: Claim) -> None:
        """Returns when the pages of a fetched claim are in memory."""
        with self._loaded:
            self._wait(self._loaded, lambda: self._first_unfinished() > claim.ticket)

    def release(self, claim: Claim, oldest: bool = False) -> None:
        """The claim's pages may go. `oldest`: they go before any that were used before them."""
        with self._room:
            self.directory.release(claim.pages, oldest)
            self._room.notify_all()

    @contextmanager
    def holding(self, pages: np.ndarray, oldest: bool = False) -> Iterator[None]:
        """Within the block the pages, int64 ascending, are in memory. For those who have not announced them."""
        claim = Claim(pages)
        self.fetch(claim)
        try:
            self.wait(claim)
            yield
        finally:
            self.release(claim, oldest)

    def abort(self) -> None:
        """Every call that waits, now or later, raises `Closed`."""
        self._fail(Closed("disk tier"))

    def flush(self, sync: bool = False) -> None:
        """Writes every changed page; returns when that is done. `sync`: and the disk has it for good."""
        with self._flushing:
            with self._lock:
                pages = self.directory.dirty_pages(0, self.slot_of.size)
                self.directory.hold(pages)  # all of them are in memory: this only keeps them there
                frames = self.directory.frames_of(pages)
                self.directory.arrays.dirty[frames] = 0
                with self._failing():
                    slots, none = self._new_slots(pages), np.zeros(0, np.int64)
            jobs = [
                _Load(Claim(pages[part]), none, none, none, pages[part], frames[part], slots[part])
                for part in self.files.jobs(pages.size)
            ]
            for job in jobs:
                self.files.submit(self._write_out, job)
            with self._room:
                self._wait(self._room, lambda: self._writes == 0)
        if sync:
            self.files.sync()

    def saved(self, table: str, num_rows: int) -> dict[str, np.ndarray]:
        """Where the pages of a flushed table lie: `slots`, int64, -1 where never written, and `checksums`, uint64."""
        pages = self._range(table, num_rows)
        return {"slots": self.slot_of[pages] - 1, "checksums": self.checksum_of[pages].copy()}

    def keep(self, slots: np.ndarray) -> None:
        """A checkpoint refers to these slots, -1 apart: they stay as they are."""
        with self._lock:
            self._slots.refer(slots[slots >= 0])

    def let_go(self, slots: np.ndarray) -> None:
        """The checkpoint that referred to these slots is gone."""
        with self._lock:
            self._slots.let_go(slots[slots >= 0])

    def forget(self) -> None:
        """No page was ever written and none is in memory; nothing else may be using the tier."""
        self.directory.forget()
        self._slots.forget()
        written = np.flatnonzero(self.slot_of)
        self.slot_of[written], self.checksum_of[written] = 0, 0

    def restore(self, table: str, slots: np.ndarray, checksums: np.ndarray) -> None:
        """The table's pages are the ones of `saved`; after `forget`."""
        first = self.tables[table].first_page
        pages = slice(first, first + len(slots))
        self.slot_of[pages], self.checksum_of[pages] = slots + 1, checksums
        self.keep(slots)

    @property
    def nbytes(self) -> int:
        """Bytes of memory for pages."""
        return self.memory.nbytes

    @property
    def disk_bytes(self) -> int:
        """Bytes of the page files that are in use."""
        return self._slots.used * self.page_bytes

    def metrics(self) -> dict[str, int]:
        """Traffic so far."""
        return asdict(self.traffic)

    def close(self) -> None:
        """Waits for the I/O threads to end what they do, and lets go of files and memory."""
        self.files.close()
        self.memory = self.memory[:0, :0].copy()

    def __enter__(self) -> DiskTier:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _range(self, table: str, num_rows: int) -> slice:
        found = self.tables[table]
        return slice(found.first_page, found.first_page + -(-num_rows // found.rows_per_page))

    def _wait(self, condition: threading.Condition, ready: Callable[[], bool]) -> None:
        condition.wait_for(lambda: self._error is not None or ready())
        if self._error is not None:
            raise self._error

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            self._error = self._error or error
            self._room.notify_all()
            self._loaded.notify_all()

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """An error within the block is the tier's: what it knows of its pages may be wrong from then on."""
        try:
            yield
        except OSError as error:
            wrong = InputError(f"page file: {error.strerror or error}", error.filename)
            wrong.__cause__ = error
            self._fail(wrong)
            raise wrong from error
        except BaseException as error:
            self._fail(error)
            raise

    def _first_unfinished(self) -> int:
        return next(iter(self._unfinished), self._tickets)

    def _new_slots(self, pages: np.ndarray) -> np.ndarray:
        """Slots for pages that are about to be written. The lock is held."""
        slots = self._slots.take(pages.size)
        before = self.slot_of[pages] - 1
        self._slots.let_go(before[before >= 0])
        self.slot_of[pages] = (slots + 1) | WRITING
        self._writes += pages.size
        return slots

    def _loads(self, claim: Claim, missing: np.ndarray, victims: np.ndarray) -> list[_Load]:
        """Jobs, by ascending slot so that neighbours are read together. The lock is held."""
        slots = self.slot_of[missing] - 1
        order = np.argsort(slots, kind="stable")
        missing, victims, slots = missing[order], victims[order], slots[order]
        frames = self.directory.frames_of(missing)
        out = victims >= 0
        out_slots = np.full(victims.size, -1)
        out_slots[out] = self._new_slots(victims[out])
        loads = []
        for part in self.files.jobs(missing.size):
            load = _Load(claim, missing[part], frames[part], slots[part])
            leaving = out[part]
            if leaving.any():
                load.out_pages, load.out_frames = victims[part][leaving], frames[part][leaving]
                load.out_slots = out_slots[part][leaving]
            loads.append(load)
        return loads

    def _load(self, load: _Load) -> None:
        """One job, in an I/O thread."""
        with self._failing():
            staging = self._copy_out(load)
            self._read_in(load)
            with self._loaded:
                self._unfinished[load.claim.ticket] -= 1
                if not self._unfinished[load.claim.ticket]:
                    del self._unfinished[load.claim.ticket]
                    self._loaded.notify_all()
            if staging is not None:
                self._write(load, staging)

    def _read_in(self, load: _Load) -> None:
        new = np.searchsorted(load.slots, 0)  # -1 sorts first
        if new:
            self._compute(load.pages[:new], load.frames[:new])
        pages, slots = load.pages[new:], load.slots[new:]
        if not pages.size:
            return
        addresses = self.address + load.frames[new:] * self.page_bytes
        requests = self.files.read(slots, addresses)
        with np.errstate(over="ignore"):
            damaged = page_kernels.first_damaged(addresses, self.page_bytes, pages, self.checksum_of[pages])
        if damaged >= 0:
            raise self._damaged(int(pages[damaged]), int(slots[damaged]))
        with self._lock:
            self.traffic.pages_read += pages.size
            self.traffic.requests += requests

    def _damaged(self, page: int, slot: int) -> InputError:
        return InputError(
            f"slot {slot} is damaged or stale: it is not what was written there, {self._rows_in(page)}",
            self.files.path_of(slot),
        )

    def _rows_in(self, page: int) -> str:
        table = next(table for table in self.tables.values() if page < table.first_page + table.num_pages)
        first = (page - table.first_page) * table.rows_per_page
        return f"rows {first:,} to {first + table.rows_per_page - 1:,} of table {table.name!r}"

    def _compute(self, pages: np.ndarray, frames: np.ndarray) -> None:
        order = np.argsort(pages)
        pages, frames = pages[order], frames[order]
        self.memory[frames] = 0
        for table in self.tables.values():
            first, last = np.searchsorted(pages, (table.first_page, table.first_page + table.num_pages))
            if first < last:
                self._fills[table.name](pages[first:last], frames[first:last])
        with self._lock:
            self.traffic.pages_computed += pages.size

    def _copy_out(self, load: _Load) -> np.ndarray | None:
        """Copies of the pages that leave, with their checksums; from here on their frames are the new pages'."""
        count = load.out_pages.size
        if not count:
            return None
        staging = np.frombuffer(reserve(count * self.page_bytes), np.uint8)
        load.checksums = np.empty(count, np.uint64)
        sources = self.address + load.out_frames * self.page_bytes
        with np.errstate(over="ignore"):
            wrong = page_kernels.copy_pages(
                sources, staging.ctypes.data, self.page_bytes, load.out_pages, self._shapes, load.checksums
            )
        if wrong >= 0 and self.not_finite is None:
            self.not_finite = self._rows_in(int(wrong))
        return staging

    def _write(self, load: _Load, staging: np.ndarray) -> None:
        addresses = staging.ctypes.data + np.arange(load.out_pages.size) * self.page_bytes
        requests = self.files.write(load.out_slots, addresses)
        with self._room:
            self.slot_of[load.out_pages] = load.out_slots + 1
            self.checksum_of[load.out_pages] = load.checksums
            self._writes -= load.out_pages.size
            self.traffic.pages_written += load.out_pages.size
            self.traffic.requests += requests
            self._room.notify_all()

    def _write_out(self, load: _Load) -> None:
        """Writes changed pages that stay in memory, held by the claim of the load."""
        with self._failing():
            self._write(load, self._copy_out(load))
            self.release(load.claim)
