"""Slices of dense parameters, with an optimizer each, are the step's own optimizer on the whole."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from marius_oac.config.sections import DenseOptimizerConfig, OptimizerConfig
from marius_oac.models.compute.network_parameters import NetworkParameters
from marius_oac.models.compute.update import Update
from marius_oac.models.link_prediction.relations import RelationTable
from marius_oac.nodes.dense.allreduce import AllReduce, bounds_of
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


def network_parameters(kind, weight_decay, decay):
    config = DenseOptimizerConfig(kind=kind, learning_rate=0.05, weight_decay=weight_decay, decay=decay)
    return NetworkParameters(Toy(), config)


def relation_table(kind, weight_decay, decay):
    config = OptimizerConfig(kind=kind, learning_rate=0.05, initial_accumulator=0.1, decay=decay)
    values = np.random.default_rng(4).normal(size=(RELATIONS, WIDTH)).astype(np.float32)
    return RelationTable(values, config, torch.device("cpu"), at_once=False)


class Model:
    """Groups of dense parameters, and their gradients as one vector; a relation's gradient is often zero."""

    def __init__(self, *groups):
        (group,) = ThreadGroup.members(1)
        self.served, self.groups = Update.elsewhere(AllReduce(group)), groups
        for each in groups:
            self.served.own(each)
        self.served.ready()

    def step(self, gradient, timestamp, epoch):
        parameters = [each for group in self.groups for each in group.parameters]
        parts = torch.from_numpy(gradient.copy()).split([each.numel() for each in parameters])
        for parameter, part in zip(parameters, parts, strict=True):
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            parameter.grad.copy_(part.view(parameter.shape))
        self.served.dense(0.0, BatchData(epoch=epoch), timestamp)

    def state(self):
        return {name: each.detach().numpy().copy() for name, each in self.served.state().items()}


def dense(*how):
    return Model(network_parameters(*how))


def relations(*how):
    return Model(relation_table(*how))


def both(kind, weight_decay, decay):
    """An encoder below a head with relations; the rates decay differently."""
    return Model(relation_table(kind, 0.0, 0.9), network_parameters(kind, weight_decay, decay))


def gradients(model, seed, count):
    """float32 [count, size]; of relations some are zero."""
    draw, first, columns = np.random.default_rng(seed), 0, []
    for group in model.groups:
        found = draw.normal(size=(count, group.size)).astype(np.float32)
        if isinstance(group, RelationTable):
            found[np.repeat(draw.random((count, RELATIONS)) < 0.4, WIDTH, axis=1)] = 0
        columns.append(found)
        first += group.size
    return np.concatenate(columns, axis=1)


decays = st.sampled_from([1.0, 0.7])
makers = st.one_of(
    st.tuples(st.sampled_from([dense, both]), st.sampled_from(DENSE), st.sampled_from([0.0, 0.1]), decays),
    st.tuples(st.just(relations), st.sampled_from(ROWS), st.just(0.0), decays),
)


@st.composite
def bounds(draw, served):
    """Of 1 to 5 slices, some of them empty; as shards have them, or anywhere."""
    if draw(st.booleans()):
        return bounds_of(served, draw(st.sampled_from([1, 2, 3, 5, 40])))
    inner = draw(st.lists(st.integers(0, served.size), max_size=4))
    return [0, *(served.cut(each) for each in sorted(inner)), served.size]


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
            each.apply(every[number, first:end].copy(), number, epoch)
    values = np.concatenate([each.values() for each in slices])
    other.served.take([each.state() for each in slices], edges)
    mine, theirs = whole.state(), other.state()
    assert mine.keys() == theirs.keys()
    for name, expected in mine.items():
        assert theirs[name].shape == expected.shape and theirs[name].dtype == expected.dtype, name
        np.testing.assert_allclose(theirs[name], expected, rtol=1e-6, atol=1e-6, err_msg=name)
    (flat,) = sliced(other, [0, other.served.size])
    assert np.array_equal(values, flat.values()), "what slices have is what the step has now"
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


@pytest.mark.parametrize("make, kinds", [(dense, DENSE), (relations, ROWS), (both, DENSE)])
def test_every_kind_moves_what_it_is_given(make, kinds):
    """Else the tests above would show little."""
    for kind in kinds:
        model = make(kind, 0.0, 1.0)
        before = model.state()
        slices = sliced(model, edges := bounds_of(model.served, 3))
        for each, first, end in zip(slices, edges, edges[1:], strict=False):
            each.apply(np.ones(end - first, np.float32), 0, 0)
        model.served.take([each.state() for each in slices], edges)
        moved = {name for name, each in model.state().items() if not np.array_equal(each, before[name])}
        network = {"network.matrix", "network.scale", "network.bias", "network.last"}
        expected = {dense: network, relations: {"relations"}, both: network | {"relations"}}[make]
        assert expected <= moved and not moved & {"network.frozen", "network.mean"}


def test_bounds_cover_all_and_no_relation_is_cut():
    for make in (dense, relations, both):
        served = make("adam", 0, 1).served
        for shards in (1, 2, 3, 5, 40):
            edges = bounds_of(served, shards)
            assert len(edges) == shards + 1 and (edges[0], edges[-1]) == (0, served.size)
            assert edges == sorted(edges)
            whole = 0 if make is dense else RELATIONS * WIDTH
            assert not any(each % WIDTH for each in edges if each < whole)
    assert bounds_of(None, 3) == [0, 0, 0, 0]
