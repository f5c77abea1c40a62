import threading

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marius_oac.data.batches.buckets import BucketPlanner, BucketSchedule
from marius_oac.data.graphs.buckets import count_buckets, partition_starts
from marius_oac.errors import InputError
from tests.data import naive_batches, naive_orderings
from tests.data.test_batches import assert_same, config, original, random_edges

EXAMPLES = 15 if numba.config.DISABLE_JIT else 60
ORDERINGS = [
    "{kind: beta, partitions: 4, buffer: 2}",
    "{kind: beta, partitions: 5, buffer: 3}",
    "{kind: comet, partitions: 6, buffer: 4}",
    "{kind: comet, partitions: 6, buffer: 3, logical: 6}",
]


def make_planner(edges, num_nodes, num_relations, settings):
    partitions = settings.training.ordering.partitions
    schedule = BucketSchedule(count_buckets(edges, num_nodes, partitions), num_nodes, settings)
    own = [naive_orderings.bucket_of(edge, num_nodes, partitions) for edge in edges.tolist()]
    in_order = np.array(sorted(range(len(edges)), key=own.__getitem__))
    return BucketPlanner(np.ascontiguousarray(edges[in_order]), num_nodes, num_relations, settings, schedule)


@st.composite
def cases(draw):
    num_nodes, num_relations = draw(st.integers(6, 30)), draw(st.sampled_from([0, 1, 7]))
    dtype = draw(st.sampled_from([np.int32, np.int64]))
    edges = random_edges(num_nodes, num_relations, draw(st.integers(1, 60)), dtype, draw(st.integers(0, 5)))
    batch_size = draw(st.integers(1, 20))
    settings = config(
        f"seed={draw(st.integers(0, 3))}",
        f"model.decoder={'distmult' if num_relations else 'dot'}",
        f"model.reciprocal={bool(num_relations) and draw(st.booleans())}",
        f"training.ordering={draw(st.sampled_from(ORDERINGS))}",
        f"training.batch_size={batch_size}",
        "training.epochs=3",
        f"training.negatives.count={draw(st.integers(1, 30))}",
        f"training.negatives.chunks={draw(st.integers(1, batch_size))}",
        f"training.negatives.degree_fraction={draw(st.sampled_from([0.0, 0.5, 1.0]))}",
    )
    return edges, num_nodes, num_relations, settings


@settings(deadline=None, max_examples=EXAMPLES)
@given(cases())
def test_plans_are_the_naive_batches(case):
    edges, num_nodes, num_relations, settings = case
    planner = make_planner(*case)
    ends, (table,) = planner.epoch_ends(3), planner.tables
    starts = partition_starts(num_nodes, settings.training.ordering.partitions)
    for epoch in range(3):
        begin = ends[epoch - 1] if epoch else 0
        expected = naive_orderings.batches(edges.tolist(), num_nodes, num_relations, settings, epoch)
        states, _ = naive_orderings.epoch(settings, epoch)
        assert ends[epoch] - begin == len(expected)
        everything = []
        for number, (state, examples, negatives) in enumerate(expected):
            plan = planner.plan(begin + number)
            (rows,), data = plan.rows, plan.data
            assert (plan.batch_index, plan.examples) == (begin + number, len(examples))
            assert original(plan) == examples and rows[data.negatives].tolist() == negatives
            assert data.epoch == epoch
            assert 1 <= plan.examples <= settings.training.batch_size and len(rows) <= table.max_batch_rows
            assert set(np.searchsorted(starts, rows, side="right") - 1) <= states[state]
            everything += examples
        every = naive_batches.examples(edges.tolist(), num_relations, settings.model.reciprocal)
        assert sorted(everything) == sorted(every)


def some_planner(*overrides):
    ordering = "training.ordering={kind: comet, partitions: 8, buffer: 4}"
    edges = random_edges(500, 5, 2000)
    return make_planner(edges, 500, 5, config(ordering, "training.batch_size=64", "training.epochs=4", *overrides))


def test_plans_are_the_same_from_any_thread_in_any_order():
    planner = some_planner("training.negatives.degree_fraction=0.5")
    sequences = range(0, planner.epoch_ends(4)[-1], 3)
    other = some_planner("training.negatives.degree_fraction=0.5")
    expected = {n: other.plan(n) for n in sequences}
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


def test_edges_are_spread_evenly_over_the_batches_of_a_state():
    planner = some_planner()
    schedule = planner._schedule.epoch(0)
    sizes = [planner.plan(number).examples for number in range(planner.epoch_ends(1)[0])]
    for begin, end in zip(schedule.batch_ends[:-1], schedule.batch_ends[1:], strict=True):
        assert max(sizes[begin:end]) - min(sizes[begin:end]) <= 1
    assert sum(sizes) == 2000


def test_a_batch_has_no_more_rows_than_the_buffer():
    assert some_planner().tables[0].max_batch_rows == 4 * 63  # 500 nodes in 8 partitions, 4 of which are larger
    assert some_planner("training.negatives.count=10").tables[0].max_batch_rows == 2 * 64 + 2 * 10


def test_more_epochs_do_not_change_the_first_ones():
    few, more = some_planner("training.epochs=2"), some_planner("training.epochs=4")
    assert more.epoch_ends(4)[:2] == few.epoch_ends(2)
    last = few.epoch_ends(2)[-1]
    assert_same(few.plan(last - 1), more.plan(last - 1))
    with pytest.raises(ValueError, match=f"below the {last} batches"):
        few.plan(last)
    with pytest.raises(ValueError, match="at least 0"):
        few.plan(-1)


def test_more_partitions_than_nodes_are_refused():
    settings = config("training.ordering={kind: beta, partitions: 7, buffer: 3}")
    with pytest.raises(InputError, match="training.ordering.partitions: 7 partitions of 6 nodes"):
        BucketSchedule(np.zeros((7, 7), np.int64), 6, settings)
    assert BucketSchedule(np.zeros((7, 7), np.int64), 7, settings).most_rows == 3
