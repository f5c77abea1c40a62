"""Batches in lanes: their schedules, and the products that kernels call by address."""

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marius_oac.kernels.cpu import lanes
from marius_oac.kernels.cpu.atomics import address_of
from marius_oac.kernels.cpu.gemm import multiply
from marius_oac.kernels.cpu.jit import float_compiled
from marius_oac.models.link_prediction import handwritten, program
from marius_oac.runtime import blas
from marius_oac.runtime.aligned import aligned_empty
from tests.models.batches import DECODERS, LOSSES, Shape, configure, draw
from tests.models.test_gradient import check

SHAPE = Shape(entities=90, relations=7, edges=61, chunks=2, negatives=33, dimension=46)
needs_blas = pytest.mark.skipif(not blas.sgemm(), reason="NumPy has no OpenBLAS of its own")


@float_compiled
def product(function, transposed, sizes, left, right, into, at):
    first = address_of(into) + 4 * (at * into.shape[1] + at)
    left_place, right_place = (address_of(left), left.shape[1]), (address_of(right), right.shape[1])
    multiply(function, transposed, sizes[0], sizes[1], sizes[2], left_place, right_place, (first, into.shape[1]))


def aligned(generator, rows, columns):
    array = aligned_empty((rows, columns), np.float32)
    array[:] = generator.normal(0, 1, (rows, columns))
    return array


@needs_blas
@settings(deadline=None, max_examples=60, derandomize=True)
@given(sizes=st.tuples(*[st.integers(2, 40)] * 3), transposed=st.integers(0, 3), at=st.sampled_from([0, 16]))
def test_products_by_address_have_the_bits_of_numpys(sizes, transposed, at):
    rows, columns, inner = sizes
    generator = np.random.default_rng(rows)
    left = aligned(generator, inner, rows) if transposed & 1 else aligned(generator, rows, inner)
    right = aligned(generator, columns, inner) if transposed & 2 else aligned(generator, inner, columns)
    into = np.full((rows + at, columns + at), np.nan, np.float32)
    with blas.one_thread_per_product():
        product(blas.sgemm(), transposed, sizes, left, right, into, at)
        wanted = (left.T if transposed & 1 else left) @ (right.T if transposed & 2 else right)
    assert (into[at:, at:] == wanted).all()
    assert np.isnan(into[:at]).all() and np.isnan(into[:, :at]).all()


class Scheduled:
    """A pool whose threads take their turns by a schedule."""

    def __init__(self, count, schedule):
        self.count, self._schedule = count, schedule

    def run(self, tasks):
        self._schedule(tasks)


def only_the_first(tasks):
    tasks[0]()


def one_by_one_the_last_first(tasks):
    for task in reversed(tasks):
        task()


def at_once(tasks):
    gate = threading.Barrier(len(tasks))

    def run(task):
        gate.wait()
        task()

    threads = [threading.Thread(target=run, args=(task,)) for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def trained(config, schedule=None, count=1, batches=3):
    drawn = [draw(config, SHAPE, seed) for seed in range(batches)]
    step = drawn[0].step(config)
    gradient = step._handwritten
    if schedule:
        gradient._thread_pool = Scheduled(count, schedule)
        gradient._gradient = np.repeat(gradient._gradient, count, 0)
    found = []
    try:
        for number, batch in enumerate(drawn):
            rows = batch.rows(config)
            found.append((step.compute([rows], batch.data, number), rows.tobytes()))
        return found, step.dense_state()["relations"].numpy().tobytes() if drawn[0].relations is not None else b""
    finally:
        step.close()


@pytest.fixture
def small(monkeypatch):
    """Many tasks in each phase, and several waves."""
    for name, size in (
        ("TILE_EDGES", 8), ("_MAX_TILE_EDGES", 9), ("_WAVE_SCORES", 1500), ("_BLOCK_CANDIDATES", 6), ("_BLOCK_ROWS", 5),
        ("_BLOCK_RELATIONS", 2), ("_COPY_ROWS", 7),
    ):  # fmt: skip
        monkeypatch.setattr(handwritten, name, size)
    handwritten.waves_of.cache_clear()
    program._products.cache_clear()
    yield
    handwritten.waves_of.cache_clear()
    program._products.cache_clear()


@pytest.mark.parametrize("everything", [False, True])
@pytest.mark.parametrize("decoder", ["complex", "transe-2", "dot"])
@pytest.mark.parametrize("schedule", [only_the_first, one_by_one_the_last_first, at_once])
def test_any_schedule_of_lanes_has_the_same_bits(small, decoder, everything, schedule):
    config = configure(decoder, everything=everything, shape=SHAPE)
    assert trained(config, schedule, 5) == trained(config)


def test_lanes_run_every_task_once(small):
    config = configure("complex", shape=SHAPE)
    counted = []

    def count(tasks):
        for task in tasks:
            task()
        _, _, made, phases, counters, _ = tasks[0].args
        counted.append((np.diff(phases), counters.reshape(-1, 2, lanes.WORDS // 2)[: len(phases) - 1]))
        assert not np.unique(made, axis=0, return_counts=True)[1].max() > 1

    trained(config, count, 3)
    for sizes, counters in counted:
        assert (counters[:, 1, 0] == sizes).all() and (counters[:, 0, 0] == sizes + 3).all()
    assert len(counted) == 3 and len(counted[0][0]) > 6


@pytest.mark.parametrize("everything", [False, True])
@pytest.mark.parametrize("decoder", [each for each in DECODERS if "-" not in each and each != "rotate"])
def test_products_that_kernels_cannot_call_are_made_between_them(small, decoder, everything):
    for loss in LOSSES:
        config = configure(decoder, loss, everything, SHAPE, compute__products="torch")
        check(config, draw(config, SHAPE), threads=2)


def test_numpy_without_a_blas_of_its_own(small, monkeypatch):
    config = configure("complex", shape=SHAPE)
    monkeypatch.setattr(handwritten.blas, "sgemm", lambda: 0)
    monkeypatch.setattr(lanes, "run", None)
    check(config, draw(config, SHAPE), threads=2)
