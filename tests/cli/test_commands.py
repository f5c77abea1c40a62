"""The command line: every mistake is one line and exit code 2, and leaves no file behind."""

import errno
import fcntl
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from marius_oac.cli import commands as cli
from marius_oac.errors import Interrupted
from marius_oac.runs.checkpoints.retention import Checkpoints
from marius_oac.tasks.link_prediction import trained
from marius_oac.training import local as training
from tests.graphs import tiny_config, tiny_graph
from tests.run_folders import contents, flip_a_byte, says, write_config


@pytest.fixture
def config(graph, tmp_path):
    folder = tmp_path / "input"
    folder.mkdir()
    return write_config(folder / "config.yaml", tiny_config(graph, "training.epochs=1"))


def test_the_whole_road(command, config, tmp_path):
    run = tmp_path / "runs" / "a"
    code, out, err = command("train", config, "--out", run, "--set", "pipeline.mode=sync", "--trace")
    assert code == 0 and out[0] == f"{run}: done" and any("test.filtered.mrr" in line for line in out)
    assert err[0].split() == ["memory", "plan", "host", "disk"] and (run / "trace.json").exists()
    assert command("train", config, "--out", tmp_path / "runs" / "b")[0] == 0
    code, out, _ = command("compare", run, tmp_path / "runs" / "b")
    assert code == 0 and "the same bits" in out[0]
    code, out, _ = command("resume", run, "--set", "training.epochs=2")
    assert code == 0 and "training.epochs                 2" in "\n".join(out)
    code, out, _ = command("compare", run, tmp_path / "runs" / "b")
    assert code == 1 and "different" in out[0] and "first row 0 (" in out[1]
    code, out, _ = command("eval", run, "--split", "valid", "--set", "evaluation.filtered=false")
    assert code == 0 and not any(" filtered" in line for line in out)
    model = trained.TrainedModel.open(run)
    head, relation = model.graph.node_names([0])[0], model.graph.relation_names([0])[0]
    code, out, _ = command("predict", run, "--head", head, "--relation", relation, "--top", "3")
    assert code == 0 and len(out) == 3 and all(len(line.split("\t")) == 2 for line in out)
    code, out, _ = command("export", run)
    assert code == 0 and out == [f"{run}/export-safetensors"] and Path(out[0]).is_dir()
    code, out, _ = command("datasets")
    assert code == 0 and out[2].split() == ["name", "nodes", "edges", "licence", "checksum", "address"]
    assert "criteo-kaggle (criteo)" in out and "  licence: CC BY-NC-SA 4.0" in out
    assert next(line for line in out if line.startswith("codex-s ")).split()[1:5] == [
        "2,034",
        "36,543",
        "MIT",
        "verified",
    ]


@pytest.mark.parametrize(
    "key, parts",
    [
        ("data.path=codex-z", ("codex-z", "did you mean", "codex-s")),
        ("data.path=no/such/graph", ("no/such/graph", "no such graph folder")),
        ("data.path=fb15k", ("marius-oac prepare fb15k --out",)),
        ("model.decoder=complexx", ("--set model.decoder", "'complexx'")),
        ("model.dimention=8", ("--set model.dimention", "did you mean 'dimension'")),
        ("dimension=8", ("did you mean 'model.dimension'",)),
        ("device=tpu", ("--set device", "'tpu'")),
        ("device=cuda:9", ("device", "there is no cuda:9")),
        ("model.dimension=0", ("--set model.dimension", "greater than 0")),
        ("model.dimension=7", ("dimension", "even")),
        ("training.batch_size=-1", ("--set training.batch_size", "greater than 0")),
        ("training.epochs=0", ("--set training.epochs",)),
        ("training.epochs=1.5", ("--set training.epochs", "integer")),
        ("training.negatives.count=0", ("--set training.negatives.count",)),
        ("training.optimizer.learning_rate=.nan", ("--set training.optimizer.learning_rate", "finite")),
        ("evaluation.candidates=100000", ("evaluation.candidates", "199 nodes")),
        ("checkpoint.keep=0", ("--set checkpoint.keep",)),
        ("training.epochs", ("--set training.epochs", "must look like key.path=value")),
        ("=3", ("must look like key.path=value",)),
        ("training.epochs=[", ("--set training.epochs", "not a YAML value")),
        ("pipeline.order=none.npy", ("none.npy", "recorded order.npy is needed")),
    ],
)
def test_a_wrong_key_or_value_writes_nothing(command, config, tmp_path, key, parts):
    before = sorted(tmp_path.iterdir())
    code, out, err = command("train", config, "--out", tmp_path / "run", "--set", key)
    assert (code, out, len(err)) == (2, [], 1) and says(err, *parts)
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    "content, parts",
    [
        (None, ("config.yaml", "no such file")),
        (b"", ("config.yaml", "must be a mapping")),
        (b"\xff\xfe", ("config.yaml", "not UTF-8")),
        (b"data: {path: x}\nmodel:\n  decoder: [", ("config.yaml:3",)),
        (b"model: {decoder: complex}\n", ("data", "required")),
        (b"data: {path: x}\nmodel:\n  dimension: -8\n", ("config.yaml:3", "model.dimension")),
    ],
)
def test_a_broken_config_is_named_with_its_line(command, config, tmp_path, content, parts):
    config.unlink() if content is None else config.write_bytes(content)
    code, out, err = command("train", config, "--out", tmp_path / "run")
    assert (code, out, len(err)) == (2, [], 1) and says(err, *parts)
    assert not (tmp_path / "run").exists()


def test_each_mistake_of_a_config_has_a_line(command, tmp_path):
    (tmp_path / "c.yaml").write_text("data: {path: x}\nmodel:\n  dimension: -8\n  decodr: dot\nseed: x\n")
    code, out, err = command("train", tmp_path / "c.yaml", "--out", tmp_path / "run")
    assert (code, out, len(err)) == (2, [], 3) and all(line.startswith("marius-oac: ") for line in err)
    assert says(err[:1], "c.yaml:5", "seed") and says(err[1:2], "c.yaml:3", "dimension")
    assert says(err[2:], "c.yaml:4", "did you mean 'decoder'?")


@pytest.mark.parametrize(
    "argv",
    [[], ["trian"], ["train"], ["resume"], ["eval", "x", "--split", "all"], ["export", "x", "--format", "csv"],
     ["predict", "x", "--top", "many"], ["train", "x", "--sett", "a=b"], ["compare", "x"]],
)  # fmt: skip
def test_wrong_arguments_are_one_line(command, argv):
    code, out, err = command(*argv)
    assert (code, out, len(err)) == (2, [], 1) and says(err, "--help")


@pytest.mark.parametrize("kind", ["folder", "file", "dangling link"])
def test_an_output_that_exists_is_left_alone(command, config, tmp_path, kind):
    out = tmp_path / "run"
    if kind == "folder":
        out.mkdir()
    elif kind == "file":
        out.write_text("mine")
    else:
        out.symlink_to(tmp_path / "nowhere")
    code, _, err = command("train", config, "--out", out)
    assert code == 2 and len(err) == 1 and says(err, str(out), "exists already")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["input", "run"]
    assert out.is_symlink() or out.is_file() or not list(out.iterdir())


def test_an_output_that_cannot_be_made(command, config, tmp_path):
    (tmp_path / "file").write_text("")
    code, _, err = command("train", config, "--out", tmp_path / "file" / "run")
    assert code == 2 and says(err, "can't be written", "Not a directory")


@pytest.mark.parametrize("verb", ["resume", "eval", "predict", "export", "compare"])
def test_what_is_no_run(command, finished, tmp_path, verb):
    more = [finished] if verb == "compare" else []
    other = tmp_path / "other"
    other.mkdir()
    for prepare, parts in [
        (lambda: other.rmdir(), ("other", "there is no such run")),
        (lambda: other.write_text(""), ("other", "is no run")),
        (lambda: (other.unlink(), other.mkdir()), ("other", "is no run: it has no run.json")),
        (lambda: (other / "run.json").write_text('{"format": "xgboost"}'), ("run.json", "belongs to something else")),
        (lambda: (other / "run.json").write_text("{"), ("run.json", "is damaged")),
        (
            lambda: (other / "run.json").write_text(
                json.dumps(json.loads((finished / "run.json").read_text()) | {"version": 9})
            ),
            ("other", "format version 9, this program reads 3"),
        ),
    ]:
        prepare()
        code, out, err = command(verb, other, *more)
        assert (code, out, len(err)) == (2, [], 1) and says(err, *parts)


def copy_of(run, tmp_path):
    return Path(shutil.copytree(run, tmp_path / "copy"))


def test_another_graph_under_the_same_name(command, finished, graph, tmp_path):
    other = tiny_graph(tmp_path / "other", relations=3)
    run = copy_of(finished, tmp_path)
    before = contents(run)
    code, _, err = command("resume", run, "--set", f"data.path={other.path}", "--set", "training.epochs=3")
    assert code == 2 and says(err, str(other.path), "another graph than the run was trained on")
    text = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(text.replace(str(graph.path), str(other.path)))
    before = contents(run)
    for verb in ("eval", "export", "resume"):
        code, _, err = command(verb, run)
        assert code == 2 and says(err, str(other.path), "another graph than the run was trained on")
    assert {name: digest for name, digest in contents(run).items() if name != ".lock"} == {
        name: digest for name, digest in before.items() if name != ".lock"
    }


@pytest.mark.parametrize("verb", ["resume", "eval", "export"])
@pytest.mark.parametrize("name", ["manifest.json", "dense.safetensors", "entities.values.npy"])
def test_a_damaged_checkpoint_is_named_and_the_one_before_offered(command, finished, tmp_path, verb, name):
    run = copy_of(finished, tmp_path)
    flip_a_byte(run / "checkpoints" / "0000000050" / name)
    more = ["--set", "training.epochs=3"] if verb == "resume" else []
    before = contents(run)
    code, _, err = command(verb, run, *more)
    assert code == 2 and says(err, f"0000000050/{name}", "is damaged", "--checkpoint 0000000025")
    assert contents(run) == before
    assert command(verb, run, *more, "--checkpoint", "0000000025")[0] == 0


def test_names_that_the_graph_lacks(command, finished, graph):
    head, relation = graph.node_names([0])[0], graph.relation_names([0])[0]
    for argv, parts in [
        (["--head", "nobody", "--relation", relation], ("unknown node 'nobody'",)),
        (["--head", head, "--relation", "loves"], ("unknown relation 'loves'",)),
        (["--head", head], ("needs a relation",)),
        (["--relation", relation], ("either a head or a tail",)),
        (["--head", head, "--tail", head, "--relation", relation], ("either a head or a tail",)),
        (["--head", head, "--relation", relation, "--top", "0"], ("top must be at least 1",)),
        (["--head", head, "--relation", relation, "--checkpoint", "7"], ("no checkpoint '7'", "0000000050")),
    ]:
        code, out, err = command("predict", finished, *argv)
        assert (code, out, len(err)) == (2, [], 1) and says(err, *parts)


def test_what_eval_may_not_change(command, finished):
    for key, parts in [
        ("model.dimension=4", ("only keys of `evaluation`",)),
        ("evaluation.memory=0", ("evaluation.memory",)),
        ("evaluation.candidates=5000", ("evaluation.candidates", "199 nodes")),
    ]:
        code, out, err = command("eval", finished, "--set", key)
        assert (code, out, len(err)) == (2, [], 1) and says(err, *parts)


def test_two_processes_in_one_folder(command, finished, tmp_path):
    run = copy_of(finished, tmp_path)
    holder = "import fcntl, sys; lock = open(sys.argv[1], 'w'); fcntl.flock(lock, fcntl.LOCK_EX); print(1); input()"
    with subprocess.Popen(
        [sys.executable, "-u", "-c", holder, run / ".lock"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout.readline() == "1\n"
        before = contents(run)
        code, _, err = command("resume", run, "--set", "training.epochs=3")
        assert code == 2 and len(err) == 1 and says(err, str(run), "another process is training in this folder")
        assert contents(run) == before and command("eval", run)[0] == 0
        other.communicate("\n")
    assert command("resume", run, "--set", "training.epochs=3")[0] == 0
    with open(run / ".lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # it has been let go of


def test_a_torn_last_line_of_metrics_is_left_out(command, finished, tmp_path):
    run = copy_of(finished, tmp_path)
    with open(run / "metrics.jsonl", "a") as file:
        file.write('{"kind": "interval", "batch": 5')
    assert command("resume", run, "--set", "training.epochs=3")[0] == 0
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["batch"] for line in lines if line["kind"] == "epoch"] == [24, 49, 74]


def test_a_full_disk_while_a_checkpoint_is_written(command, config, tmp_path, monkeypatch):
    real = os.fsync

    def full(descriptor):
        if "0000000020" in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(descriptor)

    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        code, _, err = command("train", config, "--out", run, "--set", "checkpoint.every_batches=10")
    assert code == 2 and says(err, "checkpoints/0000000020: can't be written: No space left on device")
    checkpoints = Checkpoints(run / "checkpoints")
    assert checkpoints.names() == ["0000000010"] and checkpoints.open()
    assert not [path for path in tmp_path.rglob("*") if "unfinished" in path.name]


@pytest.mark.parametrize("format", ["safetensors", "npy", "parquet"])
def test_a_full_disk_while_exporting(command, finished, tmp_path, monkeypatch, format):
    def full(*args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "rename", full)
    code, out, err = command("export", finished, "--format", format, "--out", tmp_path / "out")
    assert (code, out) == (2, []) and says(err, "out: can't be written: No space left on device")
    assert list(tmp_path.iterdir()) == []


def test_a_loss_that_is_none(command, config, tmp_path):
    key = "training.optimizer.learning_rate=1e30"
    code, _, err = command("train", config, "--out", tmp_path / "run", "--set", key)
    assert code == 2 and says(err, "at batch ", "training stopped")


def test_ctrl_c(command, config, tmp_path, monkeypatch):
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(training, "train", interrupted)
    assert command("train", config, "--out", tmp_path / "run") == (130, [], ["marius-oac: stopped"])

    def stopped(*args, **kwargs):
        raise Interrupted("stopped at batch 3; go on with: marius-oac resume x")

    monkeypatch.setattr(training, "train", stopped)
    assert command("train", config)[::2] == (130, ["marius-oac: stopped at batch 3; go on with: marius-oac resume x"])


def test_what_is_no_mistake_of_the_user_keeps_its_traceback(config, monkeypatch):
    def broken(*args, **kwargs):
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr(training, "train", broken)
    with pytest.raises(ZeroDivisionError, match="a defect"):
        cli.main(["train", str(config)])


@pytest.mark.parametrize("argv", [["datasets"], ["--help"], ["train", "--help"], ["--version"]])
@pytest.mark.parametrize("buffered", [True, False])
def test_nobody_reads_on(argv, buffered):
    """As in `marius-oac datasets | head -0`."""
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, *([] if buffered else ["-u"]), "-m", "marius_oac", *argv],
        env={key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"},
        stdout=writer, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_default_folder_is_named_after_the_graph(command, config, graph, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, _ = command("train", config)
    assert code == 0 and out[0] == f"runs/{graph.path.name}: done"


def test_order_arrays_are_never_unpickled(command, config, tmp_path):
    np.save(tmp_path / "evil.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    code, _, err = command("train", config, "--out", tmp_path / "run", "--set", f"pipeline.order={tmp_path}/evil.npy")
    assert code == 2 and says(err, "evil.npy")
