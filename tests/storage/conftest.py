"""Disk tiers that many tests look at, and arithmetic that wraps round."""

import threading
import types
from contextlib import ExitStack

import numpy as np
import pytest

from marius_oac.storage.disk import tier as disk_tier
from marius_oac.storage.disk.layout import FRAME_BYTES
from marius_oac.storage.disk.store import SsdStore
from marius_oac.storage.disk.tier import DiskTier
from marius_oac.storage.initial import RowInitial
from tests.storage.tiers import LAYOUT, PAGE, ROWS, Counted, Disk


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


@pytest.fixture
def wrapping():
    """Without the JIT, NumPy warns where a product of a checksum wraps round, as it should."""
    with np.errstate(over="ignore"):
        yield
