"""Tables on disk under a fixed memory budget. Pages are loaded before a batch needs them, and evicted if no batch will
need them soon.

A batch passes through these calls:

    announce   in plan order, batches ahead: declares the rows that the batch will use  -> a Claim
    fetch      in plan order: assigns frames to its pages, and starts reading missing ones (I/O threads)
    wait       before its rows are read: waits until the pages are in memory, where they stay
    release    after its rows are written: the pages may be evicted

A changed page is copied before its frame is reused, and written after the frame's new page has been read. It goes to a
new slot (see `disk.slots`), so a checkpoint's pages are never overwritten.

Guarantees:
- A page that a claim holds stays in memory. A claim gets all its frames at once, and claims get them in order; a claim
  with frames waits only for the disk. So there is no deadlock between claims.
- A page is read only after its last write has ended, and accepted only if it has the checksum of that write. A torn,
  stale, misplaced or flipped page is an error that names it.
- With `leaves_room`, claims of batches leave frames without pins, as many as a call on demand holds (`holding`): such a
  call waits for the disk and other such calls alone, whoever keeps batches open.
- The first error of an I/O thread is raised by every call that waits, then and later; so is `Closed` after `abort`.
- `close` ends all threads and closes all files. Data that is not in a checkpoint is lost then.

One lock protects directory and slots. It is never held during I/O.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from marius_oac.errors import InputError
from marius_oac.runtime.channel import Closed
from marius_oac.runtime.closing import Closable
from marius_oac.runtime.machine.numa_memory import MemoryPolicy, memory_policy
from marius_oac.storage.backing import Backing
from marius_oac.storage.contract import RowLayout
from marius_oac.storage.disk.directory import ON_ITS_WAY, WRITING, Directory, zeros
from marius_oac.storage.disk.files import PageFiles
from marius_oac.storage.disk.layout import PagedTable, frames_beside, frames_in, on_demand, too_small
from marius_oac.storage.disk.moves import Fill, Move, PageMover, Traffic
from marius_oac.storage.disk.slots import Slots
from marius_oac.storage.reserved import reserve

_ENTRIES_PER_FRAME = 12  # with fewer, look-ahead is too short to decide every eviction (`benchmarks/disk/eviction.py`)


@dataclass
class Claim:
    """The pages that a batch uses, int64 [n], ascending."""

    pages: np.ndarray
    batch_index: int = -1
    ticket: int = -1


class DiskTier(Backing, Closable):
    """Caches pages of tables in frames of memory.

    Args:
        files: the page files, closed with the tier. A page holds at least one row of any table.
        layouts: of each table, by name.
        capacities: the largest number of rows of each table, by name.
        budget: bytes for frames and their overhead; see `frames_in`.
        look_ahead: the number of batches that may be announced but not fetched yet.
        policy: the placement of the memory on NUMA nodes.
        leaves_room: batches may be open for as long as somebody likes, who reads other rows meanwhile.

    Attributes:
        on_demand: the most pages that a call on demand may hold.
    """

    def __init__(
        self,
        files: PageFiles,
        layouts: Mapping[str, RowLayout],
        capacities: Mapping[str, int],
        budget: int,
        look_ahead: int,
        policy: MemoryPolicy | None = None,
        leaves_room: bool = False,
    ):
        self.files, self.page_bytes, self.traffic = files, files.page_bytes, Traffic()
        self.look_ahead = look_ahead
        self.tables: dict[str, PagedTable] = {}
        first = 0
        for name, layout in layouts.items():
            rows = self.page_bytes // layout.row_bytes
            self.tables[name] = PagedTable(name, layout, rows, first, -(-capacities[name] // rows))
            first += self.tables[name].num_pages
        self.frames = min(frames_in(budget, self.page_bytes), frames_beside(first) if leaves_room else first)
        self.on_demand = on_demand(self.frames)
        self._spare = self.on_demand if leaves_room else 0
        self.slot_of, self.checksum_of = zeros(first, np.int64), zeros(first, np.uint64)  # slot + 1; 0: none
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
        """The first rows seen that held NaN or infinite numbers when their page was written; None: none."""
        return self._mover.not_finite

    def fill_with(self, table: str, fill: Fill) -> None:
        """Sets the function `fill(pages, frames)`, which writes initial rows to a table's pages that were never
        written."""
        self._mover.fills[table] = fill

    def announce(self, batch_index: int, rows: Sequence[np.ndarray]) -> Claim:
        """See `Backing.announce`. Raises ConfigError if the budget can't hold the batch."""
        claim = Claim(
            np.concatenate([table.pages_of(part) for table, part in zip(self.tables.values(), rows, strict=True)]),
            batch_index,
        )
        if claim.pages.size > self.frames - self._spare:
            raise too_small(f"batch {batch_index}", claim.pages.size, self.frames, self.page_bytes, self._spare)
        with self._room:
            self._wait(self._room, lambda: self.directory.can_announce(claim.pages))
            self.directory.announce(claim.pages, batch_index)
        return claim

    def fetch(self, claim: Claim) -> None:
        """Assigns frames to the claim's pages, and starts reading missing pages. Waits while others hold too many."""
        with self._lock:
            # It waits for the condition that the shortage depends on, not for every page that is moved.
            while shortage := self._shortage(claim):
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
        """Waits until the pages of a fetched claim are in memory."""
        with self._loaded:
            self._wait(self._loaded, lambda: self._first_unfinished() > claim.ticket)

    def release(self, claim: Claim, oldest: bool = False) -> None:
        """Releases the claim's pages. With `oldest` they are evicted before pages that were used earlier."""
        with self._room:
            self.directory.release(claim.pages, oldest)
            self._room.notify_all()

    @contextmanager
    def holding(self, pages: np.ndarray, oldest: bool = False) -> Iterator[None]:
        """Within the block the pages, int64 [n], ascending, at most `on_demand`, are in memory. They need not be
        announced."""
        claim = Claim(pages)
        self.fetch(claim)
        try:
            self.wait(claim)
            yield
        finally:
            self.release(claim, oldest)

    def abort(self) -> None:
        """See `Backing.abort`."""
        self._fail(Closed("disk tier"))

    def flush(self, sync: bool = False) -> None:
        """Writes every changed page. With `sync` the files are also flushed to the disk."""
        with self._flushing:
            with self._lock:
                pages = self.directory.dirty_pages(0, self.slot_of.size)
                self.directory.hold(pages)  # they are all in memory; this keeps them there
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
        """The positions of the pages of a flushed table: `slots`, int64 [n], -1 if never written, and `checksums`,
        uint64 [n]."""
        pages = self.tables[table].first_pages(num_rows)
        return {"slots": self.slot_of[pages] - 1, "checksums": self.checksum_of[pages].copy()}

    def keep(self, references: np.ndarray) -> None:
        """See `Backing.keep`; -1 is no slot, and is skipped."""
        self.files.check_slots(references)
        with self._lock, self._failing():
            self._slots.refer(references[references >= 0])

    def let_go(self, references: np.ndarray) -> None:
        """See `Backing.let_go`."""
        with self._lock:
            self._slots.let_go(references[references >= 0])

    def forget(self) -> None:
        """See `Backing.forget`."""
        self.directory.forget()
        if self._slots.used:
            written = np.flatnonzero(self.slot_of)
            self.slot_of[written], self.checksum_of[written] = 0, 0
        self._slots.forget()

    def restore(self, table: str, slots: np.ndarray, checksums: np.ndarray) -> None:
        """Sets the table's pages to those of `saved`, after `forget`. Raises InputError as `keep`."""
        self.keep(slots)
        first = self.tables[table].first_page
        pages = slice(first, first + len(slots))
        self.slot_of[pages], self.checksum_of[pages] = slots + 1, checksums

    @property
    def nbytes(self) -> int:
        """The memory for pages in bytes."""
        return self.memory.nbytes

    def metrics(self) -> dict[str, float]:
        """Traffic so far, by the names of a run's metrics. Pages that were in memory when needed are hits."""
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
        """Waits for the I/O threads, and frees files and memory. A second call does nothing."""
        self.files.close()
        self.memory = self.memory[:0, :0].copy()

    def _wait(self, condition: threading.Condition, ready: Callable[[], bool]) -> None:
        condition.wait_for(lambda: self._error is not None or ready())
        if self._error is not None:
            raise self._error

    def _shortage(self, claim: Claim) -> int:
        if self._error is not None:
            raise self._error
        return self.directory.shortage(claim.pages, self._spare if claim.batch_index >= 0 else 0)

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            self._error = self._error or error
            for condition in (self._room, self._loaded, self._written):
                condition.notify_all()

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Within the block, an error makes the tier fail, since its state may be inconsistent."""
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
        """Allocates slots for pages to be written. The caller holds the lock."""
        slots = self._slots.take(pages.size)
        before = self.slot_of[pages] - 1
        self._slots.let_go(before[before >= 0])
        self.slot_of[pages] = (slots + 1) | WRITING
        self._writes += pages.size
        return slots

    def _moves(self, ticket: int, missing: np.ndarray, victims: np.ndarray) -> list[Move]:
        """Jobs, by ascending slot so that adjacent slots are read together. The caller holds the lock."""
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
        """Runs a job in an I/O thread: first loads pages, because a batch waits for them, then writes evicted ones."""
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
        """Writes changed pages that stay in memory, and releases them."""
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
