import itertools
import math
import threading
from collections import Counter

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marius_oac.data.neighbors import Neighbors, open_neighbors
from marius_oac.data.random import stream_key
from marius_oac.data.sampling import NeighborSampler
from tests.data import naive_sampling as naive
from tests.data.test_batches import random_edges
from tests.data.test_neighbors import DIRECTIONS, opened

EXAMPLES = 25 if numba.config.DISABLE_JIT else 120
FANOUTS = st.lists(st.sampled_from([-1, 1, 2, 3, 5, 10]), min_size=1, max_size=3)


@st.composite
def cases(draw):
    """A graph, mostly with hubs, and what is asked of it."""
    num_nodes, relations = draw(st.integers(1, 25)), draw(st.sampled_from([0, 3]))
    dtype, direction = draw(st.sampled_from([np.int32, np.int64])), draw(DIRECTIONS)
    edges = random_edges(num_nodes, relations, draw(st.integers(1, 120)), dtype, draw(st.integers(0, 9)))
    if draw(st.booleans()):
        edges[::2, -1] = 0
    seeds = draw(st.lists(st.integers(0, num_nodes - 1), unique=True, max_size=10))
    excluded = draw(st.lists(st.integers(0, len(edges) - 1), max_size=60))
    return edges, num_nodes, relations, direction, np.array(seeds, np.int64), np.array(excluded, np.int64)


def messages(block, nodes_in, nodes_out) -> list[list[tuple]]:
    """A layer's entries of each output node, by ids of nodes."""
    ends = block.offsets.tolist()
    assert len(ends) == len(nodes_out) + 1 and ends[0] == 0 and ends[-1] == len(block.sources) == len(block.edges)
    columns = [[nodes_in[source] for source in block.sources.tolist()], block.edges.tolist()]
    if block.relations.size:
        columns.insert(1, block.relations.tolist())
    every = list(zip(*columns, strict=True))
    return [every[a:b] for a, b in zip(ends[:-1], ends[1:], strict=True)]


@settings(deadline=None, max_examples=EXAMPLES)
@given(cases(), FANOUTS, st.integers(0, 3), st.integers(0, 3), st.integers(0, 99))
def test_blocks_are_the_naive_ones(tmp_path_factory, case, fanouts, seed, epoch, batch):
    edges, num_nodes, relations, direction, seeds, excluded = case
    found = opened(tmp_path_factory.mktemp("graph") / "neighbors", edges, num_nodes, relations, direction)
    layers, rows, inputs = NeighborSampler(found, fanouts, seed).sample(seeds, epoch, batch, excluded)
    every = naive.entries(edges.tolist(), num_nodes, relations, direction)
    expected = naive.blocks(every, fanouts, seed, seeds.tolist(), epoch, batch, set(excluded.tolist()))
    assert len(layers) == len(expected) == len(fanouts)
    for block, (nodes_in, nodes_out, drawn) in zip(layers, expected, strict=True):
        assert messages(block, nodes_in, nodes_out) == drawn
        assert {each.dtype for each in block} == {np.dtype(np.int64)}
        assert all(each.flags.c_contiguous for each in block)
    assert rows.tolist() == sorted(expected[0][0]) and rows[inputs].tolist() == expected[0][0]


@settings(deadline=None, max_examples=EXAMPLES)
@given(cases(), FANOUTS, st.integers(0, 99))
def test_a_target_is_never_its_own_evidence(tmp_path_factory, case, fanouts, batch):
    """And what is drawn are different edges of the node, as many as there are, or as the fan-out says."""
    edges, num_nodes, relations, direction, seeds, excluded = case
    found = opened(tmp_path_factory.mktemp("graph") / "neighbors", edges, num_nodes, relations, direction)
    layers, rows, inputs = NeighborSampler(found, fanouts, 1).sample(seeds, 0, batch, excluded)
    nodes = rows[inputs].tolist()
    every = naive.entries(edges.tolist(), num_nodes, relations, direction)
    for block, fanout in zip(layers, fanouts, strict=True):
        assert not set(block.edges.tolist()) & set(excluded.tolist())
        outputs = nodes[: len(block.offsets) - 1]
        for node, drawn in zip(outputs, messages(block, nodes, outputs), strict=True):
            left = Counter(entry for entry in every[node] if entry[-1] not in set(excluded.tolist()))
            assert not Counter(drawn) - left
            assert len(drawn) == (left.total() if fanout == -1 else min(left.total(), fanout))
        nodes = outputs
    assert nodes == seeds.tolist()


@settings(deadline=None, max_examples=EXAMPLES // 5)
@given(cases(), FANOUTS)
def test_a_node_is_drawn_for_by_itself(tmp_path_factory, case, fanouts):
    """The order of the seeds, and which others there are, change nothing; nor how much of the file is in memory."""
    edges, num_nodes, relations, direction, seeds, excluded = case
    found = opened(tmp_path_factory.mktemp("graph") / "neighbors", edges, num_nodes, relations, direction)
    key = stream_key(0, "neighbors")

    def drawn(sampler, nodes):
        got = sampler.draw(nodes, fanouts[0], key, excluded)
        parts = [np.split(each, got.offsets[1:-1]) for each in (got.neighbors, got.edges)]
        return {int(node): [each[i].tolist() for each in parts] for i, node in enumerate(nodes)}

    sampler, bounded = NeighborSampler(found, fanouts, 0), NeighborSampler(found, fanouts, 0, 8)
    together = drawn(sampler, seeds)
    assert drawn(sampler, seeds[::-1].copy()) == together == drawn(bounded, seeds)
    for node in seeds:
        assert drawn(sampler, np.array([node])) == {int(node): together[int(node)]}


def alike(degree: int, num_nodes: int) -> Neighbors:
    """Nodes with so many entries each; entry number n is the (n % degree)-th of its node."""
    numbers = np.arange(num_nodes * degree)
    entries = np.stack([numbers % num_nodes, numbers], axis=1)
    edges = np.stack([numbers % num_nodes, numbers // degree], axis=1)
    return Neighbors(np.arange(0, numbers.size + 1, degree), entries, edges, 0)


@pytest.mark.parametrize(
    ("degree", "fanout", "excluded"),
    [(7, 2, 0), (5, 3, 0), (8, 3, 3), (6, 4, 1), (40, 2, 36), (30, 1, 0), (12, 3, 6), (40, 3, 34)],
    ids=[
        "draws",
        "a pass",
        "draws around excluded",
        "a pass around excluded",
        "most are excluded",
        "one",
        "half",
        "six",
    ],
)
def test_every_set_of_neighbors_has_the_same_probability(degree, fanout, excluded):
    """Chi-square over all sets; with a fixed seed it holds or not, whenever it runs."""
    samples = 400 if numba.config.DISABLE_JIT else 30_000
    nodes = np.arange(samples)
    hidden = (nodes[:, None] * degree + np.arange(excluded) * degree // max(1, excluded)).ravel()
    left = sorted(set(range(degree)) - {place * degree // excluded for place in range(excluded)})
    sampler = NeighborSampler(alike(degree, samples), [fanout], 0)
    got = sampler.draw(nodes, fanout, stream_key(7, "a test"), hidden)
    assert got.offsets.tolist() == list(range(0, samples * fanout + 1, fanout))
    assert np.array_equal(got.edges // degree, np.repeat(nodes, fanout))
    counts = Counter(tuple(each) for each in np.sort(got.edges.reshape(samples, fanout) % degree).tolist())
    sets = list(itertools.combinations(left, fanout))
    assert set(counts) <= set(sets)
    mean, freedom = samples / len(sets), len(sets) - 1
    statistic = sum((counts[each] - mean) ** 2 / mean for each in sets)
    assert abs(statistic - freedom) < 3.5 * math.sqrt(2 * freedom)


def test_draws_of_nodes_layers_batches_and_epochs_are_independent():
    """The place of a node's only neighbour says nothing about that of another draw (chi-square of the pairs)."""
    samples, degree = (400 if numba.config.DISABLE_JIT else 20_000), 5
    sampler = NeighborSampler(alike(degree, samples), [1, 1], 3)
    nodes = np.arange(samples)

    def places(epoch, batch):
        layers = sampler.sample(nodes, epoch, batch).layers
        return [layer.edges[:samples] % degree for layer in layers]

    (first, second), (later, _), (next_epoch, _) = places(0, 0), places(0, 1), places(1, 0)
    for one, other in ((first, second), (first, later), (first, next_epoch), (first[:-1], first[1:])):
        table = np.histogram2d(one, other, bins=degree)[0]
        mean = len(one) / degree**2
        freedom = degree**2 - 1
        assert abs(((table - mean) ** 2 / mean).sum() - freedom) < 3.5 * math.sqrt(2 * freedom)


def test_threads_and_order_do_not_matter(tmp_path):
    edges = random_edges(300, 3, 4000, np.int32)
    edges[::3, 0] = 5
    found = open_neighbors(tmp_path / "neighbors", edges, 300, 3, "both", "a graph")
    sampler, batches = NeighborSampler(found, [3, 7], 11), 24

    def sample(batch):
        chosen = np.random.default_rng(batch).permutation(300)[:40]
        numbers = np.random.default_rng(batch).integers(0, 4000, 100)
        layers, rows, inputs = sampler.sample(chosen, 2, batch, numbers)
        return [each.tolist() for each in (rows, inputs, *itertools.chain(*layers))]

    expected = [sample(batch) for batch in range(batches)]
    assert len({str(each) for each in expected}) == batches
    got: dict[int, list] = {}

    def work(part):
        for batch in part:
            got[batch] = sample(batch)

    threads = [threading.Thread(target=work, args=(range(batches)[::-1][k::4],)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [got[batch] for batch in range(batches)] == expected


def test_the_most_rows_of_a_batch():
    def most(fanouts, seeds, num_nodes):
        return NeighborSampler(alike(1, num_nodes), fanouts, 0).most_rows(seeds)

    assert most([2, 3], 5, 100) == 5 * 4 * 3
    assert most([2, 3], 5, 59) == 59
    assert most([-1, 3], 1, 100) == most([3, -1], 1, 100) == 100
    sampler = NeighborSampler(alike(1, 8), [2], 0)
    assert sampler.most_rows(0) == len(sampler.sample(np.arange(0), 0, 0).rows) == 0


@pytest.mark.parametrize("fanouts", [[], [0], [3, -2], [1 << 31]])
def test_fanouts_that_are_none(fanouts):
    with pytest.raises(ValueError, match="fan-outs are -1 or at least 1"):
        NeighborSampler(alike(2, 3), fanouts, 0)


@pytest.mark.parametrize(
    ("seeds", "message"),
    [
        (np.array([0, 3]), "seeds must lie in 0 to 2"),
        (np.array([-1]), "seeds must lie in 0 to 2"),
        (np.array([1, 0, 1]), "comes twice"),
        (np.array([0.0]), "seeds must be int64"),
        (np.array([[0]]), "seeds must be int64"),
    ],
)
def test_seeds_that_are_none(seeds, message):
    with pytest.raises(ValueError, match=message):
        NeighborSampler(alike(2, 3), [1], 0).sample(seeds, 0, 0)
