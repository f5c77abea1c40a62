"""What a run believes of its own files: nothing that has changed since it wrote them, but for what users may edit."""

import itertools
import os
import shutil
from contextlib import suppress

import numpy as np
import pytest

from marius_oac import resume, train
from marius_oac.data.logs.run_log import RunLog
from marius_oac.errors import CheckpointError
from marius_oac.runs.folder.about import About
from marius_oac.runs.folder.folder import RunFolder
from tests.click_logs import ctr_config, small_log
from tests.graphs import tiny_config
from tests.run_folders import contents, edit, outcome, says, stop_at, story


class Crash(Exception):
    pass


def crash(config, path, *at):
    with pytest.raises(Crash):
        train(config, path, probe=stop_at(*at, Crash()))


@pytest.fixture(scope="module")
def clicks(tmp_path_factory):
    """A finished run on two files of clicks; not to be changed."""
    folder = tmp_path_factory.mktemp("clicks")
    files = [small_log(folder / f"day_{n}.parquet", rows=120, seed=n) for n in range(2)]
    train(ctr_config(files, network="lr"), folder / "run")
    return folder / "run"


def copy(run, tmp_path):
    return shutil.copytree(run, tmp_path / "copy")


@pytest.mark.parametrize("read, name", [(RunLog.read, "log.json"), (About.read, "run.json")])
def test_no_byte_of_what_a_run_is_changes_unseen(clicks, tmp_path, read, name):
    folder = tmp_path / "run"
    folder.mkdir()
    whole = (clicks / name).read_bytes()
    (folder / name).write_bytes(whole)
    assert read(folder) == read(clicks)
    believed = []
    digits = (place for place, byte in enumerate(whole) if byte in b"0123456789")
    for place in sorted({*itertools.islice(digits, 200), *range(0, len(whole), 17)}):
        (folder / name).write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with suppress(CheckpointError):
            believed.append((place, read(folder)))
    assert believed == []
    for broken in (b"", b"{}", b"[]", whole[:-1], whole + b"\n", b"[" * 100_000):
        (folder / name).write_bytes(broken)
        with pytest.raises(CheckpointError, match=f"{name}: is damaged"):
            read(folder)


def test_a_flipped_digit_of_the_log_stops_every_command(clicks, tmp_path, command):
    run = copy(clicks, tmp_path)
    edit(run / "log.json", '"rows": 120,\n   "fingerprint": "' + RunLog.read(run).files[1].fingerprint,
         '"rows": 119,\n   "fingerprint": "' + RunLog.read(run).files[1].fingerprint)  # fmt: skip
    before = contents(run)
    for words in (["resume", run, "--set", "training.epochs=3"], ["eval", run, "--data", "x"]):
        code, _, err = command(*words)
        assert code == 2 and says(err, "log.json: is damaged")
    assert {**contents(run), ".lock": ""} == {**before, ".lock": ""}


@pytest.mark.parametrize("old, new, key, was", [
    ("decoder: complex", "decoder: distmult", "model.decoder", "'complex'"),
    ("seed: 0", "seed: 1", "seed", "0"),
    ("  learning_rate: 0.1", "  learning_rate: 0.2", "training.optimizer.learning_rate", "0.1"),
    ("batch_size: 32", "batch_size: 33", "training.batch_size", "32"),
    ("encoder: null", "encoder: {layers: [{kind: sage}]}", "encoder", "null"),
])  # fmt: skip
def test_an_edited_key_that_decides_bits_is_refused_by_name(finished, tmp_path, command, old, new, key, was):
    run = copy(finished, tmp_path)
    lines = (run / "config.yaml").read_text().splitlines()
    number = 1 + next(n for n, line in enumerate(lines) if line.endswith(old.strip()))
    edit(run / "config.yaml", f"{old}\n", f"{new}\n")
    before = contents(run)
    for words in (["resume"], ["resume", "--set", "training.epochs=3"], ["eval"], ["export"], ["compare", finished],
                  ["predict", "--head", "1", "--relation", "1"]):  # fmt: skip
        code, out, err = command(words[0], run, *words[1:])
        place = f"{run}/config.yaml:{number}: {key}: "
        assert (code, out) == (2, []) and says(err, place, f"the run was trained with {was}: write that back")
    assert contents(run) == before


def test_keys_that_decide_nothing_may_be_edited(finished, tmp_path, command):
    run = copy(finished, tmp_path)
    edit(run / "config.yaml", "threads: 1", "threads: 2")
    edit(run / "config.yaml", "epochs: 2", "epochs: 3")
    edit(run / "config.yaml", "keep: 2", "keep: 5  # all of them")
    assert command("eval", run)[0] == 0
    assert command("resume", run)[0] == 0
    config = RunFolder.open(run).config
    assert (config.threads, config.training.epochs, config.checkpoint.keep) == (2, 3, 5)
    assert RunFolder.open(run).summary()["training.epochs"] == 3


def test_an_edited_summary_is_not_believed(finished, tmp_path, command):
    run = copy(finished, tmp_path)
    edit(run / "summary.json", '"training.batches": 50', '"training.batches": 51')
    for verb in ("eval", "resume", "compare"):
        code, _, err = command(verb, run, *([finished] if verb == "compare" else []))
        assert code == 2 and says(err, "summary.json: is damaged")


def test_a_recorded_order_that_was_changed_is_not_gone_on_with(graph, tmp_path):
    config = tiny_config(graph, "pipeline.order=arrival", "checkpoint.every_batches=10")
    crash(config, tmp_path / "run", "compute", 37)
    path = tmp_path / "run" / "order.npy"
    order = np.load(path)
    order[[3, 4]] = order[[4, 3]]
    np.save(path, order)
    before = contents(tmp_path / "run")
    with pytest.raises(CheckpointError, match=r"order.npy: is damaged: it is not the order that was recorded"):
        resume(tmp_path / "run")
    assert contents(tmp_path / "run") == before


def test_an_order_that_is_followed_must_stay_what_it_was(graph, tmp_path):
    path = tmp_path / "order.npy"
    np.save(path, np.arange(50))
    config = tiny_config(graph, "pipeline.mode=sync", f"pipeline.order={path}", "checkpoint.every_batches=10")
    crash(config, tmp_path / "run", "compute", 37)
    other = np.arange(50)
    other[[45, 46]] = other[[46, 45]]
    np.save(path, other)
    with pytest.raises(CheckpointError, match=r"order.npy: this is another order than the run was trained on"):
        resume(tmp_path / "run")
    np.save(path, np.arange(50))
    assert resume(tmp_path / "run").summary["training.batches"] == 50


@pytest.mark.parametrize("damage", ["torn", "lost"])
def test_a_damaged_line_of_metrics_does_not_keep_a_run_from_going_on(graph, tmp_path, capsys, damage):
    config = tiny_config(graph, "checkpoint.every_batches=10", "metrics.every_batches=5")
    train(config, tmp_path / "whole")
    run, metrics = tmp_path / "run", tmp_path / "run" / "metrics.jsonl"
    crash(config, run, "compute", 45)
    lines = metrics.read_text().splitlines(keepends=True)
    metrics.write_text("".join([*lines[:2], lines[2][:40] + "\n" if damage == "torn" else "", *lines[3:]]))
    capsys.readouterr()
    resume(run)
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("note: ")]
    changed = f"note: {metrics}: is not what it was at this checkpoint: lines are missing, or have been changed"
    assert said == [f"note: {metrics}:3: is damaged; this line is left out"] * (damage == "torn") + [changed]
    told = story(tmp_path / "whole")
    assert story(run) == told[:2] + told[3:] and outcome(run) == outcome(tmp_path / "whole")


def test_the_disk_has_the_lines_before_the_checkpoint_has_its_name(graph, tmp_path, monkeypatch):
    flushed, named, real_sync, real_rename = [0], [], os.fsync, os.rename
    metrics = tmp_path / "run" / "metrics.jsonl"

    def fsync(descriptor):
        real_sync(descriptor)
        if os.readlink(f"/proc/self/fd/{descriptor}") == str(metrics):
            flushed.append(metrics.stat().st_size)

    def rename(old, new):
        if os.path.basename(new).isdigit():
            named.append((os.path.basename(new), flushed[-1] == metrics.stat().st_size > 0))
        real_rename(old, new)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "rename", rename)
    train(tiny_config(graph, "checkpoint.every_batches=10", "metrics.every_batches=5"), tmp_path / "run")
    assert named == [(f"{number:010d}", True) for number in (10, 20, 25, 30, 40, 50)]
