import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marius_oac.data.graphs.negatives import as_kernel_input, count_by_degree, draw_nodes
from marius_oac.kernels.cpu.random import stream_key
from tests.data import naive_batches as naive
from tests.data.test_random import chi_square_is_plausible, needs_jit

EDGES = np.array([[0, 9, 1], [0, 9, 2], [0, 9, 0], [3, 9, 1]])


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 99), st.integers(1, 50), st.integers(0, 40), st.floats(0, 1), st.sampled_from([2, 3]))
def test_draws_are_the_naive_ones(seed, num_nodes, count, fraction, columns):
    edges = np.ascontiguousarray(EDGES[:, [0, 1, 2] if columns == 3 else [0, 2]])
    drawn = draw_nodes(stream_key(seed, "n"), edges, num_nodes, count, fraction)
    key, by_degree, expected = naive.stream_key(seed, "n"), round(count * fraction), []
    for i in range(count):
        end = naive.integer(key, i, 2 * len(edges))
        expected.append(int(edges[end // 2, -(end % 2)]) if i < by_degree else naive.integer(key, i, num_nodes))
    assert drawn.dtype == np.int64
    assert drawn.tolist() == expected


@needs_jit
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_nodes_by_degree_come_in_proportion_to_their_degree(dtype):
    drawn = draw_nodes(stream_key(0, "degree"), EDGES.astype(dtype), 100, 400_000, 1.0)
    # A loop counts twice; relations (9) are no nodes.
    assert chi_square_is_plausible(np.bincount(drawn, minlength=4), np.array([4, 2, 1, 1]) * 50_000)


@needs_jit
def test_uniform_nodes_ignore_the_edges():
    drawn = draw_nodes(stream_key(0, "uniform"), EDGES, 100, 400_000, 0.0)
    assert chi_square_is_plausible(np.bincount(drawn, minlength=100), 4000.0)


@needs_jit
def test_the_first_part_is_by_degree_and_the_rest_uniform():
    drawn = draw_nodes(stream_key(0, "both"), EDGES, 100, 100_000, 0.25)
    assert drawn[:25_000].max() == 3
    assert chi_square_is_plausible(np.bincount(drawn[25_000:], minlength=100), 750.0)


def test_the_number_by_degree_is_rounded():
    assert [count_by_degree(10, f) for f in (0.0, 0.04, 0.06, 0.5, 1.0)] == [0, 0, 1, 5, 10]


def test_drawing_by_degree_needs_an_edge_but_uniform_drawing_needs_none():
    nothing = np.empty((0, 2), dtype=np.int64)
    with pytest.raises(ValueError, match="no edge"):
        draw_nodes(stream_key(0, "a"), nothing, 5, 4, 0.5)
    assert len(draw_nodes(stream_key(0, "a"), nothing, 5, 4, 0.0)) == 4


@pytest.mark.parametrize(
    "edges",
    [EDGES.astype(float), EDGES.astype(np.uint64), EDGES[:, :1].copy(), EDGES[0], EDGES[::2], np.asfortranarray(EDGES)],
)
def test_arrays_that_are_no_edges_are_refused(edges):
    with pytest.raises(ValueError, match="edges must be"):
        as_kernel_input(edges)


def test_the_callers_edges_stay_writable():
    edges = EDGES.copy()
    plain = as_kernel_input(edges)
    assert plain.base is edges and not plain.flags.writeable
    edges[0, 0] = 7
    assert plain[0, 0] == 7
