"""What every sampler of neighbours must do. A sampler's test module derives from `Sampling` and defines `make`."""

import itertools
import math
import threading
from abc import ABC, abstractmethod
from collections import Counter

import numba
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.data import naive_sampling as naive
from tests.data.test_batches import random_edges

JIT = not numba.config.DISABLE_JIT
EXAMPLES = settings(
    deadline=None,
    max_examples=120 if JIT else 25,
    suppress_health_check=[HealthCheck.differing_executors, HealthCheck.function_scoped_fixture],
)
DIRECTIONS = st.sampled_from(["in", "out", "both"])
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


def alike(degree: int, num_nodes: int) -> np.ndarray:
    """Edges to nodes with so many each; edge number n is the (n % degree)-th of its node."""
    numbers = np.arange(num_nodes * degree)
    return np.stack([numbers % num_nodes, numbers // degree], axis=1)


def flat(blocks) -> list:
    return [each.tolist() for each in (blocks.rows, blocks.inputs, *itertools.chain(*blocks.layers))]


def check_chi_square(counts, categories: int) -> None:
    """With a fixed seed it holds or not, whenever it runs."""
    mean, freedom = sum(counts) / categories, categories - 1
    statistic = sum((each - mean) ** 2 / mean for each in counts) + (categories - len(counts)) * mean
    assert abs(statistic - freedom) < 3.5 * math.sqrt(2 * freedom)


class Sampling(ABC):
    @abstractmethod
    def make(self, folder, edges, num_nodes, relations, direction, fanouts, seed):
        """A sampler; `folder` is not there yet, and its own."""

    @pytest.fixture
    def sampler_of(self, tmp_path_factory):
        """`make` in a new folder; by default of edges without relations that lead to their nodes."""

        def make(edges, num_nodes, fanouts, seed=0, relations=0, direction="in"):
            return self.make(
                tmp_path_factory.mktemp("graph") / "own", edges, num_nodes, relations, direction, fanouts, seed
            )

        return make

    @EXAMPLES
    @given(case=cases(), fanouts=FANOUTS, batch=st.integers(0, 99))
    def test_a_target_is_never_its_own_evidence(self, sampler_of, case, fanouts, batch):
        """And what is drawn are different edges of the node, as many as there are, or as the fan-out says."""
        edges, num_nodes, relations, direction, seeds, excluded = case
        sampler = sampler_of(edges, num_nodes, fanouts, 1, relations, direction)
        layers, rows, inputs = sampler.sample(seeds, 0, batch, excluded)
        assert rows.tolist() == sorted(set(rows.tolist())) and len(rows) <= sampler.most_rows(len(seeds))
        assert len(layers) == len(fanouts)
        assert {each.dtype for each in (rows, inputs, *itertools.chain(*layers))} == {np.dtype(np.int64)}
        assert all(each.flags.c_contiguous for each in (rows, inputs, *itertools.chain(*layers)))
        nodes = rows[inputs].tolist()
        assert len(nodes) == len(rows)
        every = naive.entries(edges.tolist(), num_nodes, relations, direction)
        for block, fanout in zip(layers, fanouts, strict=True):
            assert not set(block.edges.tolist()) & set(excluded.tolist())
            outputs = nodes[: len(block.offsets) - 1]
            assert set(nodes) == set(outputs) | {nodes[source] for source in block.sources.tolist()}
            for node, drawn in zip(outputs, messages(block, nodes, outputs), strict=True):
                left = Counter(entry for entry in every[node] if entry[-1] not in set(excluded.tolist()))
                assert not Counter(drawn) - left
                assert len(drawn) == (left.total() if fanout == -1 else min(left.total(), fanout))
            nodes = outputs
        assert nodes == seeds.tolist()

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
    def test_every_set_of_neighbors_has_the_same_probability(self, sampler_of, degree, fanout, excluded):
        samples = 30_000 if JIT else 400
        nodes = np.arange(samples)
        hidden = (nodes[:, None] * degree + np.arange(excluded) * degree // max(1, excluded)).ravel()
        left = sorted(set(range(degree)) - {place * degree // excluded for place in range(excluded)})
        block = sampler_of(alike(degree, samples), samples, [fanout], 7).sample(nodes, 0, 0, hidden).layers[0]
        assert block.offsets.tolist() == list(range(0, samples * fanout + 1, fanout))
        assert np.array_equal(block.edges // degree, np.repeat(nodes, fanout))
        counts = Counter(tuple(each) for each in np.sort(block.edges.reshape(samples, fanout) % degree).tolist())
        sets = list(itertools.combinations(left, fanout))
        assert set(counts) <= set(sets)
        check_chi_square(counts.values(), len(sets))

    def test_draws_of_nodes_layers_batches_and_epochs_are_independent(self, sampler_of):
        """The place of a node's only neighbour says nothing about that of another draw (chi-square of the pairs)."""
        samples, degree = (20_000 if JIT else 400), 5
        sampler = sampler_of(alike(degree, samples), samples, [1, 1], 3)
        nodes = np.arange(samples)

        def places(epoch, batch):
            layers = sampler.sample(nodes, epoch, batch).layers
            return [layer.edges[:samples] % degree for layer in layers]

        (first, second), (later, _), (next_epoch, _) = places(0, 0), places(0, 1), places(1, 0)
        for one, other in ((first, second), (first, later), (first, next_epoch), (first[:-1], first[1:])):
            check_chi_square(np.histogram2d(one, other, bins=degree)[0].ravel().tolist(), degree**2)

    def test_threads_and_order_do_not_matter(self, sampler_of):
        edges = random_edges(300, 3, 4000, np.int32)
        edges[::3, 0] = 5
        sampler, batches = sampler_of(edges, 300, [3, 7], 11, 3, "both"), 24

        def sample(batch):
            chosen = np.random.default_rng(batch).permutation(300)[:40]
            numbers = np.random.default_rng(batch).integers(0, 4000, 100)
            return flat(sampler.sample(chosen, 2, batch, numbers))

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

    def test_another_seed_draws_others_and_the_same_the_same(self, sampler_of):
        nodes, edges = np.arange(50), alike(20, 50)
        drawn = [flat(sampler_of(edges, 50, [3], seed).sample(nodes, 0, 0)) for seed in (0, 1, 0)]
        assert drawn[0] == drawn[2] != drawn[1]

    def test_the_most_rows_of_a_batch(self, sampler_of):
        def most(fanouts, seeds, num_nodes):
            return sampler_of(alike(1, num_nodes), num_nodes, fanouts).most_rows(seeds)

        assert most([2, 3], 5, 100) == 5 * 4 * 3
        assert most([2, 3], 5, 59) == 59
        assert most([-1, 3], 1, 100) == most([3, -1], 1, 100) == 100
        sampler = sampler_of(alike(1, 8), 8, [2])
        assert sampler.most_rows(0) == len(sampler.sample(np.arange(0), 0, 0).rows) == 0

    @pytest.mark.parametrize("fanouts", [[], [0], [3, -2], [1 << 31]])
    def test_fanouts_that_are_none(self, sampler_of, fanouts):
        with pytest.raises(ValueError, match="fan-outs are -1 or at least 1"):
            sampler_of(alike(2, 3), 3, fanouts)

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
    def test_seeds_that_are_none(self, sampler_of, seeds, message):
        with pytest.raises(ValueError, match=message):
            sampler_of(alike(2, 3), 3, [1]).sample(seeds, 0, 0)

    def test_a_direction_that_is_none(self, sampler_of):
        with pytest.raises(ValueError, match="direction must be one of in, out, both, not 'up'"):
            sampler_of(alike(2, 3), 3, [1], direction="up")

    def test_edges_that_do_not_fit_to_the_relations(self, sampler_of):
        with pytest.raises(ValueError, match="edges have 2 columns, the graph 4 relations"):
            sampler_of(alike(2, 3), 3, [1], relations=4)
