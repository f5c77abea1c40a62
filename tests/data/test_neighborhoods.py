"""What a batch holds for an encoder: blocks around its nodes, which never show the batch's own edges."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marius_oac.config.link_prediction import Config
from marius_oac.data.batches.edges import EdgePlanner
from marius_oac.data.batches.nodes import NodePlanner
from marius_oac.data.batches.rank_slice import RankSlice
from marius_oac.data.neighbors.neighborhoods import Neighborhoods
from marius_oac.data.neighbors.neighbors import open_neighbors
from marius_oac.data.neighbors.sampling import NeighborSampler

NODES, RELATIONS = 60, 3


class Spy:
    """A sampler that keeps what it was asked for, and its blocks."""

    def __init__(self, sampler):
        self.sampler, self.most_rows, self.seen = sampler, sampler.most_rows, []

    def sample(self, seeds, epoch, batch, excluded):
        blocks = self.sampler.sample(seeds, epoch, batch, excluded)
        self.seen.append((seeds, epoch, batch, excluded, blocks))
        return blocks


def config(*overrides):
    tree = {"data": {"path": "none"}, "model": {"decoder": "distmult", "dimension": 4}}
    tree["training"] = {"batch_size": 16, "negatives": {"count": 3, "chunks": 2}}
    return Config.build(tree, overrides)


@pytest.fixture
def world(tmp_path):
    generator = np.random.default_rng(0)
    columns = [generator.integers(NODES, size=100), generator.integers(RELATIONS, size=100)]
    edges = np.stack([*columns, generator.integers(NODES, size=100)], 1).astype(np.int32)
    neighbors = open_neighbors(tmp_path / "neighbors", edges, NODES, RELATIONS, "both", "test")
    return edges, Spy(NeighborSampler(neighbors, [3, 2], 0))


@pytest.mark.parametrize("reciprocal", [False, True])
def test_the_edges_of_a_batch_are_hidden_from_it(world, reciprocal):
    edges, spy = world
    planner = EdgePlanner(
        edges, NODES, RELATIONS, config(f"model.reciprocal={reciprocal}".lower()), None, Neighborhoods(spy, True)
    )
    for batch_index in range(2 * planner.batches_per_epoch):
        plan = planner.plan(batch_index)
        seeds, epoch, batch, hidden, blocks = spy.seen.pop()
        assert (epoch, batch) == divmod(batch_index, planner.batches_per_epoch)
        found = np.stack([seeds[plan.data.head.heads], seeds[plan.data.head.tails]], 1)
        wanted = edges[hidden][:, [0, 2]]
        backward = plan.data.head.relation_rows[plan.data.head.relations] >= RELATIONS
        assert backward.any() == reciprocal
        assert np.array_equal(found, np.where(backward[:, None], wanted[:, ::-1], wanted))
        for block in blocks.layers:
            assert not np.isin(block.edges, hidden).any()


def test_plans_hold_the_blocks_and_the_features_of_their_inputs(world):
    edges, spy = world
    features = np.random.default_rng(1).normal(size=(NODES, 5)).astype(np.float32)
    planner = EdgePlanner(edges, NODES, RELATIONS, config(), None, Neighborhoods(spy, True, features))
    planner.share = RankSlice(1, 3)
    plan, (seeds, *_, blocks) = planner.plan(3), spy.seen[0]
    (rows,), data = plan.rows, plan.data
    assert np.array_equal(rows, np.unique(rows)) and len(rows) <= planner.tables[0].max_batch_rows
    nodes = rows[data.inputs]
    assert np.array_equal(data.features, features[nodes])
    for number, (found, block) in enumerate(zip(data.blocks, blocks.layers, strict=True)):
        assert np.array_equal(found.offsets, block.offsets) and np.array_equal(found.sources, block.sources)
        nodes = nodes[: len(block.offsets) - 1] if number else nodes
    assert np.array_equal(nodes[: len(seeds)], seeds) and np.array_equal(seeds, np.unique(seeds))
    head = data.head
    assert max(each.max() for each in (head.heads, head.tails, head.negatives)) < len(seeds)
    assert len(head.relations) == len(head.heads) < 16
    assert (data.epoch, data.share) == (head.epoch, head.share) == (0, len(head.heads) / 16)


@pytest.mark.parametrize("aggregator", ["mean", "gcn"])
def test_plans_hold_the_means_of_features_in_the_place_of_the_first_block(world, aggregator):
    edges, spy = world
    features = np.random.default_rng(1).normal(size=(NODES, 5)).astype(np.float32)
    planner = EdgePlanner(edges, NODES, RELATIONS, config(), None, Neighborhoods(spy, False, features, aggregator))
    plan, (*_, blocks) = planner.plan(3), spy.seen[0]
    assert plan.rows == () and plan.data.inputs is None
    (first, second), nodes = blocks.layers, blocks.rows[blocks.inputs]
    for output, (begin, end) in enumerate(zip(first.offsets[:-1], first.offsets[1:], strict=True)):
        seen = nodes[first.sources[begin:end]].tolist() + [nodes[output]] * (aggregator == "gcn")
        wanted = features[seen].mean(0) if seen else np.zeros(5)
        np.testing.assert_allclose(plan.data.means[output], wanted, atol=1e-6)
    assert len(plan.data.means) == len(first.offsets) - 1
    assert (plan.data.features is None) == (aggregator == "gcn")
    if aggregator == "mean":
        assert np.array_equal(plan.data.features, features[nodes[: len(first.offsets) - 1]])
    (rest,) = plan.data.blocks
    assert np.array_equal(rest.sources, second.sources)
    for wrong in ((True, features), (False, None)):
        with pytest.raises(ValueError, match="means are formed of features, where nodes have no rows"):
            Neighborhoods(spy, *wrong, aggregator)


def test_a_plan_is_a_function_of_its_number(world):
    edges, spy = world
    first, second = (EdgePlanner(edges, NODES, RELATIONS, config(), None, Neighborhoods(spy, True)) for _ in range(2))
    later = {number: second.plan(number) for number in (5, 1, 3)}
    for number, plan in later.items():
        again = first.plan(number)
        np.testing.assert_equal(dataclasses.asdict(again), dataclasses.asdict(plan))


def test_nodes_without_rows_make_no_table(world):
    edges, spy = world
    features = np.zeros((NODES, 2), np.float32)
    planner = EdgePlanner(edges, NODES, RELATIONS, config(), None, Neighborhoods(spy, False, features))
    assert planner.tables == [] and planner.plan(0).rows == ()


def test_all_nodes_may_be_encoded(world):
    edges, spy = world
    overrides = ["training.negatives.all=true"]
    planner = EdgePlanner(edges, NODES, RELATIONS, config(*overrides), None, Neighborhoods(spy, True))
    planner.plan(0)
    assert np.array_equal(spy.seen[0][0], np.arange(NODES))


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 40), st.integers(1, 50), st.integers(0, 3))
def test_an_epoch_has_every_labelled_node_once(tmp_path_factory, count, batch_size, epoch):
    edges = np.array([[0, 1], [1, 2]], np.int32)
    folder = tmp_path_factory.mktemp("labelled") / "neighbors"
    spy = Spy(NeighborSampler(open_neighbors(folder, edges, NODES, 0, "in", "test"), [2], 0))
    nodes, classes = np.arange(count) + 7, np.arange(count) % 4
    planner = NodePlanner(nodes, classes, NODES, batch_size, 0, Neighborhoods(spy, True))
    assert list(planner.epoch_ends(2)) == [planner.batches_per_epoch, 2 * planner.batches_per_epoch]
    begin, seen = epoch * planner.batches_per_epoch, []
    for batch_index in range(begin, begin + planner.batches_per_epoch):
        plan = planner.plan(batch_index)
        seeds = spy.seen[-1][0]
        assert np.array_equal(plan.data.head.labels, (seeds - 7) % 4) and plan.examples == len(seeds) <= batch_size
        assert (
            plan.data.epoch == plan.data.head.epoch == epoch and len(plan.rows[0]) <= planner.tables[0].max_batch_rows
        )
        seen += seeds.tolist()
    assert sorted(seen) == nodes.tolist()
    if count > 20:
        assert seen != nodes.tolist()
