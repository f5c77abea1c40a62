"""Pairs of fields on a pool: torch's own bits, forward and backward, for any number of threads."""

from contextlib import ExitStack, closing

import numpy as np
import pytest
import torch

from marius_oac.kernels.cpu import pairs as kernels
from marius_oac.models.compute import pairs as pairs_of_fields
from marius_oac.models.compute.multiply import by_numpy
from marius_oac.models.compute.network_parameters import _are_at_most
from marius_oac.models.compute.pairs import pairs_beside
from marius_oac.models.compute.products import PooledProducts
from marius_oac.models.compute.scratch import Scratch
from marius_oac.models.compute.torch_state import torch_threads
from marius_oac.runtime.thread_pool import ThreadPool


def outcome(sizes, threads):
    """Both results, and the gradient of a function of both; `threads` 0: by torch alone."""
    size, count, dimension, columns = sizes
    generator = np.random.default_rng(size)
    stacked, numbers, weights = (
        torch.from_numpy(generator.normal(size=shape).astype(np.float32))
        for shape in ((size, count, dimension), (size, columns), (count * dimension + columns,))
    )
    with ExitStack() as stack:
        stack.enter_context(torch_threads(1))
        if threads:
            stack.enter_context(PooledProducts(stack.enter_context(closing(ThreadPool(threads))), Scratch()))
        leaf = stacked.requires_grad_()
        pairs, beside = pairs_beside(leaf, numbers)
        (pairs.sigmoid() + (beside * weights).tanh().sum(1)).sigmoid().sum().backward()
        return [each.detach().numpy().tobytes() for each in (pairs, beside, leaf.grad)]


@pytest.mark.parametrize("sizes", [(1, 26, 16, 13), (600, 5, 8, 3), (1300, 9, 16, 0), (513, 1, 5, 1), (30, 3, 37, 2)])
def test_pairs_on_a_pool_have_the_bits_of_torch(sizes):
    alone = outcome(sizes, 0)
    assert outcome(sizes, 1) == alone == outcome(sizes, 3)


def test_pairs_run_on_the_pool(monkeypatch):
    ran, limited = [], []
    monkeypatch.setattr(pairs_of_fields, "on_one_thread", lambda: limited.append(1))

    class Pool(ThreadPool):
        def run(self, tasks):
            ran.append(len(tasks))
            super().run(tasks)

    leaf = torch.ones(1100, 2, 3, requires_grad=True)
    with closing(Pool(1)) as pool, PooledProducts(pool, None):
        pairs, beside = pairs_beside(leaf, torch.zeros(1100, 1))
        (pairs.sum() + beside.sum()).backward()
        other = torch.ones(4, 2, 3, dtype=torch.float64)
        assert pairs_beside(other, torch.zeros(4, 0, dtype=torch.float64))[0].dtype == torch.float64
    assert ran == [3, 3] and len(limited) == 3, "torch has one thread in those of the pool"
    assert (pairs == 3).all() and (leaf.grad == 2).all()


def test_the_gradient_against_its_formula():
    generator = np.random.default_rng(0)
    fields, by_pairs = generator.normal(size=(4, 3, 2)).astype(np.float32), generator.normal(size=4).astype(np.float32)
    sums, by_beside = fields.sum(1), generator.normal(size=(4, 8)).astype(np.float32)
    found = np.empty_like(fields)
    kernels.differentiate(fields, sums, by_pairs, by_beside, found)
    expected = by_beside[:, :6].reshape(4, 3, 2) + by_pairs[:, None, None] * (sums[:, None] - fields)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_products_of_one_column_and_one_row_have_no_negative_zeros():
    left, right = np.array([[-1], [0], [2]], np.float32), np.array([[0, -0.0, 3]], np.float32)
    found, plain = np.empty((3, 3), np.float32), np.empty((3, 3), np.float32)
    by_numpy(left, right, found)
    np.matmul(left, right, out=plain)
    assert found.tobytes() == plain.tobytes() and not np.signbit(found[0, 0])


@pytest.mark.parametrize("tensor", [torch.ones(3, 2), torch.ones(2, 3).t(), torch.ones(4, dtype=torch.float64)])
def test_sound_parameters(tensor):
    others = [torch.zeros(5), torch.zeros(0)]
    assert not _are_at_most(1.0, [torch.zeros(0)])
    for value, sound in ((1.0, True), (-1.0, True), (1.01, False), (-1.01, False), (np.nan, False), (-np.inf, False)):
        tensor[-1] = value
        (found,) = _are_at_most(1.0, [*others, tensor])
        assert bool(found) is sound
