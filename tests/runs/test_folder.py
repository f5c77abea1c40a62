"""A run's folder: made whole or not at all, rewound to one story, locked."""

import errno
import json
import os
from pathlib import Path

import numpy as np
import pytest

from marius_oac import __version__
from marius_oac.errors import CheckpointError, InputError
from marius_oac.nodes.launch.launch import Request
from marius_oac.nodes.launch.on_ray.placing import RayRequest
from marius_oac.runs.folder.folder import RunFolder
from marius_oac.runtime.resuming import resume_command, started_with
from tests.graphs import tiny_config
from tests.run_folders import contents


@pytest.fixture
def folder(graph, tmp_path):
    return RunFolder.create(tmp_path / "deep" / "run", tiny_config(graph, "pipeline.order=arrival"), "abc")


def test_a_new_folder_opens_again(folder):
    found = RunFolder.open(folder.path)
    assert (found.config, found.about.data) == (folder.config, "abc")
    assert found.metrics.lines() == [] and found.summary() == {} and found.order.read().tolist() == []
    with pytest.raises(InputError, match="exists already"):
        RunFolder.create(folder.path, folder.config, "abc")
    with pytest.raises(CheckpointError, match="there is no checkpoint yet"):
        found.checkpoint()


@pytest.mark.parametrize("verb", ["mkdir", "rename"])
def test_a_folder_that_cannot_be_made_leaves_nothing(graph, tmp_path, monkeypatch, verb):
    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, verb, full)
    with pytest.raises(InputError, match="run: can't be written: No space left on device"):
        RunFolder.create(tmp_path / "run", tiny_config(graph), "abc")
    assert list(tmp_path.iterdir()) == []


def test_rewinding_keeps_what_came_before(folder):
    lines = [{"kind": "interval", "batch": 9}, {"kind": "interval", "batch": 19}, {"kind": "epoch", "batch": 19},
             {"kind": "evaluation", "batch": 19}, {"kind": "interval", "batch": 29}]  # fmt: skip
    for line in lines:
        folder.metrics.add(line)
    folder.order.append([1, 0, *range(2, 10)])
    folder.order.append(list(range(10, 20)))
    folder.order.append([21, 20])
    folder.write_summary({"a": 1})
    assert folder.summary() == {"a": 1} and len(folder.order.read()) == 22
    folder.rewind(20)
    assert folder.metrics.lines() == lines[:3] and folder.summary() == {}  # the evaluation is made again
    assert folder.order.read().tolist() == [1, 0, *range(2, 20)]
    folder.rewind(15)
    assert folder.metrics.lines() == lines[:1] and len(folder.order.read()) == 15
    folder.rewind(0)
    assert folder.metrics.lines() == [] and len(folder.order.read()) == 0


def test_what_batches_were_predicted_as_they_came_is_kept(folder):
    """They are not predicted again: the checkpoint is of after they were trained on."""
    lines = [
        {"kind": "evaluation", "split": "progressive", "batch": batch, "first": batch - 9} for batch in (9, 19, 29)
    ]
    for line in lines:
        folder.metrics.add(line)
    recorded = folder.metrics.flushed(20)
    assert folder.metrics.rewind(20) == recorded and folder.metrics.lines() == lines[:2]


def test_a_torn_line_ends_the_metrics(folder):
    folder.metrics.add({"kind": "interval", "batch": 1})
    with open(folder.path / "metrics.jsonl", "a") as file:
        file.write('{"kind": "int')
    assert folder.metrics.lines() == [{"kind": "interval", "batch": 1}]
    with open(folder.path / "metrics.jsonl", "ab") as file:
        file.write(b"\xff\x00")
    assert folder.metrics.lines() == [{"kind": "interval", "batch": 1}]


@pytest.mark.parametrize(
    "line", [b"\xff", b"\0", b"", b"[1]", b"3", b'{"batch": 1}', b'{"kind": "epoch", "batch": "1"}', b"[" * 100_000]
)
def test_a_damaged_line_is_named_and_left_out(folder, capsys, line):
    lines = [{"kind": "interval", "batch": 1}, {"kind": "interval", "batch": 2}]
    folder.metrics.add(lines[0])
    with open(folder.path / "metrics.jsonl", "ab") as file:
        file.write(line + b"\n")
    folder.metrics.add(lines[1])
    assert folder.metrics.lines() == lines
    said = f"note: {folder.path}/metrics.jsonl:2: is damaged; this line is left out\n"
    assert capsys.readouterr().err == said
    folder.order.append(list(range(10)))
    folder.rewind(10)
    assert capsys.readouterr().err == said
    assert folder.metrics.lines() == lines and capsys.readouterr().err == ""


@pytest.mark.parametrize("order, message", [(b"", "is no .npy file"), (None, "holds 0 batches, 10 are expected")])
def test_a_damaged_order_is_named_and_nothing_is_dropped(folder, order, message):
    if order is not None:
        (folder.path / "order.npy").write_bytes(order)
    assert_nothing_is_dropped(folder, f"order.npy: {message}")


def assert_nothing_is_dropped(folder, message):
    for batch_index in (10, 20):
        folder.checkpoints.save(batch_index, [], {}, {}, keep=3)
    folder.write_summary({"a": 1})
    before = contents(folder.path)
    with pytest.raises(CheckpointError, match=message):
        folder.rewind(10)
    assert contents(folder.path) == before


@pytest.mark.parametrize("file, content", [("summary.json", "[1"), ("summary.json", "3"), ("run.json", "[]")])
def test_a_damaged_file_is_named(folder, file, content):
    folder.write_summary({"a": 1})
    (folder.path / file).write_text(content)
    with pytest.raises(CheckpointError, match=rf"{file}: is damaged"):
        RunFolder.open(folder.path).summary()


def test_the_result_is_what_the_summary_is_about(folder):
    for batch_index in (10, 20):
        folder.checkpoints.save(batch_index, [], {}, {}, keep=3)
    assert folder.checkpoint().batch_index == 20
    folder.write_summary({"checkpoint": "0000000010"})
    assert folder.checkpoint().batch_index == 10 and folder.checkpoint("0000000020").batch_index == 20


def test_entering_cleans_and_locks(folder):
    left = [folder.path / ".order.npy.unfinished", folder.path / "checkpoints" / ".0000000010.unfinished"]
    left[0].write_text("")
    left[1].mkdir()
    (left[1] / "manifest.json").write_text("")
    with folder:
        assert not any(path.exists() for path in left)
        with pytest.raises(InputError, match="another process is training in this folder"), RunFolder.open(folder.path):
            pass
    with RunFolder.open(folder.path):
        pass


def test_a_lock_that_cannot_be_had(folder):
    (folder.path / ".lock").mkdir()
    with pytest.raises(InputError, match="run: can't be locked: Is a directory"), folder:
        pass


@pytest.mark.parametrize(
    "key, allowed",
    [("training.epochs=9", True), ("threads=3", True), ("pipeline.in_flight=2", True),
     ("pipeline.workers.read=2", True), ("evaluation.every=3", True), ("checkpoint.keep=5", True),
     ("metrics.every_batches=7", True),
     ("training.early_stopping.patience=2", True), ("seed=3", False), ("pipeline.order=plan", False),
     ("training.optimizer.decay=0.9", False), ("model.init_scale=0.1", False), ("storage.dtype=bfloat16", False)],
)  # fmt: skip
def test_what_a_resumed_run_may_change(folder, key, allowed):
    config = folder.config.replace(key)
    if allowed:
        folder.check_resumable(config, "abc")
        folder.write_config(config)
        assert RunFolder.open(folder.path).config == config
    else:
        with pytest.raises(InputError, match=rf"^{key.partition('=')[0]}: the run was trained with"):
            folder.check_resumable(config, "abc")
    with pytest.raises(CheckpointError, match="another graph"):
        folder.check_resumable(folder.config, "abd")


def test_no_pickle_in_the_order_is_opened(folder):
    np.save(folder.path / "order.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(CheckpointError, match=r"order.npy: holds Python objects"):
        folder.order.read()


def test_the_folder_says_what_made_it(folder):
    about = json.loads((folder.path / "run.json").read_text())
    assert about.keys() == {"format", "version", "package", "id", "data", "arithmetic", "path", "base", "config",
                            "files", "over_nodes", "result", "sha256"}  # fmt: skip
    assert (about["version"], about["path"], about["package"]) == (3, str(folder.path.resolve()), __version__)


def test_what_exists_is_named_with_the_command_that_goes_on(tmp_path):
    (tmp_path / "run").mkdir()
    with pytest.raises(InputError, match=f"go on with: marius-oac resume {tmp_path / 'run'}$"):
        RunFolder.check_new(tmp_path / "run")
    (tmp_path / "my run").mkdir()
    nodes = Request(["train"], nodes=Path("my nodes.yaml")).options
    for options, words in [
        (nodes, "--nodes 'my nodes.yaml'"), (Request(["train"], local=2).options, "--local-nodes 2"),
        (RayRequest(3, {}).options, "--on ray --trainers 3"),
        (RayRequest((2, 4), {}, restarts=0, timeout=9.5, encryption=True).options,
         "--on ray --trainers 2..4 --restarts 0 --timeout 9.5 --encrypt"),
    ]:  # fmt: skip
        with started_with(options), pytest.raises(InputError) as error:
            RunFolder.check_new(tmp_path / "my run")
        assert str(error.value).endswith(f"go on with: marius-oac resume '{tmp_path / 'my run'}' {words}")
    assert Request(["train"]).options == [] and resume_command("a") == "marius-oac resume a"
