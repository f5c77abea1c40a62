"""Every command, called in a folder of a stranger's: it opens nothing there but what it names, and runs nothing.

The folder is a run, which the command calls `.`, with traps beside its files: settings, modules, caches (see
`strangers`).
"""

import shutil
import subprocess

import pytest

from marius_oac.cli.commands import _parser
from marius_oac.training import local as training
from tests.graphs import tiny_config, tiny_graph
from tests.strangers import AT_THE_DOOR, FIRES, audited, lay, lines, programs, write

TRAIN = ("--set", "training.epochs=1", "--set", "device=cpu")
SPACE = "space:\n  training.optimizer.learning_rate: {low: 0.01, high: 1.0, log: true}\n"
NODES = "elastic_workers: 1\nnodes: [{address: 127.0.0.1, port: 9}]\n"
COMMANDS = {
    "prepare": [["prepare", "edges.tsv", "--out", "made/graph", "--valid-fraction", "0.1", "--test-fraction", "0.1"]],
    "init": [["init", "edges.tsv", "--out", "made/init.yaml"], ["init", "clicks.csv", "--label", "click"]],
    "datasets": [["datasets"]],
    "completion": [["completion", "bash"]],
    "config": [["config"], ["config", "--format", "json-schema"]],
    "nodes": [["nodes", "check", "--local-nodes", "2"]],
    "train": [["train", "mine.yaml", "--out", "made/one", *TRAIN],
              ["train", "mine.yaml", "--out", "made/two", *TRAIN, "--local-nodes", "2"],
              ["train", "mine.yaml", "--out", "made/three", *TRAIN, "--set", "trackers=[prometheus]"]],
    "resume": [["resume", ".", "--set", "training.epochs=3"]],
    "tune": [["tune", "mine.yaml", "--space", "space.yaml", "--trials", "2", "--out", "made/t", *TRAIN]],
    "kuberay": [["kuberay", "mine.yaml", "--image", "x", "--claim", "c", "--trainers", "2",
                 "--out", "/data/run"]],
    "attach": [["attach", "nodes.yaml"]],
    "eval": [["eval", "."]],
    "predict": [["predict", ".", "--head", "1", "--relation", "1"]],
    "export": [["export", ".", "--format", "parquet", "--out", "made/export"]],
    "compare": [["compare", ".", "."]],
    "report": [["report", ".", "--out", "made/report.html"]],
    "watch": [["watch", "."]],
    "verify": [["verify", "."]],
}  # fmt: skip
FAIL = {"attach": 2}
"""There is no run that trains."""


def test_no_command_is_left_out():
    assert {*COMMANDS} == {*_parser()._subparsers._group_actions[0].choices}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The folder without its traps; paths in it are those that it will have."""
    folder = tmp_path_factory.mktemp("made") / "folder"
    graph = tiny_graph(folder / "data")
    training.train(tiny_config(graph, "training.epochs=1"), folder / "run")
    for each in (folder / "run").iterdir():
        each.rename(folder / each.name)
    (folder / "run").rmdir()
    write(folder / "mine.yaml", tiny_config(graph).dump())
    write(folder / "edges.tsv", "".join(f"n{i % 17}\tr{i % 3}\tn{i * 7 % 23}\n" for i in range(300)))
    rows = "".join(f"{i % 2},{i % 7},u{i % 13}\n" for i in range(200))
    write(folder / "clicks.csv", "click,price,user\n" + rows)
    write(folder / "space.yaml", SPACE)
    write(folder / "nodes.yaml", NODES)
    return folder


@pytest.fixture
def folder(made):
    """With them. What a test changes is undone."""
    kept = shutil.copytree(made, made.parent / "kept")
    yield made
    shutil.rmtree(made)
    kept.rename(made)


BESIDE = {"data", "mine.yaml", "edges.tsv", "clicks.csv", "space.yaml", "nodes.yaml"}


def is_named(path, words, of_run):
    """Whether a command names a file in the folder: itself, or as part of the run, or of a run's or config's data."""
    first = path.partition("/")[0]
    return (
        first in {*words, "made"}
        or {".", "mine.yaml"} & {*words}
        and first == "data"
        or ("." in words and first.removeprefix(".").removesuffix(".unfinished") in {*of_run, "lock"})
    )


@pytest.mark.slow
@pytest.mark.parametrize("program", programs())
@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_opens_nothing_there_but_what_it_names(folder, tmp_path, name, program):
    of_run = {path.name for path in folder.iterdir()} - BESIDE
    traps = lay(folder, tmp_path / "fired")
    if program == "marius-oac":
        for module in AT_THE_DOOR:
            write(folder / f"{module}.py", FIRES)
            traps.add(f"{module}.py")
    secret = {"MARIUS_OAC_SECRET": "s" * 32}
    for words in COMMANDS[name]:
        (tmp_path / "opened").unlink(missing_ok=True)
        done = subprocess.run([*programs()[program], *words], cwd=folder, env=audited(folder, tmp_path) | secret,
                              capture_output=True, text=True, timeout=300)  # fmt: skip
        assert done.returncode == FAIL.get(name, 0), f"{words}: {done.stderr}"
        opened = lines(tmp_path / "opened")
        assert opened & traps == set(), words
        # Only what is a file there: a library that is loaded by its name, or what `rmtree` opens, is elsewhere.
        others = {path for path in opened if (folder / path).is_file() and not is_named(path, words, of_run)}
        assert others == set(), words
        assert lines(tmp_path / "fired") == set(), words
