"""Real training in dealt modes, by trainers that are threads of this process."""

from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pytest

from benchmarks.nodes import trainers
from benchmarks.nodes.trainers import train_together
from marius_oac.config.ctr import CtrConfig
from marius_oac.errors import DivergedError, InputError, NodeLost
from marius_oac.models.ctr import step
from marius_oac.nodes.shards.dispatched_shard import DispatchedShard
from marius_oac.runs.session import Session
from tests.click_logs import generated_days
from tests.run_folders import each_with_one_of
from tests.threads import PATIENCE

BATCH, BATCHES = 60, 60
LEFT_OVER = 17  # examples of the last batch
MODES = ("gba", "async", "bsp", "hop-bs", "hop-bw")


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A click log of 60 batches, and a network with dropout; Adagrad's first step is smooth."""
    days = generated_days(tmp_path_factory.mktemp("log"), BATCH * (BATCHES - 1) + LEFT_OVER)
    return days | {
        "model": days["model"] | {"dropout": 0.2},
        "training": {
            "batch_size": BATCH,
            "optimizer": {"learning_rate": 0.05, "initial_accumulator": 0.1},
            "dense_optimizer": {"kind": "adam", "learning_rate": 1e-3, "weight_decay": 1e-3},
            "embedding_l2": 1e-4,
        },
    }


@dataclass
class Outcome:
    """Of each trainer: results of its batches, dense parameters and their state; rows by key; what shards counted;
    where each stretch ended."""

    test: dict = field(default_factory=dict)
    results: list = field(default_factory=list)
    dense: list = field(default_factory=list)
    rows: dict = field(default_factory=dict)
    counts: dict = field(default_factory=dict)
    reached: list = field(default_factory=list)

    def examples(self):
        return sum(result.examples for results in self.results for result in results)


def rows_of(node):
    found = {}
    for keys in node.rows._key_tables:
        arrays = keys.arrays()
        names = arrays["index.keys"], arrays["index.vocabularies"]
        order = np.lexsort(names).astype(np.int64)
        values, timestamps = np.empty((order.size, keys.store.layout.width), np.float32), np.empty(order.size, np.int64)
        rows = np.arange(order.size)
        keys.store.read(rows, values, timestamps)
        found[keys.store.name] = [each[order] for each in (*names, values, timestamps)]
    return found


@pytest.fixture
def train(tree, monkeypatch):
    """`train(trainers, **sections)` -> Outcome, as the training loop does it: it stands still where modes follow."""

    def run(count, probe=None, at_batch=lambda rank, session, result: None, **sections):
        outcome = Outcome(results=[None] * count, dense=[None] * count)

        def trained(node):
            results, first, rank = [], 0, node.group.rank
            with Session(node.task, home=node, probe=partial(probe, rank) if probe else None) as session:

                def report(result):
                    results.append(result)
                    at_batch(rank, session, result)

                session.report_to(report)
                while first < node.task.schedule.last and (not outcome.reached or outcome.reached[-1] is not None):
                    last = min(
                        node.task.schedule.last, session.parts.segments.next_pause(first) or node.task.schedule.last
                    )
                    session.parts.segments.begin(first)
                    reached = session.pipeline.run(first, last)
                    session.parts.segments.end(reached == node.task.schedule.last)
                    node.peers.wait()
                    assert set(node.peers.gather(reached)) == {reached}
                    first = reached
                    if node.peers.leads:
                        outcome.reached.append(reached)
                    if node.peers.any(session.pipeline.stop_requested):
                        break
                outcome.results[rank] = results
                state = session.step.dense_state()
                outcome.dense[rank] = {name: tensor.numpy() for name, tensor in state.items()}
                if node.peers.leads:
                    outcome.rows, outcome.counts = rows_of(node), dict(session.source.counts())
                found = trainers._Outcome(results, session.evaluate("test"), node.dense.metrics())
                node.peers.wait()
            return found

        monkeypatch.setattr(trainers, "_trained", trained)
        monkeypatch.setattr(trainers, "PATIENCE", PATIENCE)
        outcome.test = train_together(CtrConfig.build(tree | sections), count).test
        return outcome

    return run


def apart(one, other):
    """The largest difference between rows by key and dense parameters with their state."""
    found = []
    assert one.rows.keys() == other.rows.keys()
    for name, mine in one.rows.items():
        theirs = other.rows[name]
        assert all(np.array_equal(mine[each], theirs[each]) for each in (0, 1, 3)), "keys and timestamps"
        found.append(np.abs(mine[2] - theirs[2]).max())
    for name, tensor in one.dense[0].items():
        found.append(np.abs(tensor - other.dense[0][name]).max(initial=0))
    return max(found)


def check(outcome, examples=BATCH * (BATCHES - 1) + LEFT_OVER, loss=0.7):
    """What holds in every mode."""
    assert outcome.examples() == examples
    losses = [result.loss for results in outcome.results for result in results]
    assert np.isfinite(losses).all() and np.mean(losses) < loss
    first = outcome.dense[0]
    for each in outcome.dense[1:]:
        assert all(np.array_equal(first[name], tensor) for name, tensor in each.items())


@pytest.mark.parametrize("parts", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_one_trainer_that_has_all_parts_of_every_batch_is_lockstep(train, tree, parts):
    """Masks of dropout, new keys, weights of unequal parts, the rates of rows and network: all as in lockstep."""
    training = tree["training"] | {"epochs": 2}
    training |= {name: training[name] | {"decay": 0.5} for name in ("optimizer", "dense_optimizer")}
    lockstep = train(parts, training=training)
    dispatched = train(1, training=training, nodes={"mode": "gba", "mode_options": {"parts": parts}})
    assert dispatched.reached == [2 * BATCHES]
    assert (
        dispatched.counts["tokens"]
        == dispatched.counts["dense.gradients"]
        == len(dispatched.results[0])
        == parts * 2 * BATCHES
    )
    assert dispatched.counts["dense.staleness_max"] == 0 and dispatched.examples() == lockstep.examples()
    assert apart(lockstep, dispatched) < 1e-5
    assert dispatched.test == pytest.approx(lockstep.test, abs=1e-5)


THREADS = {"mode": "oac", "workers": {"read": 3, "write": 2}}


@pytest.mark.parametrize(
    ("mode", "window", "pipeline"),
    [
        *((mode, 2, THREADS) for mode in ("gba", "hop-bs", "hop-bw")),
        *(pytest.param(mode, 2, THREADS, marks=pytest.mark.slow) for mode in ("async", "bsp")),
        *(pytest.param(mode, 1, {"mode": "sync"}, marks=pytest.mark.slow) for mode in MODES),
        *(pytest.param(mode, 1, {"mode": "oac"}, marks=pytest.mark.slow) for mode in MODES),
    ],
)
def test_every_batch_is_trained_in_every_mode(train, mode, window, pipeline):
    modes = {"window": window, "parts": 3, "gradients": 5, "ahead": 1}
    outcome = train(2, pipeline=pipeline, nodes={"mode": mode, "mode_options": modes})
    check(outcome)
    assert outcome.reached == [BATCHES] and outcome.counts["tokens"] == 3 * BATCHES
    (rows,) = outcome.rows.values()
    assert rows[3].max() == BATCHES - 1 if mode == "gba" else rows[3].max() < BATCHES
    assert outcome.counts["dense.gradients"] + outcome.counts["dense.dropped"] >= 3 * BATCHES


def test_modes_follow_each_other_at_global_batches(train, tree):
    """gba, sync, gba with one trainer that has both parts: where it switches changes nothing."""
    switch = [{"at": 20, "mode": "sync"}, {"at": 37, "mode": "gba"}, {"at": 52, "mode": "async"}]
    outcome = train(2, nodes={"mode": "gba", "switch": switch, "mode_options": {"parts": 3}})
    check(outcome)
    assert outcome.reached == [20, 37, 52, BATCHES]
    assert outcome.counts["tokens"] == 3 * (20 + 15 + 8)
    mixed = train(1, nodes={"mode": "gba", "switch": switch[:2], "mode_options": {"parts": 1}})
    whole = train(1)
    assert mixed.reached == [20, 37, BATCHES] and apart(mixed, whole) < 1e-5


@pytest.mark.parametrize(
    ("stage", "of"),
    each_with_one_of(["settle", "read", "validate", "compute", "write"], [("hop-bw", 0), ("hop-bs", 1)]),
)
def test_an_error_of_a_trainer_ends_all_whatever_they_wait_for(train, stage, of):
    """Tokens, rows, acknowledgements, the end: nobody waits for ever for one who is gone."""
    mode, rank = of
    seen = []

    def probe(who, where, batch_index):
        seen.append(who)
        if (who, where) == (rank, stage) and batch_index >= 7:
            raise ZeroDivisionError("a defect")

    with pytest.raises(ZeroDivisionError, match="a defect"):
        train(3, probe=probe, nodes={"mode": mode, "mode_options": {"ahead": 0, "backups": 0}})
    assert set(seen) == {0, 1, 2}


@pytest.mark.parametrize("where", ["_pull", "_push", "flush"])
def test_an_error_of_a_shard_ends_all(train, where, monkeypatch):
    real, calls = getattr(DispatchedShard, where), []

    def failing(self, *about):
        calls.append(1)
        if len(calls) == (1 if where == "flush" else 20):
            raise ZeroDivisionError("a defect")
        return real(self, *about)

    monkeypatch.setattr(DispatchedShard, where, failing)
    with pytest.raises((ZeroDivisionError, NodeLost), match="a defect"):
        train(2, nodes={"mode": "gba"})


def test_a_table_that_is_full_ends_all_in_a_line(train):
    with pytest.raises(InputError, match="keys.capacity"):
        train(2, nodes={"mode": "gba"}, keys={"capacity": 500})


@pytest.mark.parametrize("mode", ["gba", "hop-bw", "hop-bs"])
def test_who_wants_to_stop_stops_all_at_one_global_batch(train, mode):
    """The second trainer alone is asked, and must say so where it waits for others, too."""

    def at_batch(rank, session, result):
        if rank == 1 and result.batch_index == 10:
            session.pipeline.request_stop()

    outcome = train(3, at_batch=at_batch, nodes={"mode": mode, "mode_options": {"ahead": 0}})
    (reached,) = outcome.reached
    assert 3 < reached < BATCHES
    assert outcome.examples() == reached * BATCH and outcome.counts["tokens"] == 3 * reached
    check(outcome, reached * BATCH, loss=1)


def test_a_loss_that_is_no_number_is_told_with_its_global_batch(train, monkeypatch):
    compute = step.CtrStep.compute

    def diverging(self, rows, data, timestamp):
        loss = compute(self, rows, data, timestamp)
        return float("nan") if data.part == (40, 2) else loss

    monkeypatch.setattr(step.CtrStep, "compute", diverging)
    with pytest.raises(DivergedError) as raised:
        train(1, nodes={"mode": "gba", "mode_options": {"parts": 3}})
    assert raised.value.batch_index in (40, 41, 42)  # as far as batches were dealt: four parts may be in flight
