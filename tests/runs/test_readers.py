"""Who reads a run that is being trained gets a whole checkpoint, whenever it looks, and keeps it as long as it needs.

What reads and what trains take turns here at every single call on files, in both ways, so that no order is left out."""

import builtins
import fcntl
import os
import shutil
import subprocess
import sys
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import numpy as np
import pytest
import torch

from marius_oac import resume, train
from marius_oac.cli import commands as cli
from marius_oac.errors import CheckpointError
from marius_oac.runs.checkpoints.origin import new_token
from marius_oac.runs.checkpoints.parts import PACKING, PLACE, PLACEMENT
from marius_oac.runs.checkpoints.pins import Pin, alone_with
from marius_oac.runs.checkpoints.retention import Checkpoints
from marius_oac.runs.folder.folder import RunFolder
from marius_oac.runs.memory.plan import _below, _taken
from marius_oac.runtime.files.atomic import write_atomically
from marius_oac.storage.placement import Placement
from marius_oac.tasks.link_prediction.trained import TrainedModel
from tests.disk import budget, graph_config
from tests.graphs import tiny_config
from tests.run_folders import contents, says, write_config
from tests.runs.test_checkpoint import table

READING = ((os, "open"), (os, "stat"), (os, "scandir"), (fcntl, "flock"), (builtins, "open"))
SLOW = pytest.mark.slow
WRITING = ((os, "rename"), (os, "replace"), (os, "unlink"), (os, "rmdir"), (os, "mkdir"))


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch):
    """Nobody pulls the plug here."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    monkeypatch.setattr(os, "fdatasync", lambda descriptor: None)


@contextmanager
def before_each(calls, act):
    """Within the block `act()` runs before each of these calls, but not before those that it makes itself."""
    busy = []

    def watched(real):
        def call(*args, **kwargs):
            if not busy:
                busy.append(None)
                try:
                    act()
                finally:
                    busy.clear()
            return real(*args, **kwargs)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for owner, name in calls:
            patch.setattr(owner, name, watched(getattr(owner, name)))
        yield


class Trainer:
    """Saves checkpoints whose dense tensor is their own number, and keeps one."""

    def __init__(self, folder):
        self.folder, self.number = folder, 0

    def save(self):
        self.number += 10
        dense, note = {"number": torch.tensor([self.number])}, self.folder.note_saved
        self.folder.checkpoints.save(
            self.number, [table()], dense, {}, keep=1, written=lambda: note(self.number)
        )  # fmt: skip

    def end(self):
        self.folder.write_summary({"checkpoint": f"{self.number:010d}"})

    def go_on(self):
        self.folder.rewind(self.number)
        self.save()


class NodesTrainer(Trainer):
    """The same on two nodes, which remove nothing before both have saved."""

    def __init__(self, folder):
        super().__init__(folder)
        id, session = folder.about.id, new_token()
        self.parts = [
            Checkpoints(folder.path / "nodes" / "2-ab" / name / "checkpoints", run=id, part=f"2-ab/{name}")
            for name in "ab"
        ]
        for number, part in enumerate(self.parts):
            about = {"session": session, "number": number, "parts": 2}
            part.origin = part.origin.model_copy(update=about)

    def save(self, first=0):
        self.number += 0 if first else 10
        if first < len(self.parts):
            dense, nodes = {"number": torch.tensor([self.number])}, Placement.by_number(2).nodes
            arrays = {PLACEMENT: nodes, PACKING: np.zeros(3), PLACE: np.array([first])}
            written = lambda: self.save(first + 1)  # noqa: E731
            self.parts[first].save(self.number, [table()], dense, {}, 1, arrays, written)

    def go_on(self):
        (self.folder.path / "summary.json").unlink()
        self.save()


def look(path):
    """What a reader does; returns the number of the checkpoint that it has got."""
    checkpoint = RunFolder.open(path).checkpoint()
    checkpoint.verify()
    (number,) = checkpoint.dense()["number"].tolist()
    assert number == checkpoint.batch_index
    return number


@pytest.mark.parametrize("kind, step", [(Trainer, 1), (NodesTrainer, 7), pytest.param(NodesTrainer, 1, marks=SLOW)])
@pytest.mark.parametrize("acts", [["save"] * 3, ["end", "go_on", "end"]], ids=lambda acts: acts[0])
def test_whenever_the_trainer_goes_on_the_reader_gets_a_whole_checkpoint(graph, tmp_path, kind, step, acts):
    for at in count(0, step):
        folder = RunFolder.create(tmp_path / f"{at}", tiny_config(graph), "abc")
        trainer, calls, left = kind(folder), [], list(acts)
        trainer.save()

        def act(at=at, trainer=trainer, calls=calls, left=left):
            calls.append(None)
            if len(calls) > at and left:
                getattr(trainer, left.pop(0))()

        with before_each(READING, act):
            assert 10 <= look(folder.path) <= trainer.number
        if len(left) == len(acts):  # the reader had done before its turn came
            assert at > 30
            break


@pytest.mark.parametrize("rows", ["memory", "disk"])
def test_whenever_a_reader_comes_the_run_offers_a_whole_checkpoint(graph, tmp_path, rows):
    often = ("checkpoint.keep=1", "evaluation.every=0")
    config = {
        "memory": tiny_config(graph, "checkpoint.every_batches=20", *often),
        "disk": graph_config(graph, "checkpoint.every_batches=80", *often, budget(40)),
    }[rows]
    seen, path, failed = [], tmp_path / "run", []

    def come():
        if not (path / "run.json").exists():
            return
        try:
            checkpoint = RunFolder.open(path).checkpoint()
            checkpoint.verify()
            assert np.isfinite(checkpoint.array("entities", "values")[:]).all()
            seen.append(checkpoint.batch_index)
        except CheckpointError as error:
            failed.append(error)
            assert not seen and "there is no checkpoint yet" in str(error)

    with before_each(WRITING, come):
        train(config, path)
        resume(path, ["training.epochs=3"] if rows == "memory" else ["storage.memory=1MiB"])
    assert len(seen) > 15 and len(set(seen)) >= 3 and failed and seen == sorted(seen)


@pytest.mark.parametrize("rows", ["memory", "disk"])
def test_what_is_read_stays_and_goes_when_it_has_been_read(graph, tmp_path, rows):
    run, held = tmp_path / "run", {}
    config = tiny_config(graph) if rows == "memory" else graph_config(graph, budget(40), "training.batch_size=8")
    config = config.replace(
        "checkpoint.keep=1", "training.epochs=1", "evaluation.every=0", "checkpoint.every_batches=10"
    )

    def probe(stage, batch_index):
        if (stage, batch_index) == ("compute", 12):
            held["checkpoint"] = RunFolder.open(run).checkpoint()
            held["rows"] = held["checkpoint"].array("entities", "values")
            held["was"] = np.array(held["rows"][:])

    train(config, run, probe=probe)
    names = Checkpoints(run / "checkpoints").names
    assert len(names()) == 2 and names()[0] == "0000000010" == held["checkpoint"].name
    del held["checkpoint"]
    if rows == "disk":  # an array of them needs their pages, of which the next process must know, too
        resume(run, ["training.epochs=2"])
        assert names()[0] == "0000000010" and np.array_equal(held["rows"][:], held["was"])
    held.clear()
    resume(run, ["training.epochs=3"])
    assert len(names()) == 1


def test_a_run_is_not_taken_back_while_somebody_reads_what_would_go(finished, command, tmp_path):
    run = shutil.copytree(finished, tmp_path / "run")
    reader, before = RunFolder.open(run).checkpoint(), contents(run)
    assert reader.name == "0000000050"
    for argv in (("--checkpoint", "0000000025"), ("--checkpoint", "start")):
        code, _, err = command("resume", run, *argv)
        assert code == 2 and says(err, "0000000050: is being read by another process") and contents(run) == before
    reader.close()
    reader.close()
    assert command("resume", run, "--checkpoint", "0000000025")[0] == 0


def test_a_pin_is_of_the_checkpoint_that_has_the_name(tmp_path):
    manifest = tmp_path / "0000000010" / "manifest.json"
    with pytest.raises(CheckpointError, match="has just been removed"):
        Pin(manifest)
    manifest.parent.mkdir()
    with pytest.raises(CheckpointError, match="is damaged"):
        Pin(manifest)
    with alone_with(manifest) as free:
        assert free
    manifest.write_text("")
    first, second = Pin(manifest), Pin(manifest)
    for pin in (first, second):
        with alone_with(manifest) as free:
            assert not free
        pin.close()
    with alone_with(manifest) as free:
        assert free
    kept = Pin(manifest)
    del kept
    with alone_with(manifest) as free:
        assert free


def test_where_there_are_no_locks_a_reader_does_without(finished, monkeypatch):
    def refuse(opened, how):
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    assert RunFolder.open(finished).checkpoint().name == "0000000050"


def test_a_reader_needs_no_right_to_write(finished, command, tmp_path, monkeypatch):
    """As on a file system that is mounted read-only."""
    run, before = shutil.copytree(finished, tmp_path / "run"), None
    before, real, real_open = contents(run), os.open, builtins.open

    def opening(path, flags, *args, **kwargs):
        assert not str(path).startswith(str(run)) or not flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT), path
        return real(path, flags, *args, **kwargs)

    def file(path, mode="r", *args, **kwargs):
        assert not str(path).startswith(str(run)) or not set(mode) & set("wax+"), path
        return real_open(path, mode, *args, **kwargs)

    monkeypatch.setattr(os, "open", opening)
    monkeypatch.setattr(builtins, "open", file)
    for argv in (("eval", run), ("compare", run, run), ("export", run, "--out", tmp_path / "out")):
        assert command(*argv)[0] == 0
    assert contents(run) == before


def test_a_summary_that_was_written_since_is_no_damaged_one(graph, tmp_path):
    folder = RunFolder.create(tmp_path / "run", tiny_config(graph), "abc")
    reader = RunFolder.open(folder.path)
    folder.write_summary({"checkpoint": "0000000010"})
    assert reader.summary() == {"checkpoint": "0000000010"}
    write_atomically(folder.path / "summary.json", "{}")
    with pytest.raises(CheckpointError, match="summary.json: is damaged"):
        reader.summary()


def test_the_plan_of_disk_space_knows_that_files_go(tmp_path, monkeypatch):
    """What others export into the run's folder while it is resumed."""
    for name in ("a", "b/c", "b/d"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(bytes(5000))
    whole, real = _taken(_below(tmp_path)), Path.stat

    def stat(self, **kwargs):
        (tmp_path / "b" / "d").unlink(missing_ok=True)
        return real(self, **kwargs)

    monkeypatch.setattr(Path, "stat", stat)
    assert whole == _taken(_below(tmp_path)) * 3 // 2
    walk = _below(tmp_path)
    next(walk)
    shutil.rmtree(tmp_path / "b")
    assert list(walk) == []


@pytest.mark.slow
@pytest.mark.parametrize("rows", ["memory", "disk"])
def test_72_readers_beside_a_training_all_succeed(graph, tmp_path, capsys, rows):
    """Real processes: one trains, and saves as often as it can."""
    often = ("checkpoint.keep=1", "checkpoint.every_batches=2", "evaluation.every=0", "training.epochs=100000")
    config = tiny_config(graph, *often) if rows == "memory" else graph_config(graph, *often, budget(40))
    run = tmp_path / "run"
    command = [
        sys.executable,
        "-m",
        "marius_oac",
        "train",
        str(write_config(tmp_path / "c.yaml", config)),
        "--out",
        run,
    ]
    with subprocess.Popen([*map(str, command)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            while process.poll() is None and not Checkpoints(run / "checkpoints").names():
                pass
            first, codes = Checkpoints(run / "checkpoints").names(), []
            for number in range(24):
                for argv in (["eval", run], ["export", run, "--out", tmp_path / f"{number}"], ["compare", run, run]):
                    codes.append(cli.main([str(word) for word in argv]))
            assert process.poll() is None and Checkpoints(run / "checkpoints").names()[-1] > first[-1]
        finally:
            process.kill()
    said = capsys.readouterr().err
    assert set(codes[0::3]) == set(codes[1::3]) == {0} and set(codes[2::3]) <= {0, 1}, said
    resume(run, ["training.epochs=1"], checkpoint="start")
    assert len(Checkpoints(run / "checkpoints").names()) == 1


def test_what_one_reader_has_encoded_another_one_leaves(graph, tmp_path):
    """It goes when its checkpoint has gone."""
    options = ("checkpoint.keep=1", "evaluation.every=0", "training.epochs=1")
    config = tiny_config(graph, "encoder.layers=[{kind: sage, neighbors: 3}]", *options)
    run = train(config, tmp_path / "run").path

    def encoded():
        return sorted(path.name for path in (run / "encoded").iterdir())

    first = TrainedModel.open(run)
    was = np.array(first.entities)
    resume(run, ["training.epochs=2"])
    assert not np.array_equal(TrainedModel.open(run).entities, was)
    assert encoded() == ["0000000025", "0000000050"]
    assert np.array_equal(TrainedModel.open(run, "0000000025").entities, was)
    for gone in (run / "checkpoints" / "0000000025", run / "encoded" / "0000000050"):
        shutil.rmtree(gone)
    assert np.isfinite(TrainedModel.open(run).entities).all() and encoded() == ["0000000050"]
