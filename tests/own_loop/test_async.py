"""The mode async: rows that are read are as stale as the pipeline lets them be, and lost updates are counted."""

import threading

import pytest
import torch

from marius_oac.storage.memory import MemoryStore
from tests.own_loop.loops import Loop, after, key_batches, trained


def same_key(count):
    return [{"item": torch.tensor([1])} for _ in range(count)]


def test_one_batch_in_flight_loses_nothing():
    loop = Loop(mode="async", in_flight=1)
    with loop.engine as engine:
        for batch in engine.batches(key_batches(40)):
            loop.train(batch)
    assert engine.lost == 0 and torch.equal(loop.table(), after(40))


@pytest.mark.parametrize("mode", ["async", "oac"])
def test_updates_of_rows_that_were_read_before_are_lost_and_counted(mode, monkeypatch):
    """Batches are written when the last one has been read: each but the first overwrites the one before."""
    count, read, all_read = 5, [], threading.Event()
    fetched, name = MemoryStore._read, "_overwrite" if mode == "async" else "_commit"
    write = getattr(MemoryStore, name)

    def reading(*given):
        fetched(*given)
        read.append(1)
        if len(read) == count:
            all_read.set()

    def writing(*given):
        assert all_read.wait(30)
        return write(*given)

    monkeypatch.setattr(MemoryStore, "_read", reading)
    monkeypatch.setattr(MemoryStore, name, writing)
    loop = Loop(mode=mode, in_flight=8)
    with loop.engine as engine:
        for batch in engine.batches(same_key(count)):
            loop.train(batch)
    assert engine.lost == (count - 1 if mode == "async" else 0)
    assert torch.equal(loop.table(), trained(same_key(1 if mode == "async" else count), mode="sync"))


def test_batches_that_change_nothing_overwrite_nothing():
    """Those that the loop drops, and those that were drawn ahead of a break."""
    loop = Loop(mode="async", in_flight=8)
    with loop.engine as engine:
        for number, batch in enumerate(engine.batches(same_key(30))):
            if number == 0:
                loop.train(batch)
            if number == 3:
                break
        assert engine.lost == 0 and torch.equal(loop.table(), trained(same_key(1), mode="sync"))
