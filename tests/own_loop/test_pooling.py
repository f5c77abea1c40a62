"""Rows picked from a leaf, bags of them and their gradients, against torch's."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from marius_oac.kernels.cpu import leaves
from marius_oac.torch.pooling import picked, pooled

MODES = st.sampled_from(["sum", "mean", "max"])


def drawn(seed, bags, rows, dimension, padding):
    """A leaf, places, where bags begin, weights, and a place of padding or -1; the last places are in no bag."""
    draw = torch.Generator().manual_seed(seed)
    sizes = torch.randint(0, 4, (bags,), generator=draw)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)])
    places = torch.randint(0, rows, (int(offsets[-1]) + seed % 3,), generator=draw)
    leaf = torch.randn(rows, dimension, generator=draw).requires_grad_()
    weights = torch.rand(len(places), generator=draw).requires_grad_()
    return leaf, places, offsets, weights, seed % rows if padding else -1


def theirs(leaf, places, offsets, mode, weights, padding):
    return functional.embedding_bag(
        places[: offsets[-1]], leaf, offsets, mode=mode, include_last_offset=True,
        per_sample_weights=None if weights is None else weights[: offsets[-1]],
        padding_idx=padding if padding >= 0 else None,
    )  # fmt: skip


def gradients(found, inputs):
    toward = torch.sin(torch.arange(found.numel()).float()).view_as(found)
    return torch.autograd.grad((found * toward).sum(), inputs)


@settings(deadline=None, max_examples=50)
@given(
    seed=st.integers(0, 1000), bags=st.integers(0, 6), rows=st.integers(1, 9), dimension=st.integers(1, 5),
    padding=st.booleans(), mode=MODES, weighted=st.booleans(),
)  # fmt: skip
def test_bags_and_their_gradients_are_those_of_torch(seed, bags, rows, dimension, padding, mode, weighted):
    leaf, places, offsets, weights, padding = drawn(seed, bags, rows, dimension, padding)
    given_weights = weights if weighted and mode == "sum" else None
    inputs = [leaf] if given_weights is None else [leaf, weights]
    found, expected = (by(leaf, places, offsets, mode, given_weights, padding) for by in (pooled, theirs))
    assert torch.allclose(found, expected, rtol=1e-6, atol=1e-6)
    if not bags:
        return
    for own, other in zip(gradients(found, inputs), gradients(expected, inputs), strict=True):
        assert own.shape == other.shape and torch.allclose(own, other, rtol=1e-6, atol=1e-6)


def test_of_equal_numbers_of_a_bag_the_first_is_its_maximum():
    """Its row gets the gradient, as torch has it."""
    leaf = torch.tensor([[1.0, 2.0], [1.0, 0.0], [0.0, 2.0]], requires_grad=True)
    places, offsets = torch.tensor([2, 1, 0, 0, 1]), torch.tensor([0, 3, 5])
    for by in (pooled, theirs):
        found = by(leaf, places, offsets, "max", None, -1)
        (gradient,) = torch.autograd.grad(found, leaf, torch.tensor([[1.0, 10.0], [100.0, 1000.0]]))
        assert found.tolist() == [[1, 2], [1, 2]]
        assert gradient.tolist() == [[100, 1000], [1, 0], [0, 10]]


@settings(deadline=None, max_examples=50)
@given(seed=st.integers(0, 1000), rows=st.integers(1, 9), dimension=st.integers(1, 5))
def test_rows_are_picked_and_their_gradients_summed_in_the_order_of_keys(seed, rows, dimension):
    leaf, places, *_ = drawn(seed, 5, rows, dimension, False)
    found = picked(leaf, places)
    assert torch.equal(found, leaf[places])
    (own,) = gradients(found, [leaf])
    toward = torch.sin(torch.arange(found.numel()).float()).view_as(found).numpy()
    sums = np.zeros((rows, dimension), np.float32)
    for place, vector in zip(places.tolist(), toward, strict=True):
        sums[place] += vector
    assert np.array_equal(own.numpy(), sums)


@pytest.mark.filterwarnings("ignore:Input #")
@pytest.mark.parametrize("mode", ["sum", "mean", "max", "weighted"])
def test_gradients_have_gradients(mode):
    leaf, places, offsets, weights, padding = drawn(5, 4, 6, 3, True)
    assert len(places) > offsets[-1]
    kind, inputs = ("sum", (leaf, weights)) if mode == "weighted" else (mode, (leaf,))

    def bags(leaf, weights=None):
        return pooled(leaf, places, offsets, kind, weights, padding)

    close = {"eps": 1e-2, "atol": 2e-2}
    for of in (bags, lambda leaf, *_: picked(leaf, places)):
        own = inputs if of is bags else inputs[:1]
        assert torch.autograd.gradcheck(of, own, **close) and torch.autograd.gradgradcheck(of, own, **close)
        toward = torch.sin(torch.arange(of(*own).numel()).float()).view_as(of(*own))
        first, again = (torch.autograd.grad((of(*own) * toward).sum(), own, create_graph=how) for how in (False, True))
        assert all(torch.allclose(*pair, rtol=1e-6, atol=1e-6) for pair in zip(first, again, strict=True))


def test_functions_of_a_network_may_be_transformed_beside_them():
    leaf, places, offsets, _, _ = drawn(4, 4, 6, 3, False)
    network = torch.nn.Linear(3, 1)

    def loss(parameters, rows):
        return torch.func.functional_call(network, parameters, (rows(),)).sum()

    for mode in ("pick", "sum", "max"):

        def rows(mode=mode):
            return picked(leaf, places) if mode == "pick" else pooled(leaf, places, offsets, mode, None, -1)

        found = torch.func.grad(loss)(dict(network.named_parameters()), rows)
        assert torch.allclose(found["weight"], rows().sum(0).detach())


@settings(deadline=None, max_examples=50)
@given(seed=st.integers(0, 1000), rows=st.integers(0, 9), dimension=st.integers(1, 4), state=st.integers(0, 3))
def test_rows_go_to_a_leaf_and_back(seed, rows, dimension, state):
    draw = np.random.default_rng(seed)
    stored = draw.standard_normal((rows, dimension + state), np.float32)
    order, leaf = draw.permutation(rows), np.empty((rows, dimension), np.float32)
    leaves.gather(stored, order, leaf)
    assert np.array_equal(leaf, stored[order, :dimension])
    whole, changed = np.empty_like(stored), leaf + 1
    leaves.gather_whole(changed, stored, order, whole)
    assert np.array_equal(whole, np.concatenate([changed, stored[order, dimension:]], 1))
    leaves.copy_values(whole, leaf)
    assert np.array_equal(leaf, changed)
    leaves.scatter(whole, order, stored)
    assert np.array_equal(stored[order], whole)
