"""A user's project of the version before: its configs are taken, its runs open, go on, and give what they gave.

`before/home.tar.xz` was made by that version (`before/make.py`) in a folder that is gone since: it has been moved.
"""

import json
import re
import shutil
import subprocess
import sys
import tarfile
from collections import Counter

import numpy as np
import pytest
import yaml

import marius_oac
from marius_oac import Config
from marius_oac.config.cluster import ClusterConfig
from tests.before.make import ALONE, HOME, MADE, NODES, made_with

RUNS = (*ALONE, *NODES)
CONFIGS = sorted(str(path.relative_to(HOME)) for path in HOME.rglob("*.yaml"))
CLOSE = 1e-3
"""How far apart rows and metrics may be on another processor, or with other libraries."""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The project; not to be changed."""
    folder = tmp_path_factory.mktemp("before")
    with tarfile.open(MADE) as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.fixture
def home(made, tmp_path, monkeypatch):
    """A copy of the project, without its runs; commands are called there."""
    home = shutil.copytree(made, tmp_path / "home", ignore=shutil.ignore_patterns("runs"))
    monkeypatch.chdir(home)
    return home


@pytest.fixture
def copied(made, home):
    """`copied("memory")` -> the copy of that run in `home`."""
    return lambda name: shutil.copytree(made / "runs" / name, home / "runs" / name)


def bits_are_the_same(made, run, before):
    """Whether two runs must have the same bits, as far as the machines go that trained them."""
    kernels = {json.loads((each / "summary.json").read_text())["machine"].rpartition(", ")[2] for each in (run, before)}
    return len(kernels) == 1 and json.loads((made / "made.json").read_text()) == made_with()


def check_same(command, made, run, name):
    """Tables, optimizer state, dense parameters and results must be those that a run of the version before ended with:
    the same bits, or where these can't be, rows that are close."""
    before = made / "runs" / name
    code, lines, err = command("compare", run, before)
    assert code == 0 or not bits_are_the_same(made, run, before), lines + err
    gaps = re.findall(r"largest difference ([^;]+), mean", "\n".join(lines))
    assert code == 0 or gaps and max(map(float, gaps)) < CLOSE, lines + err
    if code == 0:
        check_results(results_of(run), results_of(before))


def results_of(run):
    summary = json.loads((run / "summary.json").read_text())
    return {key: value for key, value in summary.items() if key.startswith("test.")}


def check_results(found, expected):
    """What an evaluation found, against the results of a summary."""
    results = {key: value for key, value in found.items() if "seconds" not in key}
    assert results and {key: expected[key] for key in results} == pytest.approx(results, abs=CLOSE)


def trust(name):
    """Options for a run with code of its own."""
    return ["--trust"] if name == "own" else []


def leaves(tree):
    """All values of a tree but for None, each as often as it is there; true is 1, as it is in sums."""
    if isinstance(tree, dict | list | tuple):
        return sum(map(leaves, tree.values() if isinstance(tree, dict) else tree), Counter())
    return Counter() if tree is None else Counter([tree])


def names(tree, path=""):
    """All keys of a tree, with those above them."""
    if isinstance(tree, list):
        return set().union(*(names(each, f"{path}[]") for each in tree))
    if not isinstance(tree, dict):
        return {path}
    return {path}.union(*(names(value, f"{path}.{key}") for key, value in tree.items()))


def written(run):
    """Names of files, and of what is in them, of a run that has ended."""
    found = {
        str(path.relative_to(run)) for path in run.rglob("*") if not re.search(r"[0-9a-f]{32}|\.lock|trace", path.name)
    }
    for path in [*run.glob("*.json"), *run.rglob("tables/*.json"), *run.rglob("saved.json"), *run.rglob("best.json")]:
        content = json.loads(path.read_text())
        if path.name == "run.json":
            del content["config"]  # its keys may change, where those of before are still known
        found |= {f"{path.relative_to(run)}: {name}" for name in names(content)}
    for path in run.rglob("manifest.json"):
        content = json.loads(path.read_text())
        checksum = {1: ".sha256", 2: ".xxh3_128", 3: ".xxh3_blocks"}[content["version"]]  # of each file
        here = {
            re.sub(rf"(\.files\..*){checksum}$", r"\1.checksum", name)
            for name in names(content)
            if not name.endswith(".blocks")
        }  # which version 2 did not have
        assert sum(name.endswith(".checksum") for name in here) == len(content["files"])
        found |= {f"{path.relative_to(run)}: {name}" for name in here}
    for line in map(json.loads, (run / "metrics.jsonl").read_text().splitlines()):
        found |= {f"metrics.jsonl, {line['kind']}: {name}" for name in names(line)}
    # The version before did not write what was planned and chosen on a machine. It wrote the kinds of keys of each
    # file, which the configuration has now.
    return {each for each in found if ": .machine." not in each and ".kinds" not in each}


def check_config(path, tmp_path):
    """That it is taken, with each value that it says, and comes back from what is written of it."""
    config = Config.load(path)
    missing = leaves(yaml.safe_load(path.read_text())) - leaves(yaml.safe_load(config.dump()))
    assert not missing, missing
    (tmp_path / "again.yaml").write_text(config.dump())
    assert Config.load(tmp_path / "again.yaml") == config


@pytest.mark.parametrize("name", [name for name in CONFIGS if "hosts" not in name])
def test_a_config_is_taken_with_all_that_it_says(name, made, home, tmp_path):
    assert (made / name).read_text() == (HOME / name).read_text(), "it is of the version before: leave it as it is"
    check_config(home / name, tmp_path)


@pytest.mark.parametrize("name", [*RUNS, "stopped"])
def test_so_is_the_config_that_a_run_keeps(name, made, home, tmp_path):
    check_config(made / "runs" / name / "config.yaml", tmp_path)


@pytest.mark.parametrize("name", [name for name in CONFIGS if "hosts" in name])
def test_so_is_a_nodes_yaml(name, made, command):
    assert (made / name).read_text() == (HOME / name).read_text(), "it is of the version before: leave it as it is"
    missing = leaves(yaml.safe_load((made / name).read_text()))
    missing -= leaves(ClusterConfig.load(made / name).model_dump(mode="json"))
    assert not missing, missing


@pytest.mark.parametrize("change", ["nodes.mode=gba", "nodes.modes.window=31", "nodes.dense={kind: ma, gap: 71}"])
def test_so_are_keys_on_the_command_line(change, home):
    value = yaml.safe_load(change.partition("=")[2])
    assert leaves(value) - leaves(yaml.safe_load(Config.load("clicks.yaml").dump()))
    assert not leaves(value) - leaves(yaml.safe_load(Config.load("clicks.yaml", [change]).dump()))


def test_names_of_the_package_and_of_commands_are_there(command):
    for name in ("Config", "Graph", "Network", "PrepareRequest", "Run", "TrainedClickModel", "TrainedModel", "open_run",
                 "prepare", "resume", "train", "verify"):  # fmt: skip
        assert getattr(marius_oac, name) is not None
    for name in ("prepare", "init", "datasets", "config", "topology", "nodes", "train", "resume", "join", "eval",
                 "predict", "export", "compare", "verify"):  # fmt: skip
        assert command(name, "--help")[0] == 0, name


def test_a_graph_is_prepared_as_it_was(home, command):
    assert command("prepare", "data/edges.tsv", "--unseen", "keep", "--out", "data/again")[0] == 0
    made, again = (json.loads((home / "data" / name / "graph.json").read_text()) for name in ("graph", "again"))
    assert names(made) <= names(again)
    for name in ("train.npy", "valid.npy", "test.npy"):
        assert np.array_equal(np.load(home / "data" / "graph" / name), np.load(home / "data" / "again" / name))


@pytest.mark.parametrize("name", RUNS)
def test_a_run_opens_is_whole_evaluates_and_exports(name, home, copied, command):
    run = copied(name)
    assert command("verify", run)[0] == 0
    if name == "own":
        assert command("eval", run)[0] == 2  # nobody has trained with net.py here
    code, lines, err = command("eval", run, *trust(name))
    assert code == 0, err
    found = {f"test.{key}": float(value) for key, value in map(str.split, lines[1:])}
    check_results(found, results_of(run))
    assert command("export", run, "--format", "npy", "--out", "exported", *trust(name))[0] == 0
    exported = {path.name: np.load(path) for path in (home / "exported").glob("*.npy")}
    assert exported and len(list((home / "exported").glob("*.names.parquet"))) == len(exported)
    for table, values in exported.items():
        saved = sorted(run.glob(f"checkpoints/*/{table.removesuffix('.npy')}.values.npy"))
        assert not saved or np.array_equal(values, np.load(saved[-1]))


@pytest.mark.parametrize("name", ALONE)
def test_a_run_goes_on_to_what_it_became(name, made, home, copied, command):
    run = copied(name)
    half = min(path.name for path in run.glob("checkpoints/[0-9]*"))
    code, _, err = command("resume", run, "--checkpoint", half, *trust(name))
    assert code == 0, err
    check_same(command, made, run, name)
    assert written(run) == written(made / "runs" / name)


@pytest.mark.slow
@pytest.mark.parametrize("name", NODES)
def test_so_does_a_run_over_nodes(name, made, home, copied, command):
    run = copied(name)
    half = min(path.name for path in run.glob("nodes/*/*/checkpoints/[0-9]*"))
    words = [sys.executable, "-P", "-m", "marius_oac", "resume", run, "--checkpoint", half, "--local-nodes", "2"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    if name not in ("easgd_nodes", "dealt_nodes"):  # there the bits depend on who was first
        check_same(command, made, run, name)
    counts = (".keys", ".waiting", ".dropped")  # of all nodes' tables, which that version did not say
    assert {each for each in written(run) if not each.endswith(counts)} == written(made / "runs" / name)


def test_a_run_that_was_stopped_goes_on_to_what_another_became(made, copied, command):
    run = copied("stopped")
    assert not (run / "summary.json").exists()
    assert command("resume", run)[0] == 0
    check_same(command, made, run, "clicks")


@pytest.mark.parametrize("name", ["memory", "clicks", "classes"])
def test_a_config_trains_what_it_trained(name, made, home, command):
    assert command("train", f"{name}.yaml", "--out", "runs/again")[0] == 0
    check_same(command, made, home / "runs" / "again", name)
    assert written(home / "runs" / "again") == written(made / "runs" / name)
