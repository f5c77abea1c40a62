"""After a power cut a file has its content only if it was flushed, and its name only if its folder was flushed later.

What is flushed is written down here, from the calls; nothing is cut off."""

import json
import os

import pytest

from marius_oac import train
from marius_oac.runs.export import FORMATS
from marius_oac.runtime.files.atomic import make_folder
from tests.disk import budget, clicks_config, days, graph_config
from tests.run_folders import stop_at, write_config

LOST_WITHOUT_HARM = {".lock"}


class Flushed:
    """The files that were flushed, with their sizes then, and the names that each flushed folder had then; by inode."""

    def __init__(self, monkeypatch):
        self.files, self.folders = {}, {}
        for name in ("fsync", "fdatasync"):
            monkeypatch.setattr(os, name, self._after(getattr(os, name)))

    def _after(self, flush):
        def call(descriptor):
            flush(descriptor)
            found = os.fstat(descriptor)
            if os.path.isdir(f"/proc/self/fd/{descriptor}"):
                with os.scandir(descriptor) as entries:
                    self.folders[found.st_ino] = {(entry.name, entry.inode()) for entry in entries}
            else:
                self.files[found.st_ino] = found.st_size

        return call

    def lost(self, folder):
        """What a power cut would take away below a folder that was there before."""
        for entry in os.scandir(folder):
            if entry.name in LOST_WITHOUT_HARM:
                continue
            if (entry.name, entry.inode()) not in self.folders.get(os.stat(folder).st_ino, ()):
                yield f"{entry.path}: its name"
            if entry.is_dir():
                yield from self.lost(entry.path)
            elif self.files.get(entry.inode()) != entry.stat().st_size:
                yield f"{entry.path}: its content"


@pytest.fixture
def flushed(monkeypatch):
    return Flushed(monkeypatch)


@pytest.mark.parametrize("task", ["graph", "clicks"])
@pytest.mark.parametrize("where", ["memory", "disk", "folders"])
def test_a_run_with_a_checkpoint_survives(graph, tmp_path, tmp_path_factory, flushed, task, where):
    folders = [str(tmp_path / "deep" / name) for name in "ab"]
    overrides = {"memory": (), "disk": (budget(40),), "folders": (budget(40), f"storage.path={json.dumps(folders)}")}
    config = graph_config(graph) if task == "graph" else clicks_config(days(tmp_path_factory.mktemp("log")))
    train(config.replace(*overrides[where]), tmp_path / "runs" / "mine")
    assert list(flushed.lost(tmp_path)) == []
    assert len(list(tmp_path.rglob("*.pages"))) == {"memory": 0, "disk": 1, "folders": 2}[where]


def test_a_run_that_has_only_begun_survives(graph, tmp_path, flushed):
    with pytest.raises(OSError, match="stopped here"):
        train(graph_config(graph, budget(40)), tmp_path / "run", probe=stop_at("plan", 0, OSError("stopped here")))
    assert list(flushed.lost(tmp_path)) == [] and len(list(tmp_path.rglob("*.pages"))) == 1


@pytest.mark.parametrize("format", FORMATS)
def test_an_export_survives(finished, command, tmp_path, flushed, format):
    assert command("export", finished, "--format", format, "--out", tmp_path / "deep" / "out")[0] == 0
    assert list(flushed.lost(tmp_path)) == [] and len(list(tmp_path.rglob("*.*"))) > 1


def test_predictions_survive(command, tmp_path, tmp_path_factory, flushed):
    made = tmp_path_factory.mktemp("made")
    log = days(made / "log")
    path = write_config(made / "c.yaml", clicks_config(log))
    assert command("train", path, "--out", made / "run")[0] == 0
    assert command("predict", made / "run", "--data", log[0], "--out", tmp_path / "deep" / "found.parquet")[0] == 0
    assert list(flushed.lost(tmp_path)) == [] and (tmp_path / "deep" / "found.parquet").exists()


def test_folders_that_are_there_are_left_alone(tmp_path, flushed):
    make_folder(tmp_path)
    assert flushed.folders == {}
    make_folder(tmp_path / "a" / "b")
    make_folder(tmp_path / "a" / "b" / "c")
    assert list(flushed.lost(tmp_path)) == []


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(NotADirectoryError):
            make_folder(path)
