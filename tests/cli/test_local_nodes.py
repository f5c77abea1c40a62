"""`--local-nodes`: what is missing is told before anything starts, and what is waited for is said at once."""

import pytest

from marius_oac.nodes.launch import launch
from tests.click_logs import ctr_config, small_log
from tests.graphs import tiny_config
from tests.run_folders import write_config


@pytest.fixture
def started(monkeypatch):
    """The commands that were to be started."""
    found = []
    monkeypatch.setattr(launch, "start_local", lambda request, cluster: found.append(request.argv) or 0)
    monkeypatch.delenv("RANK", raising=False)
    return found


SAID = "starting 2 processes on this machine; training begins once all have loaded what they need"


def test_a_run_that_can_start_says_what_it_waits_for(command, graph, finished, tmp_path, started):
    config = write_config(tmp_path / "c.yaml", tiny_config(graph))
    assert command("train", config, "--out", tmp_path / "run", "--local-nodes", 2) == (0, [], [SAID])
    assert command("resume", finished, "--local-nodes", 2, "--data-path", graph.path) == (0, [], [SAID])
    assert command("train", config, "--out", tmp_path / "run", "--local-nodes", 2, "--dry-run")[2] == []
    assert len(started) == 3


def test_a_graph_that_comes_with_the_package_needs_no_folder(command, graph, tmp_path, started):
    config = write_config(tmp_path / "c.yaml", tiny_config(graph))
    train = ("train", config, "--out", tmp_path / "run", "--local-nodes", 2, "--set")
    assert command(*train, "data.path=codex-s")[0] == 0 and len(started) == 1
    wrong = {"codex-z": "did you mean codex-s", "fb15k": "prepare it first", "a/b": "no such graph folder"}
    for path, said in wrong.items():
        code, _, err = command(*train, f"data.path={path}")
        assert code == 2 and len(err) == 1 and said in err[0] and len(started) == 1


def test_files_that_are_missing_are_told_before_anything_starts(command, tmp_path, started):
    log = small_log(tmp_path / "log.parquet", rows=40)
    config = write_config(tmp_path / "c.yaml", ctr_config(log))
    train = ("train", config, "--out", tmp_path / "run", "--local-nodes", 2)
    disk = ("--set", "storage.memory=1MiB", "--set", "storage.path=new")  # which the run makes
    assert command(*train, "--set", f"data.train={tmp_path}/l*.parquet", *disk)[0] == 0
    for where, said in (("gone.parquet", "gone.parquet: no such file"), ("g*", "g*: no file has such a name")):
        for change in (f"data.train=[{log}, {tmp_path / where}]", f"data.test={tmp_path / where}"):
            code, _, err = command(*train, "--set", change)
            assert code == 2 and len(err) == 1 and err[0].endswith(said)
    odd = small_log(tmp_path / "log[1].parquet", rows=40)  # a name that is no pattern
    assert command(*train, "--set", f"data.train='{odd}'")[0] == 0
    (tmp_path / "run").mkdir()
    code, _, err = command(*train)
    assert code == 2 and err[0].endswith(f"go on with: marius-oac resume {tmp_path / 'run'} --local-nodes 2")
    assert len(started) == 2


def test_what_is_no_run_is_told_before_anything_starts(command, finished, tmp_path, started):
    code, _, err = command("resume", tmp_path / "none", "--local-nodes", 2)
    assert code == 2 and err == [f"marius-oac: {tmp_path / 'none'}: there is no such run"]
    code, _, err = command("resume", finished, "--local-nodes", 2, "--data-path", tmp_path / "none")
    assert code == 2 and len(err) == 1 and err[0].endswith("none: no such file") and not started


def test_a_process_that_was_started_checks_and_says_nothing(monkeypatch):
    monkeypatch.setenv("RANK", "0")
    assert not launch.Request(["train"], local=2).starts_here
    monkeypatch.delenv("RANK")
    assert launch.Request(["train"], local=2).starts_here and not launch.Request(["train"]).starts_here
    assert not launch.Request(["train"], local=2, dry_run=True).starts_here
