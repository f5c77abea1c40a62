"""All-reduce of gradients: the update of the global batch on every trainer."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from marius_oac.nodes.dense.allreduce import AllReduce
from marius_oac.nodes.groups.thread_group import ThreadGroup
from tests.nodes.worlds import together

SHAPES = st.lists(st.lists(st.integers(0, 5), max_size=3).map(tuple), min_size=1, max_size=4)


def random(shapes, seed):
    generator = np.random.default_rng(seed)
    return [torch.from_numpy(np.asarray(generator.standard_normal(shape), np.float32)) for shape in shapes]


@settings(deadline=None, max_examples=30)
@given(SHAPES, st.integers(1, 4))
def test_gradients_are_the_sum_of_shares(shapes, size):
    shares = [(rank + 1) / (size * (size + 1) / 2) for rank in range(size)]

    def work(group):
        sync = AllReduce(group)
        parameters = [each.requires_grad_() for each in random(shapes, group.rank)]
        sync.attach(parameters)
        gradients = random(shapes, 100 + group.rank)
        assert sync.reduce(gradients, shares[group.rank]) is True, "the optimizer goes on"
        return [each.detach() for each in parameters], gradients

    found = together(ThreadGroup.members(size), work)
    expected = [sum(share * one for share, one in zip(shares, each, strict=True))
                for each in zip(*(random(shapes, 100 + rank) for rank in range(size)), strict=True)]  # fmt: skip
    for parameters, gradients in found:
        for mine, first, given_, sums in zip(parameters, random(shapes, 0), gradients, expected, strict=True):
            assert torch.equal(mine, first), "all begin with rank 0's values"
            torch.testing.assert_close(given_, sums)
        assert all(torch.equal(a, b) for a, b in zip(gradients, found[0][1], strict=True))


def test_one_trainer_keeps_the_bits():
    sync = AllReduce(*ThreadGroup.members(1))
    values = torch.tensor([0.1, -0.0, 1e-42, 3e38, float("inf"), float("nan")])
    sync.attach([torch.zeros(6)])
    gradients = values.clone()
    sync.reduce([gradients], 1.0)
    assert gradients.numpy().tobytes() == values.numpy().tobytes()


def test_bytes_and_synchronisations_are_counted():
    def work(group):
        sync = AllReduce(group)
        sync.attach([torch.zeros(30)])
        for batch_index in range(4):
            sync.reduce([torch.ones(30)], 1 / 3)
            sync.updated(batch_index)
        mine = sync.metrics()
        sync.finish()
        return mine, sync.metrics()

    for mine, whole in together(ThreadGroup.members(3), work):
        assert mine["bytes"] == 4 * (2 * 2 * 120 // 3)
        assert (mine["iterations"], mine["syncs"], mine["average_sync_gap"]) == (4, 4, 1)
        assert (whole["iterations"], whole["syncs"], whole["average_sync_gap"]) == (12, 12, 1)
        assert mine["seconds_per_sync"] > 0


def test_gradients_of_other_shapes_are_refused():
    sync = AllReduce(*ThreadGroup.members(1))
    sync.attach([torch.zeros(2)])
    sync.reduce([torch.zeros(2)], 1.0)
    with pytest.raises(ValueError, match=r"tensors have the shapes \[\(3,\)\], not \[\(2,\)\]"):
        sync.reduce([torch.zeros(3)], 1.0)
    with pytest.raises(ValueError, match="attached already"):
        sync.attach([torch.zeros(2)])
    with pytest.raises(ValueError, match="one type and device"):
        AllReduce(*ThreadGroup.members(1)).attach([torch.zeros(2), torch.zeros(2, dtype=torch.float64)])
