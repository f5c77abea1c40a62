"""Runs that are opened from another folder, moved with their data, or told where the data is now."""

import os
import shutil

import numpy as np
import pytest

from marius_oac import train
from marius_oac.config.link_prediction import Config
from marius_oac.data.logs.run_log import RunLog
from marius_oac.errors import InputError
from marius_oac.runs.checkpoints.retention import Checkpoints
from marius_oac.runs.folder.folder import RunFolder
from marius_oac.runs.folder.places import with_paths
from tests.click_logs import ctr_config, small_log
from tests.graphs import tiny_config, tiny_graph
from tests.run_folders import contents, says
from tests.runs.test_trust import NETWORK

ONCE = ("training.epochs=1", "evaluation.every=0", "evaluation.candidates=20")


@pytest.fixture(scope="module")
def of_a_graph(tmp_path_factory):
    """A project: a graph, and a run whose config names it relative to the project's folder."""
    home = tmp_path_factory.mktemp("graphs") / "home"
    graph = tiny_graph(home / "data")
    tiny_graph(home / "other", relations=3)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        train(tiny_config(graph, *ONCE, "data.path=data/graph"), "runs/a")
    return home


@pytest.fixture
def home(of_a_graph, tmp_path, monkeypatch):
    """A copy of that project, trained where it lies; the command is called from elsewhere."""
    home = shutil.copytree(of_a_graph, tmp_path / "home")
    place(home / "runs" / "a", home)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    return home


def place(run, base):
    """As if it had been trained there."""
    here = {"path": str(run.resolve()), "base": str(base.resolve())}
    (run / "run.json").write_bytes(RunFolder.open(run).about.model_copy(update=here).dump())


def opened(run, out, *more):
    yield "eval", run, *more
    yield "predict", run, "--head", "1", "--relation", "1", *more
    yield "export", run, "--out", out, *more
    yield "compare", run, run, *more


def test_a_run_opens_from_any_folder(home, tmp_path, command):
    for argv in opened(home / "runs" / "a", tmp_path / "exported"):
        code, _, err = command(*argv)
        assert code == 0 and not any(line.startswith("note:") for line in err), (argv, err)
    assert (tmp_path / "exported" / "entities.names.txt").exists() or any((tmp_path / "exported").iterdir())
    assert command("resume", home / "runs" / "a", "--set", "training.epochs=2")[0] == 0
    assert RunFolder.open(home / "runs" / "a").config.data.path == str(home / "data" / "graph")


def test_a_run_that_was_moved_with_its_data_finds_it(home, tmp_path, command):
    home.rename(tmp_path / "moved")
    run = tmp_path / "moved" / "runs" / "a"
    for argv in opened(run, tmp_path / "exported"):
        code, _, err = command(*argv)
        told = f"note: {home / 'data' / 'graph'} is not there; the run was moved, and beside it is {tmp_path / 'moved'}"
        assert code == 0 and sum(line.startswith(told) for line in err) == 1, (argv, err)
    assert command("resume", run, "--set", "training.epochs=2")[0] == 0
    code, _, err = command("eval", run)
    assert code == 0 and not any(line.startswith("note:") for line in err)  # it knows its new place


def test_other_data_is_taken_by_nobody(home, tmp_path, command):
    run, other = home / "runs" / "a", home / "other" / "graph"
    before = contents(run)
    home.joinpath("data").rename(tmp_path / "new")
    for argv in (("resume", run, "--set", "training.epochs=2"), *opened(run, tmp_path / "exported")):
        if argv[0] != "compare":  # which needs no graph for its answer
            code, _, err = command(*argv)
            assert code == 2 and says(err, f"{home / 'data' / 'graph'}: no such graph folder"), argv
        code, _, err = command(*argv, "--data-path", other)
        assert code == 2 and says(err, f"{other}: this is another graph than the run was trained on"), argv
        code, _, err = command(*argv, "--data-path", tmp_path / "none")
        assert code == 2 and says(err, f"--data-path {tmp_path / 'none'}: is no folder"), argv
    assert contents(run) == before
    other.rename(tmp_path / "elsewhere" / "graph")
    place(run, tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "data").symlink_to(".")
    code, _, err = command("eval", run)
    assert code == 2 and says(err, "this is another graph")
    for argv in opened(run, tmp_path / "exported", "--data-path", os.path.relpath(tmp_path / "new" / "graph")):
        assert command(*argv)[0] == 0, argv


@pytest.fixture
def of_clicks(tmp_path, monkeypatch):
    """A project with a log, code of its own, and a run that was stopped before its second file."""
    home = tmp_path / "home"
    small_log(home / "logs" / "one" / "day.parquet", rows=64)
    small_log(home / "logs" / "two" / "day.parquet", rows=64, seed=1)
    small_log(home / "logs" / "test.parquet", rows=64, seed=2)
    (home / "net.py").write_text(NETWORK)
    monkeypatch.chdir(home)
    config = ctr_config(["logs/one/day.parquet"], "training.epochs=1", network="net.py:Net", test="logs/te*.parquet")
    train(config, "runs/a")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    return home


def test_so_does_a_run_on_a_log_with_its_own_code(of_clicks, tmp_path, command, monkeypatch):
    run = of_clicks / "runs" / "a"
    (tmp_path / "elsewhere" / "net.py").write_text("raise SystemExit('not this one')\n")
    assert command("eval", run)[0] == 0
    small_log(tmp_path / "elsewhere" / "new.parquet", rows=64, seed=3)
    assert command("resume", run, "--data", "new.parquet")[0] == 0
    there = RunFolder.open(run).config
    assert there.model.network == f"{of_clicks / 'net.py'}:Net"
    assert there.data.train[1:] == (str(tmp_path / "elsewhere" / "new.parquet"),)
    of_clicks.rename(tmp_path / "moved")
    run = tmp_path / "moved" / "runs" / "a"
    code, _, err = command("resume", run, "--set", "training.epochs=2")
    assert code == 0 and any("the run was moved" in line and "te*.parquet" in line for line in err)
    files = [str(file.path) for file in RunLog.read(run).files]
    assert files == [str(tmp_path / "moved" / "logs" / "one" / "day.parquet"),
                     str(tmp_path / "elsewhere" / "new.parquet")]  # fmt: skip


def test_files_of_a_log_are_found_below_a_folder_and_known_by_what_they_hold(of_clicks, tmp_path, command):
    run = of_clicks / "runs" / "a"
    shutil.move(of_clicks / "logs", tmp_path / "new")
    code, _, err = command("eval", run)
    assert code == 2 and says(err, f"{of_clicks}/logs/te*.parquet: no file has such a name")
    assert command("eval", run, "--data-path", tmp_path / "new")[0] == 0
    more = ("resume", run, "--set", "training.epochs=2", "--data-path")
    before = contents(run)
    shutil.copytree(tmp_path / "new", tmp_path / "wrong")
    shutil.copy(tmp_path / "new" / "two" / "day.parquet", tmp_path / "wrong" / "one" / "day.parquet")
    code, _, err = command(*more, tmp_path / "wrong")
    assert code == 2 and says(err, f"{tmp_path}/wrong/one/day.parquet: has changed since the run began")
    assert {**contents(run), "config.yaml": ""}.keys() == before.keys()
    assert command(*more, tmp_path / "new")[0] == 0


def test_every_key_that_names_a_file_is_looked_after():
    graph = tiny_config(Graph("g"), "encoder={layers: [{kind: module, module: 'l.py:L'}], features: f.parquet}")
    moved = with_paths(
        graph.replace("pipeline.order=o.npy", "pipeline.mode=sync", "storage.path=[rows]", "storage.memory=1MiB"),
        at,
        at,
    )
    assert (moved.data.path, moved.encoder.features, moved.pipeline.order) == ("/x/g", "/x/f.parquet", "/x/o.npy")
    assert moved.encoder.layers[0].module == "/x/l.py:L" and moved.storage.path == ("/x/rows",)
    tree = {"task": "node_classification", "data": {"path": "g", "labels": "l.tsv"}, "encoder": {"layers": []}}
    tree["encoder"]["layers"] = [{"kind": "sage"}]
    classes = with_paths(Config.build(tree), at, at)
    assert (classes.data.path, classes.data.labels) == ("/x/g", "/x/l.tsv")
    assert with_paths(graph, lambda path: path, lambda path: path) == graph


class Graph:
    def __init__(self, path):
        self.path = path


def at(path):
    return f"/x/{path}"


def overwrites(path, column, value):
    """A probe that sets a column of the training edges, in the file that is mapped."""

    def probe(stage, batch):
        if (stage, batch) == ("compute", 5):
            edges = np.load(path, mmap_mode="r+")
            edges[:, column] = edges[:, column] if value is None else value
            os.utime(path, ns=(0, 0))

    return probe


@pytest.mark.parametrize(
    ("column", "value", "where"),
    [(0, 10**6, "data.path"), (0, -1, "data.path"), (1, 9, "data.path"), (2, 0, "graph/train.npy"), (2, None, None)],
)
def test_training_edges_that_are_overwritten_while_they_are_mapped_end_the_run(tmp_path, column, value, where):
    graph, run = tiny_graph(tmp_path), tmp_path / "run"
    probe = overwrites(graph.path / "train.npy", column, value)
    if where is None:
        assert train(tiny_config(graph), run, probe=probe).summary
        return
    with pytest.raises(InputError, match=f"{where}: has changed since the run began"):
        train(tiny_config(graph), run, probe=probe)
    assert not Checkpoints(run / "checkpoints").names()
