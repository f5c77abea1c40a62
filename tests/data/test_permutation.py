import tracemalloc

import numba
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from marius_oac.kernels.cpu.permutation import MAX_SIZE, Permutation
from tests.data import naive_batches as naive
from tests.data.test_random import chi_square_is_plausible, needs_jit

SMALL = 60 if numba.config.DISABLE_JIT else 3000


@settings(deadline=None, max_examples=80)
@given(st.integers(1, SMALL), st.integers(0, 2**64), st.integers(0, 10**6))
@example(1, 0, 0)
@example(2, 0, 1)
@example(SMALL, 1, 1)
def test_every_position_comes_once(size, seed, epoch):
    images = Permutation(size, seed, epoch).permute(np.arange(size))
    assert images.dtype == np.int64
    assert np.array_equal(np.sort(images), np.arange(size))


@settings(deadline=None, max_examples=60)
@given(st.integers(1, MAX_SIZE), st.integers(0, 9), st.integers(0, 9), st.data())
@example(MAX_SIZE, 0, 0, None)
@example(MAX_SIZE - 1, 0, 0, None)
@example(2**39 + 1, 0, 0, None)
def test_images_are_the_naive_ones(size, seed, epoch, data):
    positions = [0, size - 1] if data is None else data.draw(st.lists(st.integers(0, size - 1), max_size=5))
    key = naive.stream_key(seed, "shuffle", epoch)
    images = Permutation(size, seed, epoch).permute(np.array(positions, dtype=np.int64))
    assert images.tolist() == [naive.permuted(position, size, key) for position in positions]


@needs_jit
def test_no_two_of_many_positions_of_a_large_range_collide_and_memory_stays_small():
    shuffle = Permutation(MAX_SIZE - 12345, 1, 2)
    positions = np.arange(200_000) + 7_000_000_000
    shuffle.permute(positions[:1])
    tracemalloc.start()
    images = shuffle.permute(positions)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(np.unique(images)) == len(images)
    assert peak < 4 * positions.nbytes


@pytest.mark.parametrize("size", [0, -1, MAX_SIZE + 1])
def test_sizes_out_of_range_are_refused(size):
    with pytest.raises(ValueError, match="size must be"):
        Permutation(size, 0, 0)


@pytest.mark.parametrize("positions", [[5], [-1], [0, 5], [-1, 0], [[0]], [0.0]])
def test_positions_out_of_range_are_refused(positions):
    with pytest.raises(ValueError, match="positions must"):
        Permutation(5, 0, 0).permute(np.array(positions))


def test_epochs_seeds_and_names_have_shuffles_of_their_own():
    same = Permutation(50, 3, 4).permute(np.arange(50))
    assert np.array_equal(same, Permutation(50, 3, 4).permute(np.arange(50)))
    for other in (Permutation(50, 3, 5), Permutation(50, 4, 4), Permutation(50, 3, 4, "sample")):
        assert not np.array_equal(same, other.permute(np.arange(50)))


@needs_jit
@pytest.mark.parametrize("size", [5, 100, 1000, 4096, 4097, 100_003])
def test_it_looks_shuffled(size):
    """Fixed points, displacement, correlation and order of neighbours, over many epochs, as uniform ones would be."""
    epochs = min(4000, max(40, 400_000 // size))  # with more, the small bias of the tiniest networks would show
    positions = np.arange(size)
    images = np.stack([Permutation(size, 11, epoch).permute(positions) for epoch in range(epochs)])
    # The number of fixed points has mean 1 and variance 1 (but for size 1).
    assert abs((images == positions).sum(axis=1).mean() - 1) < 5 / np.sqrt(epochs)
    # The displacement modulo the size is uniform.
    displacement = np.bincount((((images - positions) % size) * min(size, 50) // size).ravel())
    widths = np.bincount(np.arange(size) * min(size, 50) // size)
    assert chi_square_is_plausible(displacement, widths * epochs)
    # Position and image are uncorrelated: the coefficient has variance 1 / (size - 1).
    correlations = [np.corrcoef(positions, row)[0, 1] for row in images]
    assert abs(np.mean(correlations)) < 5 / np.sqrt(epochs * (size - 1))
    assert np.std(correlations) == pytest.approx(1 / np.sqrt(size - 1), rel=0.5)
    # Of two neighbours each comes first half of the time: ascents have mean (size - 1) / 2, variance (size + 1) / 12.
    ascents = (np.diff(images, axis=1) > 0).sum(axis=1)
    assert abs(ascents.mean() - (size - 1) / 2) < 5 * np.sqrt((size + 1) / 12 / epochs)
    assert ascents.std() == pytest.approx(np.sqrt((size + 1) / 12), rel=0.5)


@needs_jit
def test_all_orders_of_four_come_equally_often():
    orders = np.stack([Permutation(4, 0, epoch).permute(np.arange(4)) for epoch in range(24_000)])
    counts = np.unique(orders @ 4 ** np.arange(4), return_counts=True)[1]
    assert len(counts) == 24
    # Rounds of one bit are not ideal: no order may be off by more than a third.
    assert counts.min() / 1000 > 2 / 3 and counts.max() / 1000 < 4 / 3


@needs_jit
def test_an_epochs_batches_mix_the_whole_graph():
    """The first batch of every epoch draws from everywhere, and two epochs' first batches share what chance allows."""
    size, batch = 100_000, 1000
    first = np.stack([Permutation(size, 5, epoch).permute(np.arange(batch)) for epoch in range(100)])
    assert chi_square_is_plausible(np.bincount((first // 1000).ravel(), minlength=100), 1000.0)
    shared = [len(np.intersect1d(first[i], first[i + 1])) for i in range(99)]
    assert abs(np.mean(shared) - 10) < 5 * np.sqrt(10 / 99)
