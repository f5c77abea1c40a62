"""Slices of dense parameters, with an optimizer each, are the step's own optimizer on the whole."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from marius_oac.config.sections import DenseOptimizerConfig, OptimizerConfig
from marius_oac.models.compute.dense_optimizer import DenseOptimizer
from marius_oac.models.compute.row_optimizers import RowOptimizer
from marius_oac.models.link_prediction.replicated_relations import ReplicatedRelations
from marius_oac.nodes.dense.allreduce import AllReduce
from marius_oac.nodes.dense.served import bounds_of
from marius_oac.nodes.groups.thread_group import ThreadGroup
from marius_oac.types import BatchData

pytestmark = pytest.mark.usefixtures("one_thread")

DENSE = ("sgd", "adagrad", "adam")
ROWS = ("sgd", "adagrad", "rowwise_adagrad", "adam")
RELATIONS, WIDTH = 5, 3


class Toy(nn.Module):
    """Parameters of many shapes: a matrix, vectors, numbers, nothing; one that is not trained, and a buffer."""

    def __init__(self):
        super().__init__()
        draw = torch.Generator().manual_seed(3)
        for name, shape in {"matrix": (3, 4), "scale": (), "bias": (7,), "none": (0,), "last": (1, 1)}.items():
            self.register_parameter(name, nn.Parameter(torch.randn(shape, generator=draw)))
        self.register_parameter("frozen", nn.Parameter(torch.ones(2), requires_grad=False))
        self.register_buffer("mean", torch.zeros(3))

    @property
    def trained(self):
        return [each for each in self.parameters() if each.requires_grad]


SIZE = sum(each.numel() for each in Toy().trained)


class Dense:
    """The network's optimizer, and gradients as one vector."""

    def __init__(self, kind, weight_decay, decay):
        self.network = Toy()
        config = DenseOptimizerConfig(kind=kind, learning_rate=0.05, weight_decay=weight_decay, decay=decay)
        self.served, self.decay = DenseOptimizer(self.network, config), decay

    def step(self, gradient, timestamp, epoch):
        parts = torch.from_numpy(gradient.copy()).split([each.numel() for each in self.network.trained])
        for parameter, part in zip(self.network.trained, parts, strict=True):
            parameter.grad = part.view(parameter.shape)
        self.served.step(BatchData(epoch=epoch), timestamp)

    def state(self):
        return {name: each.detach().numpy().copy() for name, each in self.served.state().items()}


class Relations:
    """Of a graph; a relation's gradient is often zero, and then it is not touched."""

    def __init__(self, kind, weight_decay, decay):
        draw, self.decay = np.random.default_rng(4), decay
        optimizer = RowOptimizer(OptimizerConfig(kind=kind, learning_rate=0.05, initial_accumulator=0.1))
        self.table = torch.full((RELATIONS, WIDTH + optimizer.state_width(WIDTH)), optimizer.initial_state)
        self.table[:, :WIDTH] = torch.from_numpy(draw.normal(size=(RELATIONS, WIDTH)))
        (group,) = ThreadGroup.members(1)
        self.served = ReplicatedRelations(self.table, WIDTH, optimizer, AllReduce(group))

    def step(self, gradient, timestamp, epoch):
        whole = torch.from_numpy(gradient).view(RELATIONS, WIDTH)
        self.served.update_tensor(
            whole, torch.arange(RELATIONS), torch.ones(1), timestamp, self.decay**epoch if self.decay < 1 else 1.0
        )

    def state(self):
        return {"table": self.table.numpy().copy()}


def gradients(model, seed, count):
    """float32 [count, size]; of relations some are zero."""
    draw, size = np.random.default_rng(seed), model.served.size
    found = draw.normal(size=(count, size)).astype(np.float32)
    if model.served.grain > 1:
        absent = draw.random((count, size // model.served.grain)) < 0.4
        found[np.repeat(absent, model.served.grain, axis=1)] = 0
    return found


makers = st.one_of(
    st.tuples(st.just(Dense), st.sampled_from(DENSE), st.sampled_from([0.0, 0.1]), st.sampled_from([1.0, 0.7])),
    st.tuples(st.just(Relations), st.sampled_from(ROWS), st.just(0.0), st.sampled_from([1.0, 0.7])),
)


@st.composite
def bounds(draw, served):
    """Of 1 to 5 slices, some of them empty; as shards have them, or anywhere."""
    if draw(st.booleans()):
        return bounds_of(served, draw(st.sampled_from([1, 2, 3, 5, 40])))
    grains = served.size // served.grain
    inner = draw(st.lists(st.integers(0, grains), max_size=4))
    return [0, *(each * served.grain for each in sorted(inner)), served.size]


def sliced(model, edges):
    return [model.served.slice(first, end) for first, end in zip(edges, edges[1:], strict=False)]


@settings(deadline=None, max_examples=60)
@given(makers, st.data())
def test_slices_are_the_whole(maker, data):
    make, *how = maker
    whole, other = make(*how), make(*how)
    edges, seed = data.draw(bounds(whole.served)), data.draw(st.integers(0, 99))
    before, steps = data.draw(st.integers(0, 3)), data.draw(st.integers(0, 6))
    every = gradients(whole, seed, before + steps)
    for number in range(before):
        whole.step(every[number], number, 0)
        other.step(every[number], number, 0)
    slices = sliced(other, edges)
    for number in range(before, before + steps):
        epoch = number // 4
        whole.step(every[number], number, epoch)
        for each, first, end in zip(slices, edges, edges[1:], strict=False):
            each.apply(every[number, first:end].copy(), number, other.decay**epoch)
    values = np.concatenate([each.values() for each in slices])
    other.served.take([each.state() for each in slices], edges)
    mine, theirs = whole.state(), other.state()
    assert mine.keys() == theirs.keys()
    for name, expected in mine.items():
        assert theirs[name].shape == expected.shape and theirs[name].dtype == expected.dtype, name
        np.testing.assert_allclose(theirs[name], expected, rtol=1e-6, atol=1e-6, err_msg=name)
    flat = np.concatenate([each.state()[: each.values().size] for each in sliced(other, [0, other.served.size])])
    if make is Dense:
        assert np.array_equal(values, flat), "what slices have is what the step has now"
    for each in range(2):  # and both go on alike
        last = gradients(whole, seed + 1 + each, 1)[0]
        whole.step(last, before + steps + each, 2)
        other.step(last, before + steps + each, 2)
    for name, expected in whole.state().items():
        np.testing.assert_allclose(other.state()[name], expected, rtol=1e-5, atol=1e-6, err_msg=name)


@settings(deadline=None, max_examples=40)
@given(makers, st.data())
def test_to_slices_and_back_changes_no_bit(maker, data):
    make, *how = maker
    model = make(*how)
    for number, gradient in enumerate(gradients(model, 1, data.draw(st.integers(0, 3)))):
        model.step(gradient, number, 0)
    edges, before = data.draw(bounds(model.served)), model.state()
    slices = sliced(model, edges)
    model.step(gradients(model, 2, 1)[0], 9, 0)  # what a slice has is a copy
    model.served.take([each.state() for each in slices], edges)
    after = model.state()
    assert all(np.array_equal(before[name], after[name]) for name in before) and before.keys() == after.keys()


@pytest.mark.parametrize("make, kinds", [(Dense, DENSE), (Relations, ROWS)])
def test_every_kind_moves_what_it_is_given(make, kinds):
    """Else the tests above would show little."""
    for kind in kinds:
        model = make(kind, 0.0, 1.0)
        before = model.state()
        slices = sliced(model, edges := bounds_of(model.served, 3))
        for each, first, end in zip(slices, edges, edges[1:], strict=False):
            each.apply(np.ones(end - first, np.float32), 0, 1.0)
        model.served.take([each.state() for each in slices], edges)
        moved = {name for name, each in model.state().items() if not np.array_equal(each, before[name])}
        expected = {"network.matrix", "network.scale", "network.bias", "network.last"} if make is Dense else {"table"}
        assert expected <= moved and not moved & {"network.frozen", "network.mean"}


def test_bounds_are_at_grains_and_cover_all():
    for served in (Dense("adam", 0, 1).served, Relations("adam", 0, 1).served):
        for shards in (1, 2, 3, 5, 40):
            edges = bounds_of(served, shards)
            assert len(edges) == shards + 1 and (edges[0], edges[-1]) == (0, served.size)
            assert edges == sorted(edges) and not any(each % served.grain for each in edges)
    assert bounds_of(None, 3) == [0, 0, 0, 0]
