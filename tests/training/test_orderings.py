"""Runs in a partition ordering: the same promises as shuffled ones."""

import os
from functools import cache

import numpy as np
import pytest

from marius_oac import resume, train
from marius_oac.data.batches.orderings import beta_swaps
from marius_oac.errors import ConfigError, InputError
from marius_oac.runs.session import Session
from marius_oac.tasks.link_prediction.memory import plan_memory
from marius_oac.tasks.link_prediction.task import BUCKETS, GraphTask
from tests.graphs import EDGES, jitter, run_batches, tiny_config, workers
from tests.run_folders import contents, each_with_one_of, flip_a_byte, outcome, stop_at, story
from tests.training.test_same_bits import THREADS

BATCHES = 35  # more than an epoch
ORDERINGS = {
    "beta": ["training.ordering={kind: beta, partitions: 7, buffer: 3}"],
    "comet": ["training.ordering={kind: comet, partitions: 12, buffer: 4}", "training.negatives.degree_fraction=0.5"],
    "reciprocal": ["training.ordering={kind: comet, partitions: 6, buffer: 3, logical: 6}", "model.reciprocal=true"],
}


class Crash(Exception):
    pass


def ordered(graph, name, *overrides):
    return tiny_config(graph, "training.epochs=4", *ORDERINGS[name], *overrides)


@pytest.fixture(scope="module")
def synchronous(graph):
    """`synchronous(name)`: the outcome of `sync` in an ordering, computed once."""
    return cache(lambda name: run_batches(ordered(graph, name, "pipeline.mode=sync"), graph, BATCHES))


@pytest.mark.parametrize("name", ORDERINGS)
def test_oac_has_the_bits_of_sync_and_async_has_not(graph, synchronous, name):
    expected = synchronous(name)
    assert expected.bits != run_batches(tiny_config(graph), graph, BATCHES).bits
    for in_flight, count in THREADS:
        config = ordered(graph, name, f"pipeline.in_flight={in_flight}", *workers(count))
        found = run_batches(config, graph, BATCHES, jitter(100 * in_flight + count))
        assert found.bits == expected.bits, f"{in_flight} batches in flight, {count} workers per stage"
        assert np.array_equal(found.order, np.arange(BATCHES)) and (found.replaced > 0) == (in_flight > 1)
    stale = run_batches(ordered(graph, name, "pipeline.mode=async", "pipeline.in_flight=8"), graph, BATCHES, jitter(1))
    assert stale.bits[0] != expected.bits[0] and stale.lost > 0


def test_a_recorded_order_is_replayed(graph, tmp_path):
    arrival = ["pipeline.order=arrival", "pipeline.in_flight=4", *workers(2)]
    first = train(ordered(graph, "comet", *arrival), tmp_path / "run", probe=jitter(3))
    replay = ordered(graph, "comet", "pipeline.mode=sync", f"pipeline.order={tmp_path / 'run' / 'order.npy'}")
    again = train(replay, tmp_path / "again")
    for key in ("tables.entities.sha256", "tables.dense.sha256", "training.batches"):
        assert again.summary[key] == first.summary[key]
    with pytest.raises(InputError, match="batches are recorded, .* are to be trained"):
        train(replay.replace("training.epochs=5"), tmp_path / "more")
    assert not (tmp_path / "more").exists()


@pytest.fixture(scope="module")
def whole(graph, tmp_path_factory):
    """`whole(name)`: the config of an ordering, and a run that nothing happened to."""

    @cache
    def run(name):
        config = ordered(graph, name, "metrics.every_batches=8", "checkpoint.every_batches=10")
        return config, train(config, tmp_path_factory.mktemp("whole") / "run").path

    return run


MOMENTS = [("compute", 33), ("read", 0), ("write", 57), ("plan", 90)]


@pytest.mark.parametrize("name, at", each_with_one_of(ORDERINGS, MOMENTS))
def test_a_resumed_run_tells_the_story_of_one_that_never_stopped(whole, tmp_path, name, at):
    config, expected = whole(name)
    path = tmp_path / "run"
    with pytest.raises(Crash):
        train(config, path, probe=stop_at(*at, Crash()))
    inode = os.stat(path / BUCKETS / "edges.npy").st_ino
    resume(path)
    assert os.stat(path / BUCKETS / "edges.npy").st_ino == inode
    assert story(path) == story(expected) and outcome(path) == outcome(expected)
    assert sorted(contents(path)) == sorted(contents(expected))


def test_more_epochs_end_as_if_they_had_been_asked_for_at_once(graph, tmp_path):
    config = ordered(graph, "comet")
    whole = train(config, tmp_path / "whole")
    train(config.replace("training.epochs=2"), tmp_path / "run")
    resume(tmp_path / "run", ["training.epochs=4"])
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")
    ends = GraphTask(config, graph).schedule.ends
    lines = [line for line in story(tmp_path / "whole") if line["kind"] == "epoch"]
    assert [line["batch"] + 1 for line in lines] == list(ends) and whole.summary["training.batches"] == ends[-1]


def test_what_a_kill_left_of_the_sorting_goes(graph, tmp_path):
    config = ordered(graph, "comet")
    train(config, tmp_path / "whole")
    with pytest.raises(Crash):
        train(config, tmp_path / "run", probe=stop_at("compute", 0, Crash()))
    (tmp_path / "run" / BUCKETS).rename(tmp_path / "run" / f".{BUCKETS}.unfinished")
    resume(tmp_path / "run")
    assert sorted(contents(tmp_path / "run")) == sorted(contents(tmp_path / "whole"))
    assert story(tmp_path / "run") == story(tmp_path / "whole")
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")


def test_sorted_edges_that_are_damaged_are_made_again(graph, tmp_path, capsys):
    config = ordered(graph, "beta")
    whole = train(config, tmp_path / "whole")
    with pytest.raises(Crash):
        train(config, tmp_path / "run", probe=stop_at("compute", 40, Crash()))
    flip_a_byte(tmp_path / "run" / BUCKETS / "edges.npy")
    run = resume(tmp_path / "run")
    assert "edges.npy is damaged; the edges are sorted again" in capsys.readouterr().err
    assert run.summary["tables.entities.sha256"] == whole.summary["tables.entities.sha256"]


def test_the_summary_says_what_the_ordering_should_move(graph, tmp_path):
    config = ordered(graph, "beta", "training.epochs=1")
    summary = train(config, tmp_path / "run").summary
    with Session(GraphTask(config, graph)) as session:
        row_bytes = session.stores[0].layout.row_bytes
    swaps = beta_swaps(7, 3)
    assert (summary["ordering.swaps_per_epoch"], summary["ordering.loads_per_epoch"]) == (swaps, swaps + 3)
    assert summary["ordering.bytes_read_per_epoch"] == graph.num_nodes * row_bytes * (swaps + 3) // 7
    assert not any(key.startswith("ordering") for key in GraphTask(tiny_config(graph), graph).summary())


def test_another_ordering_is_another_run(graph, tmp_path):
    with pytest.raises(Crash):
        train(ordered(graph, "beta"), tmp_path / "run", probe=stop_at("compute", 3, Crash()))
    with pytest.raises(ConfigError, match="training.ordering.buffer: the run was trained with 3"):
        resume(tmp_path / "run", ["training.ordering.buffer=4"])


def test_more_partitions_than_nodes_leave_nothing(graph, tmp_path):
    config = tiny_config(graph, f"training.ordering={{kind: beta, partitions: {graph.num_nodes + 1}, buffer: 3}}")
    with pytest.raises(InputError, match="training.ordering.partitions: 200 partitions of 199 nodes"):
        train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_memory_plan_knows_buffer_and_sorted_edges(graph, tmp_path):
    plain = tiny_config(graph, "training.batch_size=400", "training.negatives.count=100")
    config = plain.replace("training.ordering={kind: beta, partitions: 20, buffer: 2}")
    needs = {(need.what, need.place): need.num_bytes for need in plan_memory(config, graph, tmp_path).needs}
    before = {(need.what, need.place): need.num_bytes for need in plan_memory(plain, graph, tmp_path).needs}
    train_bytes = graph.edges("train").nbytes
    assert len(graph.edges("train")) == 0.8 * EDGES
    assert needs["sorted edges", "disk"] == train_bytes
    assert needs["edges", "host"] == before["edges", "host"] + train_bytes
    assert needs["batches", "host"] < before["batches", "host"]
