"""Products of both libraries against float64, their bits on any thread and at any place, and which is faster."""

import threading
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from marius_oac.config.sections import ComputeConfig
from marius_oac.models.compute import multiply
from marius_oac.models.compute.multiply import Layer, Times, by_numpy, by_torch, kernels_of, multiply_of, times_of
from marius_oac.models.compute.rounded import ByBfloat16
from marius_oac.models.compute.torch_state import torch_threads
from marius_oac.runtime import blas
from tests.models.asked import are_torchs, counted
from tests.models.batches import Shape, configure, draw
from tests.models.ctr import step_batches

BOTH = pytest.mark.parametrize("product", [by_numpy, by_torch])
LAYER = Layer(512, 64, 128)
LARGE = (96, 90, 80)
"""More work than `_LEAST_WORK`."""


def numbers(*shape, flipped=False, apart=False, seed=0):
    """Laid out as a transposed array, or with a gap between rows, or neither."""
    shape = (*shape[:-2], shape[-1], shape[-2]) if flipped else shape
    wide = (*shape[:-1], shape[-1] + 7 * apart)
    found = np.random.default_rng(seed).normal(size=wide).astype(np.float32)[..., : shape[-1]]
    return found.swapaxes(-1, -2) if flipped else found


def check(product, left, right):
    into = np.full((*left.shape[:-1], right.shape[-1]), np.nan, np.float32)
    product(left, right, into)
    bound = 1e-6 * (np.abs(left).astype(float) @ np.abs(right).astype(float)) + 1e-6
    assert (np.abs(into - left.astype(float) @ right.astype(float)) <= bound).all()


@BOTH
@settings(deadline=None, max_examples=30)
@given(
    st.tuples(*(st.integers(1, 40) for _ in range(3))) | st.just(LARGE) | st.just((1, 800, 700)),
    st.tuples(*(st.booleans() for _ in range(4))), st.sampled_from([(), (5,)]),
)  # fmt: skip
def test_products_in_any_layout(product, sizes, laid_out, batch):
    rows, inner, columns = sizes
    flip_left, flip_right, cut_left, cut_right = laid_out
    left = numbers(*batch, rows, inner, flipped=flip_left, apart=cut_left)
    check(product, left, numbers(*batch, inner, columns, flipped=flip_right, apart=cut_right, seed=1))


@BOTH
def test_without_inner_numbers_products_are_zeros(product):
    into = np.ones((3, 2), np.float32)
    product(np.empty((3, 0), np.float32), np.empty((0, 2), np.float32), into)
    assert not into.any()


def test_large_products_are_those_of_onednn(monkeypatch):
    called = []
    monkeypatch.setattr(multiply, "_ONEDNN", lambda x, w, *others: called.append(x.shape) or x @ w.T)
    check(by_torch, numbers(*LARGE[:2]), numbers(*LARGE[1:]))
    assert called == [LARGE[:2]]
    check(by_torch, numbers(30, 20), numbers(20, 30))
    check(by_torch, numbers(1, 1000), numbers(1000, 700))
    assert called == [LARGE[:2]], "small ones, and vectors, are not"


def test_a_torch_without_onednn_multiplies_too(monkeypatch):
    monkeypatch.setattr(multiply, "_ONEDNN", None)
    check(by_torch, numbers(*LARGE[:2]), numbers(*LARGE[1:], flipped=True))


@BOTH
def test_the_same_bits_on_any_thread_and_at_any_place(product):
    left, right = numbers(*LARGE[:2], flipped=True), numbers(*LARGE[1:])
    found, counts = [], []

    def compute(left, right):
        into = np.empty((len(left), right.shape[1]), np.float32)
        product(left, right, into)
        found.append(into)
        counts.append(torch.get_num_threads())

    with blas.one_thread_per_product():
        with torch_threads(1):
            compute(left, right)
        with torch_threads(4):  # what a pool's threads begin with
            thread = threading.Thread(target=compute, args=(left.copy("K"), right.copy()))
            thread.start()
            thread.join()
        assert (found[0] == found[1]).all()
        assert counts[0] == 1 and (product is by_numpy or counts[1] == 1)


@pytest.mark.parametrize("least", [0, multiply._LEAST_WORK])
def test_steps_have_the_same_bits_for_any_number_of_threads(monkeypatch, least):
    """Also with oneDNN for products as small as these."""
    asked = counted(monkeypatch, least)
    shape = Shape(entities=90, edges=700, chunks=2, negatives=30, dimension=8)

    def edges(threads, products):
        config = configure("complex", shape=shape, compute__products=products)
        batch = draw(config, shape)
        rows, step = batch.rows(config), batch.step(config, threads)
        step.compute([rows], batch.data, 0)
        step.close()
        return [rows]

    def clicks(threads, products):
        config = step_batches.configure(compute__products=products)
        batch = step_batches.draw(next(iter(step_batches.LAYOUTS)), examples=1100)
        rows, step = batch.rows(config), batch.step(config, threads)
        step.compute(rows, batch.data, 1)
        step.close()
        return rows

    for trained in (edges, clicks):
        first, second = trained(1, "torch"), trained(3, "torch")
        assert are_torchs(asked, least)
        asked.clear()
        other = trained(1, "numpy")
        assert not asked
        for mine, same, near in zip(first, second, other, strict=True):
            assert mine.tobytes() == same.tobytes()
            np.testing.assert_allclose(mine, near, rtol=1e-3, atol=1e-4)


def test_a_clear_lead_decides():
    assert Times(numpy=1.1, torch=1.0).faster == "numpy"
    assert Times(numpy=1.2, torch=1.0).faster == "torch"
    assert Times(numpy=1.0, torch=2.0).ratio == 0.5
    auto, numpy, torchs = (ComputeConfig(products=each) for each in ("auto", "numpy", "torch"))
    assert multiply_of(auto) is by_numpy is multiply_of(numpy) and multiply_of(torchs) is by_torch
    assert kernels_of(auto) == blas.kernels() == kernels_of(numpy) and kernels_of(torchs).startswith("torch ")
    rounded = ComputeConfig(products="torch", precision="bfloat16")
    assert isinstance(multiply_of(rounded), ByBfloat16) and kernels_of(rounded) == "bfloat16"


def test_the_products_of_a_layer_are_measured_once(monkeypatch):
    called = {"numpy": [], "torch": []}

    def counted(library):
        def product(left, right, into):
            assert torch.get_num_threads() == 1
            called[library].append((*left.shape, right.shape[1]))
            into[:] = left @ right

        return product

    monkeypatch.setattr(multiply, "_MULTIPLY", {library: counted(library) for library in called})
    times_of.cache_clear()
    times = times_of(Layer(20, 9, 1000))
    assert times_of(Layer(20, 9, 1000)) is times and 0 < times.numpy < 1 and 0 < times.torch < 1
    assert set(called["numpy"]) == set(called["torch"]) == {(20, 9, 512), (512, 20, 9), (20, 512, 9)}
    samples = multiply._ROUNDS + 1
    assert len(called["numpy"]) == len(called["torch"]) == 3 * samples * (multiply._SAMPLE // (20 * 9 * 512))
    times_of.cache_clear()


class Machine:
    """A machine on which a product of NumPy's takes 1 us and one of torch's `torch`, and time passes for the thread, or
    for the world: when the n-th sample of a library begins, `busy(library, n)` seconds have passed beside it."""

    def __init__(self, monkeypatch, torchs, busy=lambda library, number: 0.0):
        self.thread = self.world = 0.0
        self.turns, self._busy = [], busy
        costs = {"numpy": 1e-6, "torch": torchs}
        monkeypatch.setattr(multiply, "_MULTIPLY", {name: partial(self._product, name) for name in costs})
        self._costs = costs
        clocks = SimpleNamespace(thread_time=lambda: self.thread, perf_counter=lambda: self.world)
        monkeypatch.setattr(multiply, "time", clocks)

    def _product(self, library, left, right, into):
        if self.turns[-1:] != [library]:
            self.turns.append(library)
            slow = self._busy(library, self.turns.count(library))
            self.thread, self.world = self.thread + slow, self.world + slow
        self.thread, self.world = self.thread + self._costs[library], self.world + self._costs[library]

    @staticmethod
    def times(layer=LAYER):
        times_of.cache_clear()
        try:
            return times_of(layer)
        finally:
            times_of.cache_clear()


def test_the_libraries_take_turns_and_a_busy_moment_decides_nothing(monkeypatch):
    """Some samples of either library are slow, fewer than half, and the first ones at that."""
    for slow in ("numpy", "torch"):
        machine = Machine(monkeypatch, 2e-6, lambda library, n, slow=slow: 1.0 if library == slow and n <= 11 else 0.0)
        times = machine.times()
        assert machine.turns == ["numpy", "torch"] * (multiply._ROUNDS + 1)
        assert times == pytest.approx((3e-6, 6e-6))
    assert multiply._ROUNDS == 21
    machine = Machine(monkeypatch, 2e-6, lambda library, n: -5.9e-6 if library == "torch" and n == 5 else 0.0)
    assert machine.times() == pytest.approx((3e-6, 6e-6))  # nor does a moment in which the clock was set
    assert Machine(monkeypatch, 2e-6).times(Layer(20, 9, 512)) == pytest.approx((3e-6, 6e-6))


def test_what_else_the_machine_does_is_not_counted(monkeypatch):
    machine = Machine(monkeypatch, 1e-6)
    real = machine._product

    def product(library, *arrays):
        real(library, *arrays)
        machine.world += 1.0 if library == "numpy" else 0.0  # another process has the core

    monkeypatch.setattr(multiply, "_MULTIPLY", {name: partial(product, name) for name in ("numpy", "torch")})
    assert machine.times().faster == "numpy"


def test_where_the_threads_own_time_is_not_known_the_worlds_is_taken(monkeypatch):
    machine = Machine(monkeypatch, 5e-7)
    monkeypatch.setattr(multiply.time, "thread_time", lambda: 0.0)
    assert machine.times() == pytest.approx((3e-6, 1.5e-6)) and machine.times().faster == "torch"


def test_a_column_times_a_row_has_the_zeros_of_a_sum():
    """A sum that begins with zero is never a negative zero, which minus one times zero is."""
    left, right, into = (
        np.array([[-1.0], [2.0]], np.float32),
        np.zeros((1, 3), np.float32),
        np.empty((2, 3), np.float32),
    )
    multiply.by_numpy(left, right, into)
    assert (into == 0).all() and not np.signbit(into).any()
