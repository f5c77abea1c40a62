"""Virtual parts: the tree of sums against a naive one, who sums which blocks, and what is refused."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn

from marius_oac.config.ctr import CtrConfig
from marius_oac.config.link_prediction import Config
from marius_oac.errors import ConfigError
from marius_oac.kernels.cpu.shards import tree_sum
from marius_oac.nodes.dense.tree_reduce import TreeReduce
from marius_oac.nodes.groups.thread_group import ThreadGroup
from marius_oac.nodes.parts.batch import BlockSums, OnePart, PartedBatch, block_sums, frames_of
from marius_oac.nodes.parts.blocks import blocks_of, parts_of
from marius_oac.nodes.parts.norms import RunningStatistics
from marius_oac.nodes.parts.step import PartedStep
from marius_oac.nodes.sharded.place import check_config
from marius_oac.nodes.shards.part_planner import PartPlanner
from marius_oac.types import BatchData, Plan
from tests.nodes.worlds import together

DIMENSION = 3


def naive_tree(terms, first, size):
    """The sum of the parts [first, first + size) that have a term, `terms` by part; None of none."""
    if size == 1:
        return terms.get(first)
    left, right = (naive_tree(terms, first + at, size // 2) for at in (0, size // 2))
    if left is None or right is None:
        return right if left is None else left
    return left + right


def width(parts):
    return 1 << (parts - 1).bit_length()


def naive_sums(rows, gradients, shares, parts, count):
    """Of each row its sum over parts, float32 [D], or None."""
    found = []
    for row in range(count):
        terms = {
            part: np.float32(shares[part]) * gradients[part][list(rows[part]).index(row)]
            for part in range(parts) if shares[part] and row in rows[part]
        }  # fmt: skip
        found.append(naive_tree(terms, 0, width(parts)))
    return found


def drawn(seed, parts, count):
    """Rows, gradients and shares of each part; some of them empty, some gradients -0.0, some shares 0."""
    draw = np.random.default_rng(seed)
    rows = [np.sort(draw.permutation(count)[: draw.integers(0, count + 1)]) for _ in range(parts)]
    gradients = [draw.normal(size=(own.size, DIMENSION)).astype(np.float32) * 10 for own in rows]
    for each in gradients:
        each[draw.random(each.shape) < 0.3] = -0.0
    return rows, gradients, [float(draw.choice([0.0, 0.125, 1 / 3, 1.0], p=[0.1, 0.3, 0.3, 0.3])) for _ in range(parts)]


def by_trainers(rows, gradients, shares, parts, trainers, count):
    """The same as real trainers and a shard sum them: (rows that have a sum, sums)."""
    pushed = []
    for trainer in range(trainers):
        own = [part for part in parts_of(trainer, trainers, parts) if shares[part]]
        data = PartedBatch(
            own=tuple(OnePart(part, BatchData(share=shares[part]), [rows[part]]) for part in own),
            blocks=blocks_of(parts_of(trainer, trainers, parts), parts),
        )
        sums = block_sums(data, [[gradients[part]] for part in own], [(count, DIMENSION)]) if own else []
        pushed += [
            (block.start, np.flatnonzero(each.tables[0][0]), each.tables[0][1][each.tables[0][0]])
            for block, each in zip(data.blocks, sums, strict=False)
        ]
    pushed = [each for each in pushed if each[1].size]
    slots, index, values = zip(*pushed, strict=True) if pushed else ((), (), ())
    return tree_sum(slots, index, values, [1.0] * len(slots), count, DIMENSION)


@given(st.integers(0, 2**32), st.integers(1, 9), st.integers(1, 6))
@example(0, 8, 5)
@settings(deadline=None, max_examples=30)
def test_sums_are_those_of_the_tree_for_any_number_of_trainers(seed, parts, count):
    made = drawn(seed, parts, count)
    expected = naive_sums(*made, parts, count)
    for trainers in range(1, parts + 1):
        begun, total = by_trainers(*made, parts, trainers, count)
        for row, value in enumerate(expected):
            assert begun[row] == (value is not None)
            assert value is None or total[row].tobytes() == value.tobytes()


def test_the_order_of_the_sums_matters_to_bits():
    """Otherwise the test above could not fail."""
    rows, gradients, shares = [np.arange(6)] * 8, np.random.default_rng(3).normal(size=(8, 6, 3)), [0.125] * 8
    made = rows, gradients.astype(np.float32), shares
    in_order = sum(np.float32(0.125) * each for each in made[1])
    assert in_order.tobytes() != np.array(naive_sums(*made, 8, 6)).tobytes()


@pytest.mark.parametrize("parts", range(1, 10))
def test_trainers_have_all_parts_and_the_largest_blocks_of_them(parts):
    for trainers in range(1, parts + 1):
        mine = [parts_of(trainer, trainers, parts) for trainer in range(trainers)]
        assert list(itertools.chain(*mine)) == list(range(parts)) and min(map(len, mine)) >= 1
        for own in mine:
            blocks = blocks_of(own, parts)
            assert list(itertools.chain(*blocks)) == list(own)
            for block in blocks:
                size = width(len(block))
                assert block.start % size == 0 and (len(block) == size or block.stop == parts)
            joined = [range(one.start, two.stop) for one, two in itertools.pairwise(blocks)]
            assert all(each.start % width(len(each)) or width(len(each)) != len(each) for each in joined)
    assert blocks_of(range(parts), parts) == [range(parts)]


def test_several_blocks_are_pushed_with_the_rows_that_each_has():
    has = [np.array([True, False, True, True]), np.array([False, False, True, False])]
    values = [np.arange(12, dtype=np.float32).reshape(4, 3) + 100 * at for at in range(2)]
    bits, gradients = frames_of([BlockSums([each]) for each in zip(has, values, strict=True)], 0, np.array([3, 2, 1]))
    assert np.unpackbits(bits, axis=1, count=3).tolist() == [[1, 1, 0], [0, 1, 0]]
    assert gradients.tolist() == [[9, 10, 11], [6, 7, 8], [106, 107, 108]]


@pytest.mark.parametrize("shares", [[0.125] * 8, [0.5, 0, 0, 0.25, 0, 0, 0.25, 0]])
def test_dense_gradients_are_summed_in_the_tree(shares):
    draw = np.random.default_rng(5)
    gradients = [torch.from_numpy(draw.normal(size=7).astype(np.float32)) for _ in shares]
    gradients[3][2] = gradients[0][2] = gradients[6][2] = -0.0
    terms = {part: (each * shares[part]).numpy() for part, each in enumerate(gradients) if shares[part]}
    expected = naive_tree(terms, 0, 8)

    def work(group):
        dense = TreeReduce(group, len(shares))
        dense.attach([torch.zeros(5), torch.zeros(2)])
        every = parts_of(group.rank, group.size, len(shares))
        own = [part for part in every if shares[part]] or [every[0]]
        dense.begin_batch(own)
        for part in own:
            given = [each.clone() for each in gradients[part].split([5, 2])]
            assert dense.reduce(given, shares[part]) == (part == own[-1])
            dense.updated(0)
        assert dense.metrics()["iterations"] == 1
        return torch.cat(given).numpy()

    for trainers in (1, 2, 3, 8):
        for found in together(ThreadGroup.members(trainers), work):
            assert found.tobytes() == expected.tobytes()


def test_running_statistics_are_folded_in_the_order_of_parts():
    """By hand: each part begins with the statistics before the batch; one of a single example counts nothing."""
    draw = torch.Generator().manual_seed(1)
    inputs = [torch.randn(size, 2, generator=draw) for size in (3, 4, 1, 5)]
    mean, var = torch.tensor([0.5, -1.0]), torch.tensor([2.0, 3.0])
    seen = []

    def folded(trainers):
        def work(group):
            norm = nn.BatchNorm1d(2)
            norm.running_mean.copy_(mean), norm.running_var.copy_(var)
            dense = TreeReduce(group, 4)
            dense.attach([norm.weight])
            statistics = RunningStatistics([norm, nn.BatchNorm1d(2, track_running_stats=False)], dense.of_all_parts)
            statistics.begin()
            for part in parts_of(group.rank, group.size, 4):
                assert norm.running_mean.equal(mean)
                norm.train(len(inputs[part]) > 1)
                norm(inputs[part])
                statistics.computed(part, part != 1)
            statistics.fold()
            return norm

        return together(ThreadGroup.members(trainers), work)

    for trainers in (1, 2, 3, 4):
        seen += folded(trainers)
    wanted = mean.clone(), var.clone()
    for part in (0, 3):
        now = inputs[part].mean(0), inputs[part].var(0)
        wanted = tuple(0.9 * old + 0.1 * new for old, new in zip(wanted, now, strict=True))
    for norm in seen:
        assert norm.running_mean.equal(seen[0].running_mean) and norm.running_var.equal(seen[0].running_var)
        assert norm.running_mean.allclose(wanted[0]) and norm.running_var.allclose(wanted[1])
        assert norm.num_batches_tracked == 2


@pytest.mark.parametrize(
    "norm, said", [(nn.BatchNorm1d(2, momentum=None), "momentum=None"), (nn.SyncBatchNorm(2), "of all parts at once")]
)
def test_norms_without_statistics_by_part_are_refused(norm, said):
    with pytest.raises(ConfigError, match=said):
        RunningStatistics([nn.BatchNorm1d(2), norm], lambda found, size: found)


LINKS = {"data": {"path": "graph"}, "device": "cpu"}
CLICKS = {
    "task": "ctr", "device": "cpu",
    "data": {"train": "log", "categorical": ["user"], "multi_valued": [{"name": "tags", "pool_at": "shard"}]},
}  # fmt: skip


@pytest.mark.parametrize(
    "kind, tree, overrides, trainers, said",
    [
        (Config, LINKS, [], 9, "8 parts are too few for 9 trainers"),
        (Config, LINKS, ["pipeline.mode=async", "nodes.dense.kind=easgd"], 2, "no order of sums"),
        (Config, LINKS, ["nodes.mode=gba"], 2, "for nodes.mode sync"),
        (Config, LINKS, ["nodes.mode=auto"], 2, "for nodes.mode sync"),
        (Config, LINKS, ["nodes.dense.kind=kstep"], 2, "a replica for each trainer"),
        (CtrConfig, CLICKS, ["keys.admit_after=2"], 2, "admit_after counts"),
        (CtrConfig, CLICKS, [], 2, "pool_at: trainer"),
    ],
)
def test_what_depends_on_trainers_is_refused(kind, tree, overrides, trainers, said):
    with pytest.raises(ConfigError, match=said) as caught:
        check_config(kind.build(tree, ["nodes.parts=8", *overrides]), trainers)
    assert "nodes.parts" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_parts_are_for_as_many_trainers():
    check_config(Config.build(LINKS, ["nodes.parts=8"]), 8)


class Planned:
    """Plans a part with this share, whose rows are its number and 9."""

    tables = ()

    def __init__(self, part, share):
        self.part, self.share = part, share

    def plan(self, batch_index):
        return Plan(batch_index, [np.array([self.part, 9])], BatchData(epoch=3, share=self.share), 5)


def gathered(plans):
    rows = np.unique(np.concatenate([plan.rows[0] for plan in plans]))
    return ["route"], [rows], [[np.searchsorted(rows, plan.rows[0])] for plan in plans]


@pytest.mark.parametrize(
    "shares, mine, found, share",
    [
        ([0.25, 0.0, 0.25, 0.5], range(4), [0, 2, 3], 1.0),
        ([0.25, 0.0, 0.25, 0.5], range(2, 3), [2], 0.25),
        ([0.0, 0.0, 0.5, 0.5], range(2), [0], 0.0),
        ([0.0, 0.0, 0.5, 0.5], range(1, 2), [1], 0.0),
    ],
)
def test_parts_with_examples_are_planned_with_random_numbers_of_their_own(shares, mine, found, share):
    planner = PartPlanner([Planned(*each) for each in enumerate(shares)], mine, 4, gathered)
    plan = planner.plan(7)
    assert [part.number for part in plan.data.own] == found
    assert [part.data.part for part in plan.data.own] == [(7, part) for part in found]
    assert (plan.data.share, plan.data.epoch, plan.examples) == (share, 3, 5 * len(found))
    assert plan.rows[0].tolist() == [*found, 9] and plan.routes == ["route"]


@pytest.mark.parametrize("worst", [2.0, np.inf])
def test_the_loss_is_the_mean_over_examples_and_nan_where_a_gradient_is_infinite(worst):
    class Step:
        def compute(self, rows, data, timestamp):
            rows[0][:] = 2.0 if data.share < 0.5 else worst
            return 10 * data.share

    own = tuple(OnePart(part, BatchData(share=share), [np.arange(2)]) for part, share in enumerate([0.25, 0.5, 0.25]))
    data = PartedBatch(own=own, blocks=blocks_of(range(3), 8))
    said = []
    statistics = SimpleNamespace(
        begin=lambda: said.append("begin"), computed=lambda *part: said.append(part), fold=lambda: said.append("fold")
    )
    step = PartedStep(Step(), said.append, statistics)
    loss = step.compute([np.ones((2, DIMENSION), np.float32)], data, 0)
    assert loss == 3.75 if np.isfinite(worst) else np.isnan(loss)
    assert said == [[0, 1, 2], "begin", (0, True), (1, True), (2, True), "fold"]
