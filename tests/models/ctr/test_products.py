"""Linear layers and rectifiers on lanes: torch's results, the same bits for any lanes and places."""

from contextlib import closing

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from marius_oac.models.compute.products import PooledProducts, linear, relu
from marius_oac.models.compute.scratch import Scratch
from marius_oac.runtime import blas
from marius_oac.runtime.thread_pool import ThreadPool


def numbers(*shape, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape).astype(np.float32))


def run(function, tensors, thread_pool=None, scratch=None):
    """The result and the gradients by the tensors of its sum weighted with sines."""
    leaves = [None if each is None else each.detach().requires_grad_() for each in tensors]

    def differentiated():
        result = function(*leaves)
        (result * torch.arange(result.numel()).sin().view_as(result)).sum().backward()
        return [result.detach().clone(), *(None if each is None else each.grad.clone() for each in leaves)]

    if thread_pool is None:
        return differentiated()
    pool = ThreadPool(thread_pool)
    try:
        with blas.one_thread_per_product(), PooledProducts(pool, scratch):
            return differentiated()
    finally:
        pool.close()


def same(ours, theirs):
    return all((a is None and b is None) or torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@settings(deadline=None, max_examples=30)
@given(
    st.lists(st.integers(1, 5), min_size=0, max_size=1), st.integers(1, 1100), st.integers(1, 20), st.integers(1, 150),
    st.booleans(), st.booleans(),
)  # fmt: skip
def test_linear_as_torch(before, rows, inputs, outputs, biased, scratch):
    tensors = [numbers(*before, rows, inputs), numbers(outputs, inputs), numbers(outputs) if biased else None]
    ours = run(functional.linear, tensors, 2, Scratch() if scratch else None)
    for mine, wanted in zip(
        ours, run(functional.linear, [t if t is None else t.double() for t in tensors]), strict=True
    ):
        assert (mine is None) == (wanted is None)
        if mine is not None:
            np.testing.assert_allclose(mine, wanted, rtol=1e-3, atol=2e-3)


@pytest.mark.parametrize("relu", [functional.relu, torch.relu, torch.Tensor.relu, nn.ReLU(), nn.ReLU(inplace=True)])
def test_rectifiers_as_torch(relu):
    x = numbers(700, 301)
    x[0, :3] = torch.tensor([0.0, -0.0, torch.nan])

    def twice(x):  # in place needs a tensor that is no leaf
        return relu(x * 2)

    for mine, wanted in zip(run(twice, [x], 2), run(twice, [x]), strict=True):
        np.testing.assert_array_equal(mine, wanted)


BATCHED = [torch.bmm, torch.matmul, torch.Tensor.bmm, torch.Tensor.matmul, torch.Tensor.__matmul__]


@pytest.mark.parametrize("product", BATCHED)
@settings(deadline=None, max_examples=10)
@given(st.integers(1, 600), st.integers(1, 9), st.integers(1, 9), st.integers(1, 9), st.booleans(), st.booleans())
def test_batched_products_as_torch(product, count, rows, inner, columns, flip_left, flip_right):
    left = numbers(count, inner, rows).transpose(1, 2) if flip_left else numbers(count, rows, inner)
    right = numbers(count, columns, inner).transpose(1, 2) if flip_right else numbers(count, inner, columns)
    doubles = run(product, [left.double(), right.double()])
    for mine, wanted in zip(run(product, [left, right], 2), doubles, strict=True):
        np.testing.assert_allclose(mine, wanted, rtol=1e-4, atol=1e-4)


def test_products_of_a_tensor_with_itself():
    def dots(x):
        return x @ x.transpose(1, 2)

    x = numbers(300, 7, 5)
    for mine, wanted in zip(run(dots, [x], 2), run(dots, [x.double()]), strict=True):
        np.testing.assert_allclose(mine, wanted, rtol=1e-4, atol=1e-4)


def network(x):
    layers = [nn.Linear(13, 257), nn.ReLU(), nn.Linear(257, 130), nn.ReLU(), nn.Linear(130, 1)]
    with torch.no_grad():
        for number, layer in enumerate(layers):
            for parameter in layer.parameters():
                parameter.copy_(numbers(*parameter.shape, seed=number) / 10)
    return nn.Sequential(*layers)(x)


def test_same_bits_for_any_lanes_and_places():
    x = numbers(1301, 13)
    room = torch.empty(x.numel() + 16)
    start = (-(room.data_ptr() // 4) % 16) + 1
    away = room[start : start + x.numel()].view_as(x)
    away.copy_(x)
    assert away.data_ptr() % 64 == 4
    first, scratch = run(network, [x], 1), Scratch()
    for tensor, thread_pool, used in ((x, 1, scratch), (away, 2, None), (away, 4, scratch), (x, 2, scratch)):
        assert same(run(network, [tensor], thread_pool, used), first)
    other = x.clone()
    other[0, 0] *= 1.001
    assert not same(run(network, [other], 1), first)


def test_a_scratch_lends_the_same_memory_again():
    thread_pool, scratch, x = ThreadPool(1), Scratch(), numbers(5, 4)
    places = []
    for _ in range(2):
        with PooledProducts(thread_pool, scratch):
            first, second = torch.relu(x), torch.relu(x)
        places.append((first.data_ptr(), second.data_ptr()))
    assert len(set(places[0])) == 2
    with (mode := PooledProducts(thread_pool, scratch)):
        torch.relu(x)
    with mode:
        assert torch.relu(x).data_ptr() == places[1][0] == places[0][0]


def test_only_what_needs_a_gradient_gets_one():
    thread_pool = ThreadPool(1)
    with PooledProducts(thread_pool, None):
        x, weight, bias = numbers(3, 4), numbers(2, 4), numbers(2).requires_grad_()
        functional.linear(x, weight, bias).sum().backward()
    assert bias.grad.tolist() == [3, 3] and weight.grad is None and x.grad is None


def test_other_tensors_are_left_to_torch():
    doubles = [numbers(5, 4).double(), numbers(3, 4).double(), numbers(3).double()]
    for tensors in (doubles, [*doubles[:2], None]):
        assert same(run(functional.linear, tensors, 2), run(functional.linear, tensors))
    for product in (torch.matmul, torch.Tensor.__matmul__):
        for shapes in (((4,), (4,)), ((3, 4), (4, 2)), ((1, 3, 4), (5, 4, 2)), ((2, 5, 3, 4), (4, 2))):
            tensors = [numbers(*shape) for shape in shapes]
            assert same(run(product, tensors, 2), run(product, tensors))
    vector = [numbers(4), numbers(3, 4), numbers(3)]
    assert same(run(functional.linear, vector, 2), run(functional.linear, vector))


def test_wrong_shapes_are_errors_as_ever():
    for tensors in ([numbers(5, 4), numbers(3, 6), None], [numbers(5, 4), numbers(3, 4), numbers(4)]):
        with pytest.raises(RuntimeError):
            run(functional.linear, tensors, 1)


class Counting(ThreadPool):
    runs = 0

    def run(self, tasks):
        self.runs += 1
        super().run(tasks)


def test_what_knows_of_lanes_need_not_enter():
    thread_pool, scratch, x, weight, bias = Counting(1), Scratch(), numbers(5, 4), numbers(3, 4), numbers(3)
    products = PooledProducts(thread_pool, scratch)
    places = []
    for _ in range(2):
        products.start()
        found = linear(bias, products, x, weight), relu(x, products)
        places.append([each.data_ptr() for each in found])
    assert thread_pool.runs == 4 and places[0] == places[1] and len(set(places[0])) == 2
    for mine, wanted in zip(found, (functional.linear(x, weight, bias), torch.relu(x)), strict=True):
        torch.testing.assert_close(mine, wanted)
    for other in (None, thread_pool):
        assert torch.equal(linear(bias, other, x, weight), functional.linear(x, weight, bias))
        assert torch.equal(relu(x, other), torch.relu(x))
    assert torch.equal(relu(x.double(), products), torch.relu(x.double())) and thread_pool.runs == 4


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 1100), st.lists(st.integers(1, 20), min_size=1, max_size=3), st.integers(1, 150), st.booleans())
def test_sums_of_linear_layers_as_torch(rows, inputs, outputs, biased):
    """The same bits as layer by layer, and torch's numbers."""
    tensors = [numbers(outputs) if biased else None]
    for seed, width in enumerate(inputs):
        tensors += [numbers(rows, width, seed=seed), numbers(outputs, width, seed=seed)]

    def together(thread_pool):
        return lambda bias, *pairs: linear(bias, thread_pool, *pairs)

    def one_by_one(bias, *pairs):
        found = functional.linear(*pairs[:2], bias)
        for x, weight in zip(pairs[2::2], pairs[3::2], strict=True):
            found = found + functional.linear(x, weight)
        return found

    with closing(ThreadPool(2)) as thread_pool, blas.one_thread_per_product():
        ours = run(together(PooledProducts(thread_pool, Scratch())), tensors)
    assert same(ours, run(one_by_one, tensors, 2))
    wanted = run(together(None), [None if each is None else each.double() for each in tensors])
    for mine, exact in zip(ours, wanted, strict=True):
        assert (mine is None) == (exact is None)
        if mine is not None:
            np.testing.assert_allclose(mine, exact, rtol=1e-3, atol=4e-3)


def test_layers_do_run_on_the_lanes():
    thread_pool = Counting(1)
    layer, x = nn.Linear(4, 3), numbers(5, 4)
    cases = [(layer, (x,)), (nn.ReLU(), (x,)), *((product, (x[None], x.t()[None])) for product in BATCHED)]
    for function, arguments in cases:
        before = thread_pool.runs
        with (mode := PooledProducts(thread_pool, Scratch())):
            found = function(*arguments)
        assert thread_pool.runs == before + 1
        mode.start()
        assert found.data_ptr() == mode.empty(*found.shape).data_ptr(), "what they computed is the result"
        function(*arguments)
        assert thread_pool.runs == before + 1, "only while entered"
