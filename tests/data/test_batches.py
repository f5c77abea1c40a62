import dataclasses
import threading

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marius_oac.config.link_prediction import Config
from marius_oac.data.batches import edges as batches
from marius_oac.data.batches.edges import EdgePlanner, ReorderedPlanner
from marius_oac.data.batches.rank_slice import RankSlice
from marius_oac.errors import InputError
from marius_oac.types import Side, arrays_of
from tests.data import naive_batches as naive

EXAMPLES = 20 if numba.config.DISABLE_JIT else 80


def config(*overrides: str) -> Config:
    return Config.build({"data": {"path": "g"}}, overrides)


def random_edges(num_nodes, num_relations, num_edges, dtype=np.int64, seed=0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    columns = [rng.integers(0, num_nodes, num_edges), rng.integers(0, num_nodes, num_edges)]
    if num_relations:
        columns.insert(1, rng.integers(0, num_relations, num_edges))
    return np.stack(columns, axis=1).astype(dtype)


def original(plan) -> list[tuple]:
    """The plan's examples by original ids."""
    rows, data = plan.rows[0], plan.data
    relations = [None] * plan.examples
    if data.relations is not None:
        relations = data.relation_rows[data.relations].tolist()
    return list(zip(rows[data.heads].tolist(), relations, rows[data.tails].tolist(), strict=True))


def epoch(planner, number=0) -> list[tuple]:
    batches = planner.batches_per_epoch
    return [edge for n in range(number * batches, (number + 1) * batches) for edge in original(planner.plan(n))]


def assert_same(one, two):
    np.testing.assert_equal(dataclasses.asdict(one), dataclasses.asdict(two))
    assert [each.dtype for each in arrays_of(one)] == [each.dtype for each in arrays_of(two)]


@st.composite
def cases(draw):
    num_nodes, num_relations = draw(st.integers(1, 30)), draw(st.sampled_from([0, 1, 2, 7]))
    num_edges = draw(st.integers(1, 25))
    dtype = draw(st.sampled_from([np.int32, np.int64]))
    edges = random_edges(num_nodes, num_relations, num_edges, dtype, draw(st.integers(0, 5)))
    batch_size = draw(st.integers(1, 40))
    reciprocal = bool(num_relations) and draw(st.booleans())
    settings = config(
        f"seed={draw(st.integers(0, 3))}",
        f"model.decoder={'distmult' if num_relations else 'dot'}",
        f"model.reciprocal={reciprocal}",
        f"training.batch_size={batch_size}",
        f"training.negatives.count={draw(st.integers(1, 40))}",
        f"training.negatives.chunks={draw(st.integers(1, batch_size))}",
        f"training.negatives.degree_fraction={draw(st.sampled_from([0.0, 0.3, 0.5, 1.0]))}",
    )
    return edges, num_nodes, num_relations, settings, draw(st.integers(0, 200))


@settings(deadline=None, max_examples=EXAMPLES)
@given(cases())
def test_a_plan_is_the_naive_batch(case):
    edges, num_nodes, num_relations, settings, batch_index = case
    planner = EdgePlanner(edges, num_nodes, num_relations, settings)
    plan = planner.plan(batch_index)
    examples, negatives = naive.batch(edges.tolist(), num_nodes, num_relations, settings, batch_index)
    (rows,), data = plan.rows, plan.data
    assert (plan.batch_index, plan.examples) == (batch_index, len(examples))
    assert original(plan) == examples
    assert rows[data.negatives].tolist() == negatives
    used = {end for h, _, t in examples for end in (h, t)} | set(np.ravel(negatives).tolist())
    assert rows.tolist() == sorted(used)
    assert (data.relations is None) == (data.relation_rows is None) == (not num_relations)
    if num_relations:
        assert data.relation_rows.tolist() == sorted({r for _, r, _ in examples})
    offsets = data.chunk_offsets
    assert len(offsets) == data.negatives.shape[1] + 1
    assert (offsets[0], offsets[-1]) == (0, plan.examples)
    sizes = np.diff(offsets)
    assert sizes.min() >= 1 and sizes.max() - sizes.min() <= 1
    assert data.share == 1.0
    for array in (rows, *arrays_of(data)):
        assert array.dtype == np.int64 and array.flags.c_contiguous
    (table,) = planner.tables
    assert (table.name, table.num_rows) == ("entities", num_nodes)
    assert len(rows) <= table.max_batch_rows <= num_nodes


@settings(deadline=None, max_examples=EXAMPLES)
@given(cases(), st.integers(0, 3))
def test_an_epoch_has_every_edge_once(case, number):
    edges, num_nodes, num_relations, settings, _ = case
    planner = EdgePlanner(edges, num_nodes, num_relations, settings)
    every = naive.examples(edges.tolist(), num_relations, settings.model.reciprocal)
    assert sorted(epoch(planner, number)) == sorted(every)


def test_epochs_and_seeds_have_orders_and_negatives_of_their_own():
    edges = np.stack([np.arange(100), np.zeros(100, int), np.arange(100)], axis=1)
    orders, negatives = [], []
    for seed in (0, 1):
        planner = EdgePlanner(edges, 1000, 1, config(f"seed={seed}", "training.batch_size=30"))
        for number in (0, 1):
            orders.append(epoch(planner, number))
            first = planner.plan(number * planner.batches_per_epoch)
            negatives.append(first.rows[0][first.data.negatives])
    for i in range(4):
        for j in range(i):
            assert orders[i] != orders[j]
            assert not np.array_equal(negatives[i], negatives[j])
    assert not np.array_equal(negatives[0][Side.HEAD], negatives[0][Side.TAIL])


def test_plans_are_the_same_from_any_thread_in_any_order():
    planner = EdgePlanner(
        random_edges(500, 5, 2000),
        500,
        5,
        config("training.batch_size=64", "training.negatives.chunks=3", "training.negatives.degree_fraction=0.5"),
    )
    sequences = range(0, 90, 3)
    expected = {n: planner.plan(n) for n in sequences}
    start, seen = threading.Barrier(4), []

    def run(seed):
        start.wait()
        for n in np.random.default_rng(seed).permutation(sequences):
            seen.append(planner.plan(int(n)))

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 4 * len(sequences)
    for plan in seen:
        assert_same(plan, expected[plan.batch_index])


def test_all_nodes_as_negatives():
    edges = random_edges(40, 3, 10)
    planner = EdgePlanner(
        edges,
        40,
        3,
        config("training.negatives.all=true", "training.batch_size=4", "training.negatives.chunks=3"),
    )
    plan, other = planner.plan(0), planner.plan(5)
    assert plan.rows[0] is other.rows[0] and not plan.rows[0].flags.writeable
    assert plan.rows[0].tolist() == list(range(40))
    assert plan.data.negatives is None
    assert plan.data.chunk_offsets == (0, 4)
    assert planner.tables[0].max_batch_rows == 40
    for number in (0, 1):
        assert sorted(epoch(planner, number)) == sorted(map(tuple, edges.tolist()))


def test_one_node_one_edge_and_more_negatives_than_nodes():
    planner = EdgePlanner(np.array([[0, 0]]), 1, 0, config("model.decoder=dot", "training.negatives.count=7"))
    assert planner.batches_per_epoch == 1
    plan = planner.plan(12)
    assert (plan.batch_index, plan.examples, plan.rows[0].tolist()) == (12, 1, [0])
    assert plan.data.negatives.tolist() == [[[0] * 7]] * 2
    assert planner.tables[0].max_batch_rows == 1


def test_a_batch_larger_than_the_graph_is_the_graph():
    planner = EdgePlanner(random_edges(9, 2, 5), 9, 2, config("training.batch_size=1000", "training.negatives.count=3"))
    assert planner.batches_per_epoch == 1
    assert planner.plan(3).examples == 5
    assert planner.tables[0].max_batch_rows == 9
    large = EdgePlanner(random_edges(9, 2, 5), 10**6, 2, config("training.batch_size=1000"))
    assert large.tables[0].max_batch_rows == 2 * 5 + 2 * 500


def test_a_batch_of_fewer_edges_than_chunks_has_one_chunk_per_edge():
    planner = EdgePlanner(random_edges(9, 2, 10), 9, 2, config("training.batch_size=8", "training.negatives.chunks=4"))
    assert planner.plan(0).data.chunk_offsets == (0, 2, 4, 6, 8)
    assert planner.plan(1).data.chunk_offsets == (0, 1, 2)
    assert planner.plan(1).data.negatives.shape == (2, 2, 500)


def test_dot_ignores_the_relations_of_a_graph():
    edges = random_edges(20, 4, 15)
    planner = EdgePlanner(edges, 20, 4, config("model.decoder=dot", "training.batch_size=4"))
    assert planner.plan(0).data.relations is planner.plan(0).data.relation_rows is None
    assert sorted(epoch(planner)) == sorted((h, None, t) for h, _, t in edges.tolist())


def test_a_huge_graph_costs_no_more_than_a_small_one(tmp_path):
    """Ids close to 2**40 and a mapped file: nothing is as long as the nodes."""
    path = tmp_path / "train.npy"
    edges = random_edges(2**40, 3, 5000)
    np.save(path, edges)
    planner = EdgePlanner(
        np.load(path, mmap_mode="r"),
        2**40,
        3,
        config("training.batch_size=512", "training.negatives.degree_fraction=0.5", "training.negatives.count=20"),
    )
    assert sorted(epoch(planner)) == sorted(map(tuple, edges.tolist()))
    assert len(planner.plan(0).rows[0]) <= planner.tables[0].max_batch_rows == 2 * 512 + 2 * 20
    in_memory = EdgePlanner(edges, 2**40, 3, planner_config := config("training.batch_size=512"))
    mapped = EdgePlanner(np.load(path, mmap_mode="r"), 2**40, 3, planner_config)
    assert_same(in_memory.plan(3), mapped.plan(3))


@pytest.mark.parametrize(
    ("edges", "num_nodes", "num_relations", "overrides", "where", "message"),
    [
        ([[0, 1]], 2, 0, ["model.decoder=distmult"], "model.decoder", "distmult needs relations, but this graph"),
        ([[0, 1]], 2, 0, ["model.decoder=transe"], "model.decoder", "transe needs relations"),
        ([[0, 0, 1]], 2, 1, ["model.decoder=dot", "model.reciprocal=true"], "model.reciprocal", "dot has no relations"),
        (np.empty((0, 3), int), 2, 1, [], "data.path", "no training edges"),
        ([[0, 0, 1]], 2**41, 1, [], "data.path", "1 to 2**40 are possible"),
        (
            np.zeros((2**13, 3), int),
            2**40,
            1,
            ["training.batch_size=8192", "training.negatives.chunks=8192", "training.negatives.count=1000"],
            "training.batch_size",
            "16,400,384 ids in a batch are too many",
        ),
    ],
)
def test_what_does_not_fit_is_named(edges, num_nodes, num_relations, overrides, where, message):
    with pytest.raises(InputError) as error:
        EdgePlanner(np.asarray(edges), num_nodes, num_relations, config(*overrides))
    assert error.value.where == where
    assert message in error.value.message


def test_arrays_that_do_not_match_the_relations_are_a_programming_error():
    with pytest.raises(ValueError, match="2 columns, but the graph has 3 relations"):
        EdgePlanner(np.zeros((4, 2), int), 5, 3, config())
    planner = EdgePlanner(np.zeros((4, 3), int), 5, 3, config())
    with pytest.raises(ValueError, match="batch_index must be"):
        planner.plan(-1)


def test_a_reordered_planner_replays_the_same_batches():
    planner = EdgePlanner(random_edges(30, 2, 50), 30, 2, config("training.batch_size=8"))
    order = np.array([3, 0, 9, 1])
    replay = ReorderedPlanner(planner, order)
    order[:] = 0  # the planner keeps what it was given
    assert replay.tables == planner.tables and list(replay.epoch_ends(3)) == list(planner.epoch_ends(3)) == [7, 14, 21]
    for i, n in enumerate([3, 0, 9, 1]):
        assert_same(replay.plan(i), dataclasses.replace(planner.plan(n), batch_index=i))
    with pytest.raises(InputError, match="pipeline.order: has 4 batches, none with number 4"):
        replay.plan(4)


@pytest.mark.parametrize(
    ("order", "message"),
    [
        ([0, 2, 2], "batch 2 more than once"),
        ([1, -3], "holds -3"),
        ([0.0], "an order is int64"),
        ([[0]], "an order is"),
    ],
)
def test_an_order_that_is_none_is_refused(order, message):
    planner = EdgePlanner(random_edges(30, 2, 50), 30, 2, config())
    with pytest.raises(InputError, match=message) as error:
        ReorderedPlanner(planner, np.array(order))
    assert error.value.where == "pipeline.order"


@settings(deadline=None, max_examples=EXAMPLES)
@given(cases(), st.integers(1, 5))
def test_the_shares_of_several_trainers_are_the_batch(case, count):
    edges, num_nodes, num_relations, settings, batch_index = case
    planner = EdgePlanner(edges, num_nodes, num_relations, settings)
    whole, plans = planner.plan(batch_index), []
    for rank in range(count):
        planner.share = RankSlice(rank, count)
        plans.append(planner.plan(batch_index))
    counted = [plan for plan in plans if plan.data.share > 0]
    assert [example for plan in counted for example in original(plan)] == original(whole)
    assert sum(plan.data.share for plan in plans) == pytest.approx(1)
    for rank, plan in enumerate(plans):
        first, end, _ = RankSlice(rank, count).of_batch(whole.examples)
        assert negatives_by_edge(plan) == negatives_by_edge(whole)[first:end]
        assert np.diff(plan.data.chunk_offsets).min() >= 1


def test_a_trainer_reads_the_edges_and_draws_the_negatives_of_its_share_alone(monkeypatch):
    edges, overrides = np.arange(1500).reshape(-1, 3) % [1500, 3, 1500], ["training.batch_size=64"]
    overrides += ["training.negatives.chunks=8", "training.negatives.count=5"]
    fill, drawn = batches.fill_negatives, []
    monkeypatch.setattr(batches, "fill_negatives", lambda *args: drawn.append(args[-1].size) or fill(*args))
    for rank in range(4):
        drawn.clear()
        poisoned = edges.copy()
        planners = [EdgePlanner(each, 1500, 3, config(*overrides)) for each in (edges, poisoned)]
        for planner in planners:
            planner.share = RankSlice(rank, 4)
        plans = [planners[0].plan(batch_index) for batch_index in range(planners[0].batches_per_epoch)]
        heads = np.concatenate([plan.rows[0][plan.data.heads] for plan in plans])
        assert heads.size == 500 // 4 and sum(drawn) == 2 * 5 * (8 // 4) * len(plans)
        poisoned[np.isin(poisoned[:, 0], heads, invert=True)] = 1 << 40
        for plan in plans:
            assert_same(planners[1].plan(plan.batch_index), plan)


def negatives_by_edge(plan):
    """The ids that each edge of a plan is set against, by side."""
    drawn = plan.rows[0][plan.data.negatives]
    sizes = np.diff(plan.data.chunk_offsets)
    return [drawn[:, chunk].tolist() for chunk in np.repeat(np.arange(len(sizes)), sizes)]
