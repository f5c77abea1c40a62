"""Our own sampler: the same as the naive one, and what every sampler must be."""

import numba
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from marius_oac.data.neighbors.neighbors import open_neighbors
from marius_oac.data.neighbors.sampling import NeighborSampler
from marius_oac.kernels.cpu.random import stream_key
from tests.data import naive_sampling as naive
from tests.data.sampler_conformance import FANOUTS, Sampling, cases, messages
from tests.data.test_neighbors import opened

EXAMPLES = 25 if numba.config.DISABLE_JIT else 120


class TestNeighborSampler(Sampling):
    def make(self, folder, edges, num_nodes, relations, direction, fanouts, seed):
        return NeighborSampler(open_neighbors(folder, edges, num_nodes, relations, direction, "a graph"), fanouts, seed)


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
    assert rows.tolist() == sorted(expected[0][0]) and rows[inputs].tolist() == expected[0][0]


@settings(deadline=None, max_examples=EXAMPLES // 5)
@given(cases(), FANOUTS)
def test_a_node_is_drawn_for_by_itself(tmp_path_factory, case, fanouts):
    """The order of the seeds, and which others there are, change nothing; nor how much of the file is in memory."""
    edges, num_nodes, relations, direction, seeds, excluded = case
    found = opened(tmp_path_factory.mktemp("graph") / "neighbors", edges, num_nodes, relations, direction)
    key = stream_key(0, "neighbors")

    def drawn(sampler, nodes):
        got = sampler.draw(nodes, fanouts[0], key, excluded)
        parts = [np.split(each, got.offsets[1:-1]) for each in (got.sources, got.edges)]
        return {int(node): [each[i].tolist() for each in parts] for i, node in enumerate(nodes)}

    sampler, bounded = NeighborSampler(found, fanouts, 0), NeighborSampler(found, fanouts, 0, 8)
    together = drawn(sampler, seeds)
    assert drawn(sampler, seeds[::-1].copy()) == together == drawn(bounded, seeds)
    for node in seeds:
        assert drawn(sampler, np.array([node])) == {int(node): together[int(node)]}
