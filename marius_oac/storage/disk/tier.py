"""Tables on disk under a fixed budget of memory: pages come before a batch needs them, and leave when none will soon.

The road of a batch through the tier:

    announce   in plan order, batches ahead: the batch will use these rows            -> a Claim
    fetch      in plan order: its pages get frames, those that lack are being read     (I/O threads)
    wait       before its rows are read: the pages are there, and stay
    release    when its rows are written: the pages may go

A changed page that has to leave its frame is copied out first and written after the frame's new page has been read; it
goes to a new slot (see `disk.slots`), so that a checkpoint's pages are never overwritten.

Guarantees:
- A page that a claim holds stays in memory. Claims get all their frames at once or none, and in order; a claim that has
  them waits for nobody but the disk. So no two wait for each other.
- A page is read only when its last write has ended, and counts only if its bytes have the checksum that they were
  written with: a torn, stale, misplaced or flipped page is an error that names it.
- The first error of an I/O thread is raised by every call that waits, then and later; so is `Closed` after `abort`.
- After `close` no thread and no file is left. What is not in a checkpoint then is gone.

One lock protects directory and slots; no disk is waited for while it is held.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from marius_oac.errors import InputError
from marius_oac.runtime.channel import Closed
from marius_oac.runtime.machine.numa_memory import MemoryPolicy, memory_policy
from marius_oac.storage.contract import RowLayout
from marius_oac.storage.disk.directory import ON_ITS_WAY, WRITING, Directory, zeros
from marius_oac.storage.disk.files import PageFiles
from marius_oac.storage.disk.layout import PagedTable, frames_in, too_small
from marius_oac.storage.disk.moves import Fill, Move, PageMover, Traffic
from marius_oac.storage.disk.slots import Slots
from marius_oac.storage.reserved import reserve

_ENTRIES_PER_FRAME = 12  # fewer end the look-ahead before it decides every eviction (`benchmarks/disk/eviction.py`)


@dataclass
class Claim:
    """Pages that a batch uses, int64 ascending."""

    pages: np.ndarray
    batch_index: int = -1
    ticket: int = -1


class DiskTier:
    """Frames of memory over page files, for some tables.

    Args:
        files: where the pages lie; closed with the tier. A page holds a row of any table at least.
        layouts: of each table, by name.
        capacities: most rows of each table, by name.
        budget: bytes for frames and what they need; see `frames_in`.
        look_ahead: batches that may be announced and not fetched yet.
        policy: where the memory's pages go.
    """

    def __init__(
        self,
        files: PageFiles,
        layouts: Mapping[str, RowLayout],
        capacities: Mapping[str, int],
        budget: int,
        look_ahead: int = 0,
        policy: MemoryPolicy | None = None,
    ):
        self.files, self.page_bytes, self.traffic = files, files.page_bytes, Traffic()
        self.tables: dict[str, PagedTable] = {}
        first = 0
        for name, layout in layouts.items():
            rows = self.page_bytes // layout.row_bytes
            self.tables[name] = PagedTable(name, layout, rows, first, -(-capacities[name] // rows))
            first += self.tables[name].num_pages
        self.frames = min(frames_in(budget, self.page_bytes), first)
        self.slot_of, self.checksum_of = zeros(first, np.int64), zeros(first, np.uint64)  # of slots 1 more; 0: none
        entries = max(_ENTRIES_PER_FRAME * self.frames, 1 << 10)
        self.directory = Directory(first, self.frames, entries, look_ahead, self.slot_of)
        self._slots = Slots(files.grow)
        size = self.frames * self.page_bytes
        self.memory = np.frombuffer(reserve(size), np.uint8, size).reshape(self.frames, self.page_bytes)
        self.address = self.memory.ctypes.data
        memory_policy(self.address, size, policy, "the rows in memory")
        self._mover = PageMover(files, self.memory, self.tables.values(), self.checksum_of)
        self._lock = threading.RLock()
        self._flushing = threading.Lock()  # taken before `_lock`
        self._room, self._loaded, self._written = (threading.Condition(self._lock) for _ in range(3))
        self._unfinished: dict[int, int] = {}  # jobs of each ticket, oldest first
        self._tickets = self._writes = 0
        self._error: BaseException | None = None

    @property
    def not_finite(self) -> str | None:
        """Rows that held NaN or infinite numbers when their page was written, the first that were seen."""
        return self._mover.not_finite

    def fill_with(self, table: str, fill: Fill) -> None:
        """`fill(pages, frames)` puts pages of the table that were never written to their initial rows."""
        self._mover.fills[table] = fill

    def announce(self, batch_index: int, rows: Sequence[np.ndarray]) -> Claim:
        """Batch `batch_index` will use these rows of each table, int64 ascending. In the order of the sequence.

        Waits while too many batches are announced. Raises ConfigError where the budget can't hold the batch.
        """
        claim = Claim(
            np.concatenate([table.pages_of(part) for table, part in zip(self.tables.values(), rows, strict=True)]),
            batch_index,
        )
        if claim.pages.size > self.frames:
            raise too_small(f"batch {batch_index}", claim.pages.size, self.frames, self.page_bytes)
        with self._room:
            self._wait(self._room, lambda: self.directory.can_announce(claim.pages))
            self.directory.announce(claim.pages, batch_index)
        return claim

    def fetch(self, claim: Claim) -> None:
        """Gets the claim's pages frames, waiting while others hold too many, and starts reading those that lack."""
        with self._lock:
            # What it waits for is looked at again when that may have changed, not at every page that was moved.
            while shortage := self._shortage(claim.pages):
                (self._written if shortage == ON_ITS_WAY else self._room).wait()
            claim.ticket, self._tickets = self._tickets, self._tickets + 1
            with self._failing():
                moves = self._moves(claim.ticket, *self.directory.hold(claim.pages, claim.batch_index))
            self.traffic.pages_asked += claim.pages.size
            if moves:
                self._unfinished[claim.ticket] = len(moves)
            self._room.notify_all()
        for move in moves:
            self.files.submit(self._exchange, move)

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
                    slots = self._new_slots(pages)
            for part in self.files.jobs(pages.size):
                move = Move(-1, out_pages=pages[part], out_frames=frames[part], out_slots=slots[part])
                self.files.submit(self._write_out, move)
            with self._written:
                self._wait(self._written, lambda: self._writes == 0)
        if sync:
            self.files.sync()

    def saved(self, table: str, num_rows: int) -> dict[str, np.ndarray]:
        """Where the pages of a flushed table lie: `slots`, int64, -1 where never written, and `checksums`, uint64."""
        pages = self.tables[table].first_pages(num_rows)
        return {"slots": self.slot_of[pages] - 1, "checksums": self.checksum_of[pages].copy()}

    def keep(self, slots: np.ndarray) -> None:
        """A checkpoint refers to these slots, -1 apart: they stay as they are.

        Raises InputError where they can't be any that were written.
        """
        self.files.check_slots(slots)
        with self._lock, self._failing():
            self._slots.refer(slots[slots >= 0])

    def let_go(self, slots: np.ndarray) -> None:
        """The checkpoint that referred to these slots is gone."""
        with self._lock:
            self._slots.let_go(slots[slots >= 0])

    def forget(self) -> None:
        """No page was ever written and none is in memory; nothing else may be using the tier."""
        self.directory.forget()
        if self._slots.used:
            written = np.flatnonzero(self.slot_of)
            self.slot_of[written], self.checksum_of[written] = 0, 0
        self._slots.forget()

    def restore(self, table: str, slots: np.ndarray, checksums: np.ndarray) -> None:
        """The table's pages are the ones of `saved`; after `forget`."""
        self.keep(slots)
        first = self.tables[table].first_page
        pages = slice(first, first + len(slots))
        self.slot_of[pages], self.checksum_of[pages] = slots + 1, checksums

    @property
    def nbytes(self) -> int:
        """Bytes of memory for pages."""
        return self.memory.nbytes

    def metrics(self) -> dict[str, float]:
        """Traffic so far, in the terms of a run's metrics. Pages that were asked for and were there are hits."""
        traffic, size = self.traffic, self.page_bytes
        missed = traffic.pages_read + traffic.pages_computed
        return {
            "disk.bytes_read": traffic.pages_read * size,
            "disk.bytes_written": traffic.pages_written * size,
            "disk.pages_computed": traffic.pages_computed,
            "disk.requests": traffic.requests,
            "disk.hit_rate": 1 - missed / max(traffic.pages_asked, 1),
            "disk.bytes_in_use": self._slots.used * size,
        }

    def close(self) -> None:
        """Waits for the I/O threads to end what they do, and lets go of files and memory. Closing twice is the same."""
        self.files.close()
        self.memory = self.memory[:0, :0].copy()

    def __enter__(self) -> DiskTier:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _wait(self, condition: threading.Condition, ready: Callable[[], bool]) -> None:
        condition.wait_for(lambda: self._error is not None or ready())
        if self._error is not None:
            raise self._error

    def _shortage(self, pages: np.ndarray) -> int:
        if self._error is not None:
            raise self._error
        return self.directory.shortage(pages)

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            self._error = self._error or error
            for condition in (self._room, self._loaded, self._written):
                condition.notify_all()

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

    def _moves(self, ticket: int, missing: np.ndarray, victims: np.ndarray) -> list[Move]:
        """Jobs, by ascending slot so that neighbours are read together. The lock is held."""
        slots = self.slot_of[missing] - 1
        order = np.argsort(slots, kind="stable")
        missing, victims, slots = missing[order], victims[order], slots[order]
        frames, leaving = self.directory.frames_of(missing), victims >= 0
        out_slots = np.full(victims.size, -1)
        out_slots[leaving] = self._new_slots(victims[leaving])
        moves = []
        for part in self.files.jobs(missing.size):
            out = leaving[part]
            moves.append(
                Move(
                    ticket, missing[part], frames[part], slots[part],
                    victims[part][out], frames[part][out], out_slots[part][out],
                )
            )  # fmt: skip
        return moves

    def _exchange(self, move: Move) -> None:
        """One job, in an I/O thread: what is to come comes first, somebody waits for it."""
        with self._failing():
            self._mover.copy_out(move)
            self._mover.bring_in(move)
            with self._loaded:
                self._unfinished[move.ticket] -= 1
                if not self._unfinished[move.ticket]:
                    del self._unfinished[move.ticket]
                    self._loaded.notify_all()
            self._mover.write(move)
            self._moved(move)

    def _write_out(self, move: Move) -> None:
        """Writes changed pages that stay in memory, and lets go of them."""
        with self._failing():
            self._mover.copy_out(move)
            self._mover.write(move)
            self._moved(move)
            self.release(Claim(move.out_pages))

    def _moved(self, move: Move) -> None:
        with self._written:
            self.slot_of[move.out_pages] = move.out_slots + 1
            self.checksum_of[move.out_pages] = move.out_checksums
            self._writes -= move.out_pages.size
            computed = int(np.searchsorted(move.slots, 0))
            self.traffic.pages_computed += computed
            self.traffic.pages_read += move.pages.size - computed
            self.traffic.pages_written += move.out_pages.size
            self.traffic.requests += move.requests
            self._written.notify_all()
