"""Dealt modes over nodes, for real: processes on this machine, with the command that a user types."""

import shutil
import signal

import pytest
import yaml

from marius_oac.config.ctr import CtrConfig
from marius_oac.errors import ConfigError
from marius_oac.nodes.sharded.place import check_config
from marius_oac.runs.folder.folder import RunFolder
from tests.nodes import test_node_training as over_nodes
from tests.nodes.test_node_training import BATCHES, LONG, SMOOTH, digests, furthest, kill, run, start, wait_for_batches

pytestmark = pytest.mark.usefixtures("forked_programs")
configs = over_nodes.configs
OFTEN = ["--set", "checkpoint.every_batches=16", "--set", "checkpoint.keep=9", "--set", "metrics.every_batches=4"]
MODES = ("gba", "async", "bsp", "hop-bs", "hop-bw")


def in_mode(mode, *others):
    return [word for each in (f"nodes.mode={mode}", *others) for word in ("--set", each)]


def check_lines(path, batches=BATCHES):
    """What is told of a run over clicks: every line knows how far it is, and nothing is counted twice."""
    lines, summary = RunFolder.open(path).metrics.lines(), RunFolder.open(path).summary()
    intervals = [line["batch"] for line in lines if line["kind"] == "interval"]
    assert intervals == sorted(intervals) and -1 < intervals[0] <= intervals[-1] < batches
    assert summary["training.batches"] == batches and [line["batch"] for line in lines if line["kind"] == "epoch"]
    return summary, next(line["loss"] for line in lines if line["kind"] == "epoch")


@pytest.fixture(scope="module")
def trained(configs, tmp_path_factory):
    """Trains a task on so many nodes in gba, once; gives the folder."""
    folder = tmp_path_factory.mktemp("dealt")

    def path_of(task, count, *others):
        path = folder / f"{task}-{count}"
        if not path.exists():
            run(
                "train", configs / f"{task}.yaml", "--local-nodes", count, "--out", path, *OFTEN,
                *in_mode("gba", SMOOTH, *others),
            )  # fmt: skip
        return path

    return path_of


@pytest.mark.slow
def test_two_nodes_train_in_gba(trained):
    summary, loss = check_lines(trained("clicks", 2))
    assert summary["dealt.tokens"] == summary["dealt.dense_gradients"] == 2 * BATCHES
    assert summary["dealt.batches_lost"] == 0 and 0 < loss < 0.7


@pytest.mark.slow
def test_a_run_goes_on_from_a_checkpoint_in_another_mode(configs, tmp_path, trained):
    path, nodes = tmp_path / "run", ("--local-nodes", 2)
    shutil.copytree(trained("clicks", 2), path)
    run("resume", path, *nodes, "--checkpoint", "0000000032", *in_mode("sync"))
    lockstep, _ = check_lines(path)
    assert "dealt.tokens" not in lockstep
    run("resume", path, *nodes, "--checkpoint", "0000000048", *in_mode("gba"))
    again, _ = check_lines(path)
    assert again["dealt.tokens"] == 2 * (BATCHES - 48)
    assert again["valid.auc"] == pytest.approx(lockstep["valid.auc"], abs=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("task", ["clicks", "graph"])
def test_one_node_that_has_all_parts_of_every_batch_is_lockstep(configs, tmp_path, trained, task):
    """Served slices of relations among them, and negatives of the whole batch. Nothing is stale, and nothing by chance:
    from a checkpoint it goes on to the same bits."""
    run("train", configs / f"{task}.yaml", "--local-nodes", 2, "--out", tmp_path / "two", "--set", SMOOTH)
    dispatched = trained(task, 1, "nodes.mode_options.parts=2")
    assert RunFolder.open(dispatched).summary()["dealt.rows_staleness_max"] == 0
    assert furthest(tmp_path / "two", dispatched) < 1e-5
    path = tmp_path / "again"
    shutil.copytree(dispatched, path)
    run("resume", path, "--local-nodes", 1, "--checkpoint", "0000000048")
    assert digests(path) == digests(dispatched)


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_three_nodes_train_in_every_mode(configs, tmp_path, mode):
    path, modes = tmp_path / "run", "nodes.mode_options={window: 2, parts: 2, gradients: 3, ahead: 1}"
    workers = "pipeline.workers={read: 2, write: 2}"
    run("train", configs / "clicks.yaml", "--local-nodes", 3, "--out", path, *in_mode(mode, modes, workers))
    summary, loss = check_lines(path)
    assert summary["dealt.tokens"] == 2 * BATCHES and 0 < loss < 0.75


@pytest.mark.slow
def test_two_nodes_of_equal_speed_end_near_lockstep(configs, tmp_path, trained):
    run("train", configs / "clicks.yaml", "--local-nodes", 2, "--out", tmp_path / "sync", *OFTEN, "--set", SMOOTH)
    lockstep, loss = check_lines(tmp_path / "sync")
    summary, dispatched = check_lines(trained("clicks", 2))
    assert dispatched == pytest.approx(loss, abs=0.01)
    assert summary["valid.auc"] == pytest.approx(lockstep["valid.auc"], abs=0.02)
    assert furthest(tmp_path / "sync", trained("clicks", 2)) > 0


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["gba", "hop-bs", "hop-bw"])
def test_ctrl_c_stops_all_nodes_at_one_global_batch(configs, tmp_path, mode):
    path = tmp_path / "run"
    process = start("train", configs / "clicks.yaml", "--local-nodes", 2, "--out", path, *LONG, *in_mode(mode))
    wait_for_batches(path, process, 20)
    process.send_signal(signal.SIGINT)
    text, _ = process.communicate(timeout=60)
    assert process.returncode == 130 and "go on with" in text and "Traceback" not in text, text
    last = {part.parent.name: max(each.name for each in part.iterdir()) for part in path.glob("nodes/*/*/checkpoints")}
    assert len(last) == 2 and len(set(last.values())) == 1
    run("resume", path, "--local-nodes", 2)
    check_lines(path, 2 * BATCHES)


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_a_node_that_is_killed_ends_the_run_which_goes_on(configs, tmp_path, victim):
    path = tmp_path / "run"
    process = start("train", configs / "clicks.yaml", "--local-nodes", 2, "--out", path, *LONG, *in_mode("gba"))
    assert "node" in kill(process, path, 40, victim)
    run("resume", path, "--local-nodes", 2)
    check_lines(path, 2 * BATCHES)


@pytest.mark.parametrize("kind", ["kstep", "easgd"])
def test_other_agreements_are_for_lockstep(configs, tmp_path, command, kind):
    code, said, errors = command(
        "train", configs / "clicks.yaml", "--local-nodes", 2, "--out", tmp_path / "run",
        *in_mode("gba", f"nodes.dense.kind={kind}"),
    )  # fmt: skip
    assert code == 2 and not said and len(errors) == 1 and f"nodes.dense.kind: '{kind}'" in errors[0]
    assert not (tmp_path / "run").exists()


BAD = {
    "nobody is waited for": ({"mode": "hop-bw", "mode_options": {"backups": 2}}, "nodes.mode_options.backups"),
    "nobody is waited for later": (
        {"switch": [{"at": 9, "mode": "hop-bw"}], "mode_options": {"backups": 2}},
        "backups",
    ),
    "more parts than examples": ({"mode": "gba", "mode_options": {"parts": 65}}, "nodes.mode_options.parts"),
}


@pytest.mark.parametrize("name", BAD)
def test_modes_that_make_no_sense_are_refused(configs, name):
    nodes, key = BAD[name]
    tree = yaml.safe_load((configs / "clicks.yaml").read_text()) | {"nodes": nodes}
    with pytest.raises(ConfigError, match=key):
        check_config(CtrConfig.build(tree), 2)
    check_config(CtrConfig.build(tree | {"training": {"batch_size": 65}}), 3)


def test_batches_that_are_dealt_are_computed_in_order(configs):
    tree = yaml.safe_load((configs / "clicks.yaml").read_text()) | {"pipeline": {"mode": "async"}}
    for nodes in ({"mode": "gba"}, {"switch": [{"at": 9, "mode": "bsp"}]}):
        with pytest.raises(ConfigError, match="pipeline.mode: .* use oac or sync"):
            check_config(CtrConfig.build(tree | {"nodes": nodes}), 2)


@pytest.mark.slow
def test_what_is_refused_leaves_nothing_behind(configs, tmp_path):
    settings = in_mode("hop-bw", "nodes.mode_options.backups=2")
    text = run("train", configs / "clicks.yaml", "--local-nodes", 2, "--out", tmp_path / "run", *settings, code=2)
    assert "nodes.mode_options.backups" in text and "Traceback" not in text
    assert not (tmp_path / "run").exists()
