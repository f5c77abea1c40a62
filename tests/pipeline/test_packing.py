"""All arrays of a batch in one block: what is put in comes out, and a block that is too small is replaced but kept."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from marius_oac.batches import EdgeBatch, Jagged, TableIndices
from marius_oac.pipeline.batch import Batch
from marius_oac.pipeline.device import TorchDevice, buffer_bytes
from marius_oac.pipeline.packing import Packing, data_bytes, rows_bytes
from marius_oac.storage.contract import RowLayout
from marius_oac.types import Plan, TableSpec, arrays_of

sizes = st.integers(0, 9)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(sizes, st.integers(0, 5)), max_size=3), sizes, sizes)
def test_what_is_put_in_comes_out(tables, count, values):
    counts, widths = [count for count, _ in tables], [width for _, width in tables]
    data = TableIndices(
        np.arange(2 * count).reshape(2, count),
        bags=(Jagged(np.arange(values), np.arange(count + 1)),),
        sequences=(Jagged(np.arange(values) / 2, np.arange(3, dtype=np.float32)),),
    )
    packing = Packing(counts, widths, data)
    assert packing.num_bytes == rows_bytes(counts, widths) + data_bytes(data)
    block = torch.full((packing.num_bytes,), 77, dtype=torch.uint8)
    packing.put(block)
    found = packing.data(block)
    for place, array in zip(arrays_of(found), arrays_of(data), strict=False):
        assert torch.equal(place, torch.from_numpy(array))
    assert found.singles.shape == (2, count) and found.sequences[0].offsets.dtype == torch.float32
    assert torch.equal(found.bags[0].values, torch.arange(values))
    places = sorted([*packing.values, *packing.timestamps, *packing.rows], key=lambda place: place.begin)
    assert all(one.end <= other.begin for one, other in pairwise(places))
    assert [tuple(place.of(block).shape) for place in packing.values] == tables
    assert all(place.begin % 256 == 0 for place in places)


def batch_of(number, rows, edges):
    ends = np.arange(edges) % rows
    return Batch(Plan(number, (np.arange(rows) * 2,), EdgeBatch(heads=ends, tails=ends[::-1].copy()), edges))


@pytest.mark.parametrize("later", [3, 30, 4000])
def test_a_batch_with_more_data_gets_a_larger_block_and_the_old_one_is_kept(later):
    tables, layouts = [TableSpec("t", 100, 10)], [RowLayout(3, 2)]
    device, blocks = TorchDevice(torch.device("cpu"), tables, layouts, 1, False), []
    for number, (rows, edges) in enumerate([(4, 20), (10, later)]):
        batch = batch_of(number, rows, edges)
        device.borrow(batch)
        _, timestamps, values = batch.rows_in(batch.staging, 0)
        timestamps[:], values[:] = number, torch.arange(rows * 5).view(rows, 5)
        device.upload(batch)
        ids, there, moved = batch.rows_in(batch.resident, 0)
        assert ids.tolist() == list(range(0, 2 * rows, 2)) and there.tolist() == [number] * rows
        assert torch.equal(moved, values) and moved.data_ptr() != values.data_ptr()
        assert batch.data.heads.tolist() == batch.plan.data.heads.tolist()
        assert batch.data.tails.tolist() == batch.plan.data.tails.tolist()
        blocks.append((batch.staging.block, batch.resident.block))
        with device.computing(batch):
            moved.add_(1)
        device.download(batch)
        assert values.flatten().tolist() == list(range(1, rows * 5 + 1))
        device.written(batch, cached=False)
    first = batch_of(0, 4, 20).plan.data
    assert blocks[0][0].numel() == buffer_bytes(tables, layouts, first)
    anew = 2 * (later == 4000)
    assert sum(one is not other for one, other in zip(*blocks, strict=True)) == len(device._outgrown) == anew
