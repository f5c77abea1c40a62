"""Training, stopping and going on: one story, the same bits."""

import builtins
import errno
import functools
import json
import os
import shutil

import numpy as np
import pytest

from marius_oac import Callbacks, Config, TrainedModel, open_run, resume, train
from marius_oac.errors import CheckpointError, ConfigError, DivergedError, InputError, MariusOacError
from marius_oac.evaluation.evaluator import Evaluator
from marius_oac.runs.checkpoints.retention import Checkpoints
from marius_oac.runs.folder.folder import RunFolder
from marius_oac.runs.session import Session
from tests.graphs import tiny_config
from tests.pipeline.toy import STAGES
from tests.run_folders import contents, each_with_one_of, flip_a_byte, outcome, stop_at, story

PER_EPOCH = 25
SETTINGS = {
    "plain": [],
    "decay": ["training.optimizer.decay=0.5", "training.optimizer.kind=adam"],
    "sgd": ["training.optimizer.kind=sgd", "checkpoint.every_batches=10"],
    "drawn candidates": ["evaluation.candidates=50", "evaluation.degree_fraction=0.5", "evaluation.max_edges=20"],
    "bfloat16": ["storage.dtype=bfloat16", "checkpoint.every_batches=7"],
    "early stopping": ["training.early_stopping.patience=2", "training.early_stopping.min_delta=0.01"],
}


class Crash(Exception):
    pass


def crash(config, path, *at):
    with pytest.raises(Crash):
        train(config, path, probe=stop_at(*at, Crash()))


@pytest.fixture(scope="module")
def whole(graph, tmp_path_factory):
    """`whole(setting)`: its config, and a run that nothing happened to."""

    @functools.cache
    def run(setting):
        config = tiny_config(graph, "training.epochs=4", "metrics.every_batches=8", *SETTINGS[setting])
        return config, train(config, tmp_path_factory.mktemp("whole") / "run")

    return run


@pytest.mark.parametrize("setting, at", each_with_one_of(SETTINGS, [("compute", 33), ("write", 57), ("plan", 75)]))
def test_a_resumed_run_tells_the_story_of_one_that_never_stopped(whole, tmp_path, setting, at):
    config, expected = whole(setting)
    assert expected.summary == open_run(expected.path).summary
    path = tmp_path / "run"
    crash(config, path, *at)
    resume(path)
    assert story(path) == story(expected.path)
    assert outcome(path) == outcome(expected.path)
    assert sorted(contents(path)) == sorted(contents(expected.path))


def test_crash_while_evaluating_tells_every_evaluation_once(graph, tmp_path, monkeypatch):
    config = tiny_config(graph, "training.epochs=3", "training.early_stopping.patience=3")
    train(config, tmp_path / "whole")
    real, calls = Session.evaluate, []

    def crashing(self, split, whole=True):
        metrics = real(self, split, whole)
        calls.append(split)
        if len(calls) == 2:
            raise Crash
        return metrics

    with monkeypatch.context() as patch, pytest.raises(Crash):
        patch.setattr(Session, "evaluate", crashing)
        train(config, tmp_path / "run")
    resume(tmp_path / "run")
    assert story(tmp_path / "run") == story(tmp_path / "whole")
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")


def test_more_epochs_end_as_if_they_had_been_asked_for_at_once(graph, tmp_path):
    config = tiny_config(graph, "evaluation.every=2", "training.optimizer.decay=0.5")
    train(config.replace("training.epochs=5"), tmp_path / "whole")
    train(config.replace("training.epochs=3"), tmp_path / "run")
    resume(tmp_path / "run", ["training.epochs=5"])
    assert story(tmp_path / "run") == story(tmp_path / "whole")
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")
    assert RunFolder.open(tmp_path / "run").config.training.epochs == 5


@pytest.mark.parametrize("name", ["best", "0000000050"])
def test_going_on_from_an_older_checkpoint(graph, tmp_path, name):
    config = tiny_config(graph, "training.epochs=4", "checkpoint.keep=9")
    train(config, tmp_path / "run")
    before, checkpoints = outcome(tmp_path / "run"), Checkpoints(tmp_path / "run" / "checkpoints")
    checkpoints.mark_best("0000000050")  # as if that had been so, whatever the numbers say
    seen = []

    def watch(stage, batch_index):
        if stage == "compute":
            seen.append(batch_index)
            assert checkpoints.names()[-1] < f"{batch_index + 1:010d}"  # the later ones have gone

    lines = story(tmp_path / "run")
    resume(tmp_path / "run", checkpoint=name, probe=watch)
    assert seen[0] == 50 and len(seen) == 2 * PER_EPOCH
    assert story(tmp_path / "run") == lines and outcome(tmp_path / "run") == before


def evaluating(patch, values):
    """From now on validation finds these numbers, one after the other."""
    values, real = iter(values), Evaluator.evaluate

    def told(self, scorer, split, *others):
        metrics = real(self, scorer, split, *others)
        return metrics | ({"filtered.mrr": next(values)} if split == "valid" else {})

    patch.setattr(Evaluator, "evaluate", told)


def test_the_best_checkpoint_is_forgotten_where_it_has_gone(graph, tmp_path, monkeypatch):
    config = tiny_config(graph, "training.epochs=4", "checkpoint.keep=3")
    evaluating(monkeypatch, [0.5, 0.4, 0.6, 0.3])
    train(config, tmp_path / "run")
    checkpoints = Checkpoints(tmp_path / "run" / "checkpoints")
    assert checkpoints.names() == ["0000000050", "0000000075", "0000000100"] and checkpoints.best() == "0000000075"
    monkeypatch.undo()
    evaluating(monkeypatch, [0.4, 0.3, 0.2])
    run = resume(tmp_path / "run", checkpoint="0000000050")  # whose best was 0.5, at 25
    assert checkpoints.best() == "0000000050" and run.summary["valid.filtered.mrr"] == 0.4


def test_early_stopping_stops_and_leaves_the_best(graph, tmp_path, monkeypatch):
    evaluating(monkeypatch, [0.1, 0.5, 0.4, 0.3, 0.2, 0.1])
    config = tiny_config(graph, "training.epochs=9", "training.early_stopping.patience=2", "checkpoint.keep=1")
    run = train(config, tmp_path / "run")
    monkeypatch.undo()
    assert run.summary["training.stopped_early"] and run.summary["training.epochs"] == 4
    assert (run.summary["training.best_epoch"], run.summary["checkpoint"]) == (2, "0000000050")
    assert run.summary["valid.filtered.mrr"] == 0.5
    two = train(config.replace("training.epochs=2", "training.early_stopping=null"), tmp_path / "two")
    for key in ("tables.entities.sha256", "tables.dense.sha256", "test.filtered.mrr"):
        assert run.summary[key] == two.summary[key]
    assert not two.summary["training.stopped_early"]
    assert TrainedModel.open(tmp_path / "run").checkpoint.name == "0000000050"
    before = contents(tmp_path / "run")
    resume(tmp_path / "run")
    assert contents(tmp_path / "run") == before
    resume(tmp_path / "run", ["training.early_stopping=null", "training.epochs=5"])
    assert open_run(tmp_path / "run").summary["training.epochs"] == 5


@pytest.mark.parametrize("min_delta, values", [(0.0, [0.4, 0.5, 0.5, 0.5]), (0.25, [0.25, 0.5, 0.5, 0.5])])
def test_an_equal_score_is_no_better(graph, tmp_path, monkeypatch, min_delta, values):
    """Nor is one that is better by `min_delta` and no more; the numbers of the second case are exact."""
    evaluating(monkeypatch, [*values, 0.9])
    stopping = f"training.early_stopping={{patience: 2, min_delta: {min_delta}}}"
    run = train(tiny_config(graph, "training.epochs=9", stopping), tmp_path / "run")
    best = 2 if min_delta == 0 else 1
    assert run.summary["training.best_epoch"] == best and run.summary["training.epochs"] == best + 2
    assert run.summary["valid.filtered.mrr"] == values[best - 1]


def test_a_finished_run_is_left_as_it_is(finished, capsys):
    before = contents(finished)
    capsys.readouterr()
    for overrides in ([], ["training.epochs=1"], ["threads=2"]):
        run = resume(finished, overrides)
        assert run.summary == open_run(finished).summary and run.summary
        assert capsys.readouterr().err == f"{finished}: has ended after 2 epochs; for more: --set training.epochs=N\n"
        assert contents(finished) == before


def test_the_order_of_arrival_survives_a_resume(graph, tmp_path):
    config = tiny_config(graph, "pipeline.order=arrival", "pipeline.in_flight=4", "checkpoint.every_batches=10",
                         "pipeline.workers.read=3")  # fmt: skip
    crash(config, tmp_path / "run", "compute", 37)
    folder = RunFolder.open(tmp_path / "run")
    assert len(folder.order.read()) >= 30
    kept = folder.order.read()[:30]
    resume(tmp_path / "run")
    order = folder.order.read()
    assert np.array_equal(order[:30], kept) and np.array_equal(np.sort(order), np.arange(50))
    for end in (10, 20, 25, 30, 40):
        assert sorted(order[:end]) == list(range(end))
    replayed = train(
        config.replace(f"pipeline.order={tmp_path}/run/order.npy", "pipeline.mode=sync"), tmp_path / "replay"
    )
    assert replayed.summary["tables.entities.sha256"] == open_run(tmp_path / "run").summary["tables.entities.sha256"]


@pytest.mark.parametrize("damage", ["torn", "short"])
def test_an_order_that_is_damaged_is_not_gone_on_with(graph, tmp_path, damage):
    crash(tiny_config(graph, "pipeline.order=arrival", "checkpoint.every_batches=10"), tmp_path / "run", "compute", 37)
    path = tmp_path / "run" / "order.npy"
    if damage == "torn":
        path.write_bytes(path.read_bytes()[:100])
    else:
        np.save(path, np.arange(3))
    with pytest.raises(
        CheckpointError, match=r"order.npy: (is in Fortran order, or|is damaged|holds 3 batches, 30 are expected)"
    ):
        resume(tmp_path / "run")


def test_a_recorded_order_must_be_long_enough(graph, tmp_path):
    np.save(tmp_path / "order.npy", np.arange(30))
    config = tiny_config(graph, f"pipeline.order={tmp_path}/order.npy")
    with pytest.raises(InputError, match="30 batches are recorded, 50 are to be trained"):
        train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("every", [0, 1])
def test_a_loss_that_is_none_stops_the_run_and_keeps_the_last_good_checkpoint(graph, tmp_path, every):
    config = tiny_config(graph, "training.optimizer.learning_rate=1e30", f"checkpoint.every_batches={every}",
                         "training.optimizer.kind=sgd")  # fmt: skip
    with pytest.raises(
        DivergedError, match=r"at batch \d+: training stopped, nothing of that batch was kept"
    ) as caught:
        train(config, tmp_path / "run")
    checkpoints = Checkpoints(tmp_path / "run" / "checkpoints")
    assert bool(checkpoints.names()) == bool(caught.value.kept)
    for name in checkpoints.names():
        kept = checkpoints.open(name)
        assert int(name) <= caught.value.batch_index and np.isfinite(kept.array("entities", "values")).all()
    assert caught.value.kept is None or caught.value.kept.name == checkpoints.names()[-1]


@pytest.mark.parametrize("key", ["seed=1", "model.dimension=4", "training.batch_size=16", "pipeline.mode=async"])
def test_a_run_does_not_go_on_with_another_model(finished, key):
    before = contents(finished)
    with pytest.raises(ConfigError, match=rf"{key.partition('=')[0]}: the run was trained with .* can't go on with"):
        resume(finished, [key, "training.epochs=3"])
    assert contents(finished) == before


def test_a_damaged_checkpoint_is_named_and_the_one_before_goes_on_to_the_same_bits(graph, tmp_path):
    config = tiny_config(graph, "checkpoint.every_batches=10")
    train(config, tmp_path / "whole")
    crash(config, tmp_path / "run", "compute", 45)
    flip_a_byte(tmp_path / "run" / "checkpoints" / "0000000040" / "entities.values.npy")
    before = contents(tmp_path / "run")
    with pytest.raises(CheckpointError, match=r"0000000040/entities.values.npy: is damaged.*--checkpoint 0000000030"):
        resume(tmp_path / "run")
    assert contents(tmp_path / "run") == before
    resume(tmp_path / "run", checkpoint="0000000030")
    assert story(tmp_path / "run") == story(tmp_path / "whole")
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")


@pytest.mark.parametrize("file", ["metrics.jsonl", "order.npy", "summary.json", "best.json", "trace.json"])
def test_a_full_disk_is_named_and_the_run_goes_on_later(graph, tmp_path, monkeypatch, file):
    config = tiny_config(graph, "checkpoint.every_batches=10", "pipeline.order=arrival", "pipeline.in_flight=2")
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    real, calls = builtins.open, []

    def opening(path, mode="r", *args, **kwargs):
        opened = real(path, mode, *args, **kwargs)
        if file in str(path) and set(mode) & set("wax+"):
            calls.append(path)
            if len(calls) >= (3 if file in ("metrics.jsonl", "order.npy") else 1):
                opened.close()
                raise full
        return opened

    with monkeypatch.context() as patch, pytest.raises(InputError, match=rf"{file}: can't be written: No space left"):
        patch.setattr(builtins, "open", opening)
        train(config, tmp_path / "run", trace=True)
    run = tmp_path / "run"
    assert not [path for path in run.rglob("*") if "unfinished" in path.name]
    checkpoints = Checkpoints(run / "checkpoints")
    for name in checkpoints.names():
        checkpoints.open(name)
    resume(run)
    assert open_run(run).summary["training.epochs"] == 2 and len(RunFolder.open(run).order.read()) == 50


def test_a_trace_is_valid_json_also_after_an_error(graph, tmp_path):
    config = tiny_config(graph, "pipeline.workers.read=2")
    train(config, tmp_path / "run", trace=True)
    with pytest.raises(Crash):
        train(config, tmp_path / "failed", trace=True, probe=stop_at("compute", 20, Crash()))
    for name, batches in (("run", 50), ("failed", 20)):
        events = json.loads((tmp_path / name / "trace.json").read_text())["traceEvents"]
        tracks = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
        assert {"plan-0", "read-0", "read-1", "compute-0", "write-0"} <= set(tracks.values())
        assert len(set(tracks.values())) == len(tracks)
        slices = [event for event in events if event["ph"] == "X"]
        assert {tracks[event["tid"]].partition("-")[0] for event in slices if event["name"] == "read"} == {"read"}
        computed = [event["args"]["batch"] for event in slices if event["name"] == "compute"]
        assert computed == list(range(batches)) and all(event["dur"] >= 0 for event in slices)


def test_the_summary_and_the_metrics_hold_what_they_promise(finished):
    summary = open_run(finished).summary
    assert {"test.filtered.mrr", "test.filtered.mean_rank", "test.filtered.hits@1", "test.filtered.hits@10",
            "valid.filtered.mrr", "training.seconds", "training.examples_per_second", "training.lost_updates",
            "memory.peak_rss_bytes", "tables.entities.sha256", "tables.dense.sha256"} <= set(summary)  # fmt: skip
    lines = RunFolder.open(finished).metrics.lines()
    assert [line["kind"] for line in lines] == ["interval", "epoch", "evaluation"] * 2
    for line in lines:
        if line["kind"] != "evaluation":
            assert {"epoch", "batch", "loss", "examples_per_second", "lost_updates", "refused_rows", "replaced_rows",
                    "cache_rows", "channel_fill", "stage_seconds", "seconds"} <= set(line)  # fmt: skip
            assert set(line["stage_seconds"]) == set(STAGES)
            assert all(0 <= fill <= 6 for fill in line["channel_fill"].values())
    assert RunFolder.open(finished).config == Config.load(finished / "config.yaml")


def test_an_epoch_is_summed_over_its_checkpoints(graph, tmp_path):
    config = tiny_config(graph)
    for name, every in (("whole", 0), ("parts", 7)):
        train(config.replace(f"checkpoint.every_batches={every}"), tmp_path / name)
    whole, parts = (
        [line for line in RunFolder.open(tmp_path / name).metrics.lines() if line["kind"] == "epoch"]
        for name in ("whole", "parts")
    )
    for ours, theirs in zip(whole, parts, strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-12)
        assert ours["stage_seconds"].keys() == theirs["stage_seconds"].keys()
    losses = [line["loss"] for line in RunFolder.open(tmp_path / "parts").metrics.lines() if line["kind"] == "interval"]
    assert min(losses) < whole[0]["loss"] < max(losses)


def test_what_does_not_fit_the_graph_is_refused_before_anything_is_written(graph, tmp_path):
    for key, message in [
        ("evaluation.candidates=200", r"evaluation.candidates: 200 candidates, but the graph has 199 nodes"),
        ("device=cuda:7", r"device: there is no cuda:7"),
        (f"pipeline.order={tmp_path}/none.npy", r"none.npy: order 'plan', 'arrival' or a recorded order.npy is needed"),
    ]:
        with pytest.raises(InputError, match=message):
            train(tiny_config(graph, key), tmp_path / "run")
    assert list(tmp_path.iterdir()) == []
    train(
        tiny_config(graph, "evaluation.candidates=199", "training.epochs=1", "training.negatives.count=500"),
        tmp_path / "run",
    )  # fmt: skip - negatives are drawn with replacement: more than nodes do no harm


def test_embeddings_that_overflow_are_an_error_of_one_line_when_ranked(graph, tmp_path, monkeypatch):
    train(tiny_config(graph, "training.epochs=1"), tmp_path / "run")
    model = TrainedModel.open(tmp_path / "run")
    model.scorer.relations[:] = float("nan")
    with pytest.raises(MariusOacError, match="a score is NaN"):
        model.evaluate()


def test_a_run_is_not_resumed_for_fewer_epochs_than_it_has(finished, command, tmp_path):
    path = tmp_path / "run"
    shutil.copytree(finished, path)
    (path / "summary.json").unlink()
    before = sorted(file.name for file in path.rglob("*"))
    code, _, said = command("resume", path, "--set", "training.epochs=1")
    assert code == 2
    assert said[-1].startswith("marius-oac: training.epochs: 1 epochs are less than this run has trained already")
    assert sorted(file.name for file in path.rglob("*") if file.name != ".lock") == [n for n in before if n != ".lock"]


@pytest.mark.parametrize("content", [b"", "archive"], ids=["empty", "an archive"])
def test_a_file_that_is_no_order_is_named(graph, tmp_path, content):
    path = tmp_path / "order.npy"
    if content:
        np.savez(tmp_path / "order.npz", np.arange(3))
        (tmp_path / "order.npz").rename(path)
    else:
        path.write_bytes(content)
    with pytest.raises(InputError, match=r"order.npy: (order 'plan'|is an archive)"):
        train(tiny_config(graph, "pipeline.mode=sync", f"pipeline.order={path}"), tmp_path / "run")


def test_whatever_is_evaluated_has_been_saved(graph, tmp_path):
    """Also where no checkpoint is due; one evaluation is the summary's, after the last batch."""
    keys = ("training.epochs=3", "evaluation.every=2", "evaluation.max_edges=10", "checkpoint.every_epochs=9")
    seen = []
    callbacks = Callbacks(on_evaluation=lambda line: seen.append(names()))

    def names():
        return Checkpoints(tmp_path / "run" / "checkpoints").names()

    train(tiny_config(graph, *keys, "checkpoint.keep=9"), tmp_path / "run", callbacks=callbacks)
    assert seen[0] == ["0000000050"] and names() == ["0000000050", "0000000075"]
