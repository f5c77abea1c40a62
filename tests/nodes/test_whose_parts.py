"""Parts of runs over nodes that do not belong together, and replicas that other trainers go on from, as a user meets
them: real processes."""

import json
import shutil

import numpy as np
import pytest

from marius_oac.runs.checkpoints.checkpoint import read_checkpoint
from marius_oac.runs.verification import verify
from tests.click_logs import generated_days
from tests.nodes.test_node_training import digests, run
from tests.run_folders import contents

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forked_programs")]
TWICE = ["--set", "training.epochs=2"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two runs on two nodes that differ in the learning rate, with two checkpoints each; not to be changed."""
    folder = tmp_path_factory.mktemp("runs")
    tree = generated_days(folder, 800) | {"training": {"batch_size": 64}, "checkpoint": {"every_batches": 6, "keep": 2}}
    (folder / "config.yaml").write_text(json.dumps(tree))
    for name, rate in (("one", 0.05), ("other", 0.1)):
        change = ["--set", f"training.optimizer.learning_rate={rate}"]
        run("train", folder / "config.yaml", "--local-nodes", 2, "--out", folder / name, *change)
    return folder


@pytest.fixture
def copied(runs, tmp_path):
    path = shutil.copytree(runs / "one", tmp_path / "run")
    (layout,) = (path / "nodes").iterdir()
    return path, layout


def refused(path, said, *parts):
    """`eval`, `resume` with these nodes and with others, and `verify` say it; nothing has changed."""
    before = there(path)
    for words in (["eval", path, "--split", "valid"], ["resume", path, "--local-nodes", 2, *TWICE],
                  ["resume", path, "--local-nodes", 1, *TWICE]):  # fmt: skip
        text = run(*words, code=2)
        assert said in text and "Traceback" not in text, text
    damaged = verify(path).damaged
    for part in parts:
        assert any(line.startswith(f"{part}/checkpoints/") and said in line for line in damaged), damaged
    assert there(path) == before


def there(path):
    return {name: each for name, each in contents(path).items() if not name.endswith(".lock")}


def test_a_nodes_checkpoints_of_another_run_are_refused(runs, copied):
    path, layout = copied
    (other,) = (runs / "other" / "nodes").iterdir()
    shutil.rmtree(layout / "node1" / "checkpoints")
    shutil.copytree(other / "node1" / "checkpoints", layout / "node1" / "checkpoints")
    refused(path, "is a checkpoint of another run", layout / "node1")


def test_exchanged_checkpoints_of_two_nodes_are_refused(copied):
    path, layout = copied
    one, other = (layout / node / "checkpoints" for node in ("node0", "node1"))
    one.rename(path / "aside")
    other.rename(one)
    (path / "aside").rename(other)
    refused(path, "is the part of ", layout / "node0", layout / "node1")


def test_one_part_of_an_older_start_is_refused(runs, copied):
    """The run was taken back and trained again, to the same bits; one node's disk was then restored."""
    path, layout = copied
    names = sorted(each.name for each in (layout / "node0" / "checkpoints").glob("[0-9]*"))
    run("resume", path, "--local-nodes", 2, "--checkpoint", names[0])
    assert digests(path) == digests(runs / "one")
    last = layout / "node1" / "checkpoints" / names[-1]
    shutil.rmtree(last)
    shutil.copytree(runs / "one" / "nodes" / layout.name / "node1" / "checkpoints" / names[-1], last)
    refused(path, "was saved at another start of the run than that of part 0", layout / "node1")


def test_a_lost_run_json_of_a_node_is_written_anew(copied):
    path, layout = copied
    (layout / "node1" / "run.json").unlink()
    assert verify(path).damaged == (f"{layout}/node1/run.json: is missing",)
    text = run("resume", path, "--local-nodes", 2, *TWICE)
    assert "note: node node1: run.json was gone, and is written anew; the checkpoints fit" in text
    assert verify(path).sound


def test_a_nodes_run_json_of_another_run_is_refused(runs, copied):
    path, layout = copied
    (other,) = (runs / "other" / "nodes").iterdir()
    shutil.copy(other / "node1" / "run.json", layout / "node1" / "run.json")
    text = run("resume", path, "--local-nodes", 2, *TWICE, code=2)
    assert "node1" in text and "Traceback" not in text and "exists already" not in text
    assert f"{layout}/node1/run.json: is of another run than that of the first node" in verify(path).damaged


def test_sound_parts_go_on_with_the_same_and_with_other_nodes(copied, tmp_path):
    path, _ = copied
    assert verify(path).sound
    other = shutil.copytree(path, tmp_path / "another")
    run("resume", path, "--local-nodes", 2, *TWICE)
    run("resume", other, "--local-nodes", 3, *TWICE)
    assert verify(path).sound and verify(other).sound


@pytest.mark.parametrize("kind", ["ma", "easgd", "bmuf", "kstep"])
def test_other_nodes_go_on_from_the_mean_of_all_replicas(runs, tmp_path, kind):
    path, more = tmp_path / "run", {"kstep": "k: 5, warm_up: 0"}.get(kind, "sync_every: 4, background: false")
    change = ["--set", f"nodes.dense={{kind: {kind}, {more}}}", "--set", "checkpoint.keep=9"]
    run("train", runs / "config.yaml", "--local-nodes", 2, "--out", path, *change)
    (layout,) = (path / "nodes").iterdir()
    names = sorted(each.name for each in (layout / "node0" / "checkpoints").glob("[0-9]*"))
    old = [read_checkpoint(layout / node / "checkpoints" / names[0]).dense() for node in ("node0", "node1")]
    assert any(not np.array_equal(old[0][name], old[1][name]) for name in old[0] if name.startswith("network."))
    text = run("resume", path, "--local-nodes", 3, "--checkpoint", names[0])
    assert f"dense parameters go on with '{kind}', from the mean of the trainers' replicas" in text
    assert verify(path).sound
