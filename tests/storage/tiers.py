"""A disk tier whose disk waits when it is told to, and fails when it is told to; the fixture `tiers` makes them."""

import errno
import os
import threading

import numpy as np

from marius_oac.storage.contract import RowLayout
from marius_oac.storage.disk.files import Listing, PageFiles
from tests.threads import PATIENCE

PAGE, ROWS = 4096, 12
LAYOUT = RowLayout(256, 256)  # one row in a page
BROKEN = OSError(errno.EIO, os.strerror(errno.EIO), "/disk/0.pages")


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
