"""A pool hands out each buffer to one batch at a time, and never makes more than its limit."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marius_oac.pipeline.batch import Batch, Buffers, Pool
from marius_oac.pipeline.device import HostDevice
from marius_oac.storage.contract import RowLayout
from marius_oac.types import BatchData, Plan, TableSpec
from tests.threads import in_thread, joined


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 4), st.lists(st.booleans(), max_size=40))
def test_a_pool_reuses_before_it_makes_and_never_exceeds_its_limit(limit, moves):
    pool, taken, most = Pool("test", limit, lambda: Buffers((), (), ())), [], 0
    for wants_one in moves:
        if wants_one and len(taken) == limit:
            with pytest.raises(RuntimeError, match=f"all {limit} test buffers are taken: the window does not hold"):
                pool.take()
        elif wants_one:
            buffers = pool.take()
            assert all(buffers is not other for other in taken)
            taken.append(buffers)
        elif taken:
            pool.give_back(taken.pop(0))
        most = max(most, len(taken))
        assert pool.made == most


def test_threads_never_hold_the_same_buffer():
    pool, holders = Pool("test", 4, lambda: Buffers((), (), ())), {}

    def work():
        for _ in range(500):
            buffers = pool.take()
            assert holders.setdefault(id(buffers), me := object()) is me
            del holders[id(buffers)]
            pool.give_back(buffers)

    for thread, outcome in [in_thread(work) for _ in range(4)]:
        assert joined(thread, outcome) is None
    assert pool.made <= 4


def test_a_batch_sees_its_own_rows_of_a_longer_buffer():
    buffers = Buffers(([7, 8, 9], [4, 5]), ([1, 2, 3], [0, 0]), (["a", "b", "c"], ["x", "y"]))
    batch = Batch(Plan(3, ([7, 8], []), BatchData(), 1))
    assert batch.batch_index == 3
    assert batch.rows_in(buffers, 0) == ([7, 8], [1, 2], ["a", "b"])
    assert batch.rows_in(buffers, 1) == ([], [], [])
    assert batch.rows_in(Buffers((), ([1],) * 2, (["a"],) * 2), 0)[0] is None


def test_values_are_rounded_to_what_the_store_holds_and_optimizer_state_is_not():
    layouts = RowLayout(2, 1, "bfloat16"), RowLayout(2, 1)
    device = HostDevice([TableSpec("a", 9, 3), TableSpec("b", 9, 3)], layouts, in_flight=1, caching=False)
    rows, fine = np.arange(2), np.float32(1 + 2**-12)
    batch = Batch(Plan(0, (rows, rows), BatchData(), 1))
    device.borrow(batch)
    device.upload(batch)
    for table in (0, 1):
        batch.rows_in(batch.resident, table)[2][:] = fine
    device.round(batch)
    assert batch.rows_in(batch.resident, 0)[2].tolist() == [[1, 1, fine]] * 2
    assert (batch.rows_in(batch.resident, 1)[2] == fine).all()
