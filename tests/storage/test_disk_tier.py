"""The disk tier in forced schedules: a disk that waits when it is told to, and fails when it is told to."""

import errno
import os
import threading
import types
from contextlib import ExitStack, suppress
from functools import partial

import numpy as np
import pytest

from marius_oac.errors import ConfigError, InputError
from marius_oac.runtime.channel import Closed
from marius_oac.storage import disk_tier
from marius_oac.storage.contract import RowLayout
from marius_oac.storage.disk import SsdStore
from marius_oac.storage.disk_tier import Claim, DiskTier
from marius_oac.storage.initial import RowInitial
from marius_oac.storage.page_files import HEADER_BYTES, Listing, PageFiles
from marius_oac.storage.paged_table import FRAME_BYTES
from tests.threads import PATIENCE, in_thread, joined

PAGE, ROWS = 4096, 12
LAYOUT = RowLayout(256, 256)  # one row in a page


class Disk(PageFiles):
    """Page files that tell what they do, and stop or fail before they do it where a test has said so."""

    def __init__(self, folder, depth=4):
        self.told, self.gates, self.errors, self.reached = [], {}, {}, {}
        super().__init__(folder, Listing.new(PAGE), "buffered", depth, create=True)

    def stop(self, what):
        """The next `read` or `write` waits until the event is set; `reached[what]` says that it has begun."""
        self.reached[what], self.gates[what] = threading.Event(), threading.Event()
        return self.gates[what]

    def _around(self, what, slots, move):
        self.told.append((what, "begins", slots.tolist()))
        if gate := self.gates.pop(what, None):
            self.reached[what].set()
            assert gate.wait(PATIENCE)
        if what in self.errors:
            raise self.errors[what]
        moved = move()
        self.told.append((what, "ends", slots.tolist()))
        return moved

    def read(self, slots, addresses):
        return self._around("read", slots, lambda: super(Disk, self).read(slots, addresses))

    def write(self, slots, addresses):
        return self._around("write", slots, lambda: super(Disk, self).write(slots, addresses))


class Counted(threading.Condition):
    """Tells who waits for it."""

    waits = threading.Semaphore(0)

    def wait(self, timeout=None):
        Counted.waits.release()
        return super().wait(timeout)


@pytest.fixture
def tiers(tmp_path, monkeypatch):
    """`tiers(frames)` -> a tier of `frames` pages with one table, its store and its disk."""
    Counted.waits = threading.Semaphore(0)
    shim = types.SimpleNamespace(RLock=threading.RLock, Lock=threading.Lock, Condition=Counted)
    monkeypatch.setattr(disk_tier, "threading", shim)
    with ExitStack() as stack:

        def make(frames, look_ahead=8, tables=("rows",)):
            (tmp_path / "disk").mkdir(exist_ok=True)
            disk = Disk(tmp_path / "disk")
            budget = frames * (PAGE + FRAME_BYTES)
            tier = stack.enter_context(
                DiskTier(disk, dict.fromkeys(tables, LAYOUT), dict.fromkeys(tables, ROWS), budget, look_ahead)
            )
            stores = [
                stack.enter_context(SsdStore(name, ROWS, LAYOUT, RowInitial("normal", 1.0, 0, name), tier))
                for name in tables
            ]
            return tier, stores, disk

        yield make


def parked(tier, count=1):
    """Returns when so many more threads wait in the tier."""
    for _ in range(count):
        assert Counted.waits.acquire(timeout=PATIENCE), "nobody waits"
    with tier._lock:
        pass


def ids(*rows):
    return np.array(rows, np.int64)


def values(number):
    return np.full((1, LAYOUT.width), number, np.float32)


def write(store, row, number):
    store.commit(ids(row), values(number), number)


def read(store, row):
    into, timestamps = values(0), np.zeros(1, np.int64)
    store.read(ids(row), into, timestamps)
    assert timestamps[0] < 0 or into.min() == into.max(), "a mixed row"
    return float(into[0, 0])


def test_a_page_on_its_way_to_the_disk_is_not_read_before_it_is_there(tiers):
    tier, (store,), disk = tiers(1)
    write(store, 0, 7)
    gate = disk.stop("write")
    write(store, 1, 8)  # page 0 leaves; somebody is served before it is written
    assert disk.reached["write"].wait(PATIENCE)
    (slot,) = disk.told[-1][2]
    thread, outcome = in_thread(lambda: read(store, 0))
    parked(tier)
    assert not [told for told in disk.told if told[0] == "read"]
    gate.set()
    assert joined(thread, outcome) == 7
    assert disk.told.index(("write", "ends", [slot])) < disk.told.index(("read", "begins", [slot]))


def test_who_comes_is_served_before_who_leaves_is_written(tiers):
    tier, (store,), disk = tiers(1)
    write(store, 0, 7)
    gate = disk.stop("write")
    write(store, 1, 8)
    assert disk.reached["write"].wait(PATIENCE) and read(store, 1) == 8
    gate.set()
    tier.flush()
    assert (read(store, 0), read(store, 1)) == (7, 8)


def test_what_is_written_while_it_is_flushed_is_not_lost(tiers):
    tier, (store,), disk = tiers(2)
    write(store, 0, 7)
    gate = disk.stop("write")
    thread, outcome = in_thread(tier.flush)
    assert disk.reached["write"].wait(PATIENCE)
    write(store, 0, 9)
    gate.set()
    assert joined(thread, outcome) is None
    for row in range(1, 6):
        read(store, row)
    assert read(store, 0) == 9


def test_a_claim_gets_all_its_frames_or_none(tiers):
    tier, _, _ = tiers(4)
    first, second = (tier.announce(n, [rows]) for n, rows in enumerate((ids(0, 1, 2), ids(3, 4, 5))))
    tier.fetch(first)
    tier.wait(first)
    thread, outcome = in_thread(lambda: tier.fetch(second))
    parked(tier)
    assert not tier.directory.arrays.frame_of[3:6].any()
    other = Claim(ids(11))  # there is a frame for one page
    tier.fetch(other)
    tier.release(other)
    assert not outcome
    tier.release(first)
    assert joined(thread, outcome) is None
    assert tier.directory.arrays.frame_of[3:6].all()
    tier.wait(second)
    tier.release(second)


def test_who_announces_too_much_waits_for_who_fetches(tiers):
    tier, _, _ = tiers(2, look_ahead=1)
    claims = []

    def announce():
        for sequence in range(20):
            claims.append(tier.announce(sequence, [ids(sequence % ROWS)]))

    thread, outcome = in_thread(announce)
    parked(tier)
    assert 1 <= len(claims) <= 2
    for sequence in range(20):
        while len(claims) <= sequence:
            parked(tier)
        tier.fetch(claims[sequence])
        tier.wait(claims[sequence])
        tier.release(claims[sequence])
    assert joined(thread, outcome) is None


def test_a_batch_that_the_memory_can_not_hold_is_refused_with_what_it_takes(tiers):
    tier, _, _ = tiers(3)
    with pytest.raises(ConfigError, match=r"storage.memory: batch 5 uses 4 pages .* 3: 1 MiB are needed at least"):
        tier.announce(5, [ids(0, 1, 2, 3)])
    tier.announce(5, [ids(0, 1, 2)])


def outcome_of(work):
    """What it returns, or the error that the tier made of the disk's."""
    try:
        return work()
    except InputError as error:
        return error


BROKEN = OSError(errno.EIO, os.strerror(errno.EIO), "/disk/0.pages")


@pytest.mark.parametrize("what", ["read", "write"])
def test_a_disk_that_fails_fails_every_call_from_then_on(tiers, what):
    tier, (store,), disk = tiers(1)
    write(store, 0, 1)
    write(store, 1, 2)
    tier.flush()
    claim = tier.announce(0, [ids(0)])
    later = tier.announce(1, [ids(1)])
    if what == "write":
        write(store, 1, 3)
    disk.errors[what] = BROKEN
    tier.fetch(claim)
    calls = (
        lambda: tier.wait(Claim(ids(0), ticket=tier._tickets)) if what == "write" else tier.wait(claim),
        lambda: tier.fetch(later),
        lambda: tier.announce(2, [ids(0)]),
        lambda: read(store, 3),
        lambda: write(store, 3, 4),
        lambda: tier.flush(),
    )
    disk._threads.submit(int).result()
    disk._threads.shutdown()  # what has been asked for has failed
    for call in calls:
        with pytest.raises(InputError, match="/disk/0.pages: page file: Input/output error") as caught:
            call()
        assert isinstance(caught.value.__cause__, OSError)


def test_no_room_on_the_disk_fails_who_asked_and_everybody_later(tiers, monkeypatch):
    tier, (store,), disk = tiers(1)
    write(store, 0, 1)

    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    for call in (lambda: read(store, 1), lambda: tier.flush(), lambda: write(store, 0, 2)):
        with pytest.raises(InputError, match="page file: No space left on device") as caught:
            call()
        assert caught.value.where == str(disk.path_of(0))


@pytest.mark.parametrize("error", [None, BROKEN])
def test_everybody_who_waits_is_woken(tiers, error):
    """By `abort`, or by an I/O thread that fails."""
    tier, (store,), disk = tiers(2, look_ahead=1)
    for row in range(4):
        write(store, row, row)
    tier.flush()
    claims = [tier.announce(number, [rows]) for number, rows in enumerate((ids(0, 1), ids(1, 2)))]
    gate = disk.stop("read")
    tier.fetch(claims[0])
    assert disk.reached["read"].wait(PATIENCE)
    waiting = [
        in_thread(partial(outcome_of, work))
        for work in (
            lambda: tier.wait(claims[0]),
            lambda: tier.fetch(claims[1]),
            lambda: [tier.announce(number, [ids(5)]) for number in range(2, 9)],
            lambda: read(store, 7),
        )
    ]
    parked(tier, len(waiting))
    if error is None:
        tier.abort()
        found = [joined(*each) for each in waiting]
        assert [type(each) for each in found] == [Closed] * len(waiting)
        gate.set()
        with pytest.raises(Closed):
            tier.announce(9, [ids(0)])
        return
    disk.errors["read"] = error
    gate.set()
    assert [type(joined(*each)) for each in waiting] == [InputError] * len(waiting)
    with pytest.raises(InputError, match="Input/output error"):
        tier.wait(claims[0])


def test_whoever_flushes_is_woken_too(tiers):
    tier, (store,), disk = tiers(2)
    write(store, 0, 7)
    gate = disk.stop("write")
    thread, outcome = in_thread(tier.flush)
    parked(tier)
    tier.abort()
    assert isinstance(joined(thread, outcome), Closed)
    gate.set()


def open_pages():
    links = (os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd"))
    return [link for link in links if link.endswith(".pages")]


@pytest.mark.parametrize("how", ["in peace", "after an error", "while it writes"])
def test_nothing_is_left_when_it_is_closed(tiers, how):
    before = threading.active_count()
    tier, (store,), disk = tiers(1)
    write(store, 0, 1)
    if how == "after an error":
        disk.errors["write"] = BROKEN
    gate = disk.stop("write") if how == "while it writes" else None
    assert len(open_pages()) == 1
    with suppress(InputError):  # of the write, which begins when this row is there
        write(store, 1, 2)
    if gate:
        assert disk.reached["write"].wait(PATIENCE)
        thread, outcome = in_thread(tier.close)
        gate.set()
        assert joined(thread, outcome) is None
        assert disk.told[-1][:2] == ("write", "ends")
    tier.close()
    tier.close()
    assert threading.active_count() == before and open_pages() == []
    assert tier.nbytes == 0


def saved_and_forgotten(tier, names=("rows",)):
    """As a run does that goes on from a checkpoint."""
    tier.flush(sync=True)
    saved = {name: tier.saved(name, ROWS) for name in names}
    tier.forget()
    assert not tier.slot_of.any() and not tier.checksum_of.any()
    for name in names:
        tier.restore(name, saved[name]["slots"], saved[name]["checksums"])
    return saved


def overwrite(disk, slot, content, offset=0):
    with open(disk.path_of(slot), "r+b") as file:
        file.seek(HEADER_BYTES + slot * PAGE + offset)
        file.write(content)


def bytes_in_use(tier):
    return tier.metrics()["disk.bytes_in_use"]


def content_of(disk, slot):
    return disk.path_of(slot).read_bytes()[HEADER_BYTES + slot * PAGE :][:PAGE]


@pytest.mark.parametrize("damage", ["a bit", "torn", "stale", "misplaced", "zeros"])
def test_a_page_that_is_not_what_was_written_is_named(tiers, damage):
    tier, stores, disk = tiers(4, tables=("one", "two"))
    for number, store in enumerate(stores):
        for row in range(ROWS):
            write(store, row, 100 * number + row + 1)
    old = saved_and_forgotten(tier, ("one", "two"))
    before = content_of(disk, int(old["two"]["slots"][5]))
    write(stores[1], 5, 300)
    slots = saved_and_forgotten(tier, ("one", "two"))["two"]["slots"]
    slot = int(slots[5])
    good = content_of(disk, slot)
    content = {
        "a bit": good[:77] + bytes([good[77] ^ 2]) + good[78:],
        "torn": good[:2048] + before[2048:],
        "stale": before,
        "misplaced": content_of(disk, int(slots[6])),
        "zeros": bytes(PAGE),
    }[damage]
    assert content != good
    overwrite(disk, slot, content)
    assert read(stores[0], 5) == 6 and read(stores[1], 6) == 107
    with pytest.raises(InputError) as caught:
        read(stores[1], 5)
    named = f"{disk.path_of(slot)}: slot {slot} is damaged or stale: rows 5 to 5 of table 'two'"
    assert str(caught.value) == f"{named} are not what was written there"
    with pytest.raises(InputError, match="is damaged or stale"):
        read(stores[0], 0)


def test_what_a_checkpoint_refers_to_stays_until_it_is_let_go(tiers):
    tier, (store,), disk = tiers(3)
    for row in range(ROWS):
        write(store, row, row + 1)
    tier.flush()
    kept = tier.saved("rows", ROWS)
    tier.keep(kept["slots"])
    contents = [content_of(disk, int(slot)) for slot in kept["slots"]]
    for number in range(200):
        write(store, number % ROWS, 100 + number)
    tier.flush()
    assert [content_of(disk, int(slot)) for slot in kept["slots"]] == contents
    assert set(tier.saved("rows", ROWS)["slots"].tolist()).isdisjoint(kept["slots"].tolist())
    assert bytes_in_use(tier) == 2 * ROWS * PAGE
    tier.let_go(kept["slots"])
    assert bytes_in_use(tier) == ROWS * PAGE


def test_rows_that_were_never_written_take_no_disk(tiers):
    tier, (store,), disk = tiers(2)
    expected = np.empty((ROWS, LAYOUT.width), np.float32)
    store.initial.fill(np.arange(ROWS), expected, LAYOUT.dimension)
    into, timestamps = np.empty_like(expected), np.zeros(ROWS, np.int64)
    for _ in range(2):
        store.read(np.arange(ROWS), into, timestamps)
        np.testing.assert_array_equal(into, expected)
    assert (disk.told, bytes_in_use(tier)) == ([], 0)
    assert ROWS < tier.metrics()["disk.pages_computed"] <= 2 * ROWS
    assert (tier.saved("rows", ROWS)["slots"] == -1).all()
