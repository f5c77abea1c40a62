"""Races of readers and writers of one row, each forced at its moment: kernels as Python functions, over atomics that
let another thread act in between."""

import runpy
from types import SimpleNamespace

import numba
import numpy as np
import pytest

from marius_oac.kernels.cpu import atomics, rows
from marius_oac.storage.contract import RowLayout

LAYOUT = RowLayout(4, 2)
ROW = np.zeros(1, np.int64)


class Row:
    """One row in memory; `at(name)` is called before each atomic operation of that name, or copy."""

    def __init__(self, monkeypatch):
        monkeypatch.setattr(numba.config, "DISABLE_JIT", 1)
        real = runpy.run_path(atomics.__file__)
        self._memory = np.zeros(LAYOUT.row_bytes // 8 + 1, np.int64)
        self.word, self.hooks = self._memory.ctypes.data, {}
        self.table = LAYOUT.table_at(self.word)
        self.real = SimpleNamespace(**real)
        self.kernels = SimpleNamespace(**runpy.run_path(rows.__file__))
        hooked = {name: self._hooked(name, real[name]) for name in ("load", "copy_bytes", "yield_thread")}
        self.kernels.read.__globals__["atomics"] = SimpleNamespace(**real | hooked)

    def _hooked(self, name, function):
        def call(*arguments):
            return self.hooks[name](function, *arguments) if name in self.hooks else function(*arguments)

        return call

    def write(self, number, timestamp=5):
        self.kernels.overwrite(self.table, ROW, filled(number), timestamp, np.zeros(1, np.int64))


def filled(number):
    return np.full((1, LAYOUT.width), number, np.float32)


@pytest.fixture
def row(monkeypatch):
    return Row(monkeypatch)


def test_a_row_that_is_written_while_it_is_copied_is_read_again(row):
    """With the timestamp that it had: only the version tells."""
    row.write(1)

    def written_midway(copy, target, source, count):
        del row.hooks["copy_bytes"]
        copy(target, source, count // 2)
        row.write(2)
        copy(target + count // 2, source + count // 2, count - count // 2)

    row.hooks["copy_bytes"] = written_midway
    into, timestamps = filled(0), np.zeros(1, np.int64)
    row.kernels.read(row.table, ROW, into, timestamps)
    assert (into == 2).all() and timestamps.tolist() == [5]


def test_a_row_is_not_read_while_it_is_locked(row):
    row.write(1)
    unlocked = row.real.load(row.word)
    row.real.store(row.word, unlocked | 1)
    copied = []
    row.hooks["copy_bytes"] = lambda copy, *about: (copied.append(row.real.load(row.word)), copy(*about))
    row.hooks["yield_thread"] = lambda _: row.real.store(row.word, unlocked)
    row.kernels.read(row.table, ROW, filled(0), np.zeros(1, np.int64))
    assert copied == [unlocked]


@pytest.mark.parametrize("write", ["commit", "overwrite", "add", "restore"])
def test_a_writer_that_loses_the_lock_waits_for_who_has_it(row, write):
    """Another one takes it between the look at the word and the exchange, and gives it back later."""
    row.write(1)
    unlocked, released = row.real.load(row.word), []

    def taken_after(load, address):
        del row.hooks["load"]
        word = load(address)
        row.real.store(address, word | 1)
        return word

    def give_back(_):
        released.append(True)
        row.real.store(row.word, unlocked)

    def copied(copy, *about):
        assert released and row.real.load(row.word) & 1
        copy(*about)

    row.hooks |= {"load": taken_after, "yield_thread": give_back, "copy_bytes": copied}
    last = {
        "commit": (7,),
        "overwrite": (7, np.full(1, 5)),
        "add": (7, np.zeros(LAYOUT.width, np.float32)),
        "restore": (np.full(1, 7),),
    }[write]
    getattr(row.kernels, write)(row.table, ROW, filled(2), *last)
    into, timestamps = filled(0), np.zeros(1, np.int64)
    row.hooks.clear()
    row.kernels.read(row.table, ROW, into, timestamps)
    assert (into == (3 if write == "add" else 2)).all() and timestamps.tolist() == [7]
