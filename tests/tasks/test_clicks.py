"""Click logs on the same road: the same bits in every mode, checkpoints, days, what is found and what is predicted."""

import ast
import dataclasses
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

import marius_oac
from benchmarks.generate.log import LogSpec, write_day
from marius_oac import Config, TrainedClickModel, open_run, resume, train
from marius_oac.errors import CheckpointError, InputError, Interrupted
from marius_oac.evaluation.binary_metrics import ClickMetrics
from marius_oac.evaluation.progressive import merged
from marius_oac.models.ctr.step import CtrStep
from marius_oac.runs.folder.folder import RunFolder
from marius_oac.runs.folder.metrics import progressive_means
from marius_oac.tasks.ctr.build import make_ctr_network, row_layout, tables_of
from marius_oac.tasks.ctr.progressive import PredictingStep
from marius_oac.training import local
from marius_oac.training.trained import compare_runs, export_run
from tests.click_logs import ctr_config, small_log
from tests.graphs import jitter, workers
from tests.models.ctr.step_batches import configure, draw
from tests.run_folders import each_with_one_of, says, story
from tests.training.test_precision import needs_bfloat16

pytestmark = pytest.mark.usefixtures("forked_programs")
NETWORKS = ("lr", "fm", "deepfm", "dlrm", "dcnv2", "dien", "youtubednn")


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    return small_log(tmp_path_factory.mktemp("log") / "train.parquet")


@pytest.fixture(scope="module")
def later(tmp_path_factory):
    return small_log(tmp_path_factory.mktemp("later") / "test.parquet", seed=1, new=5)


def bits(path):
    return {key: value for key, value in open_run(path).summary.items() if key.endswith("sha256")}


@pytest.fixture(scope="module")
def synchronous(log, tmp_path_factory):
    """The bits of each network, trained a batch at a time."""
    folder, found = tmp_path_factory.mktemp("synchronous"), {}

    def of(network):
        if network not in found:
            path = folder / network
            train(ctr_config(log, "pipeline.mode=sync", network=network), path)
            found[network] = bits(path)
        return found[network]

    return of


@pytest.mark.parametrize("network", NETWORKS)
def test_a_row_has_the_floats_that_the_network_reads(network):
    """An embedding of 4, a first-order weight, or both; a network that ignores one must not pay for its memory."""
    config = ctr_config("log.parquet", network=network)
    made = make_ctr_network(config)
    floats = {row_layout(config, table, made).dimension for table in tables_of(config, made)}
    assert floats == {{"lr": 1, "fm": 5, "deepfm": 5}.get(network, 4)}


@pytest.mark.parametrize("network, threads", each_with_one_of(NETWORKS, [(4, 3), (16, 4), (1, 1)]))
def test_oac_has_the_bits_of_sync(log, tmp_path, synchronous, network, threads):
    in_flight, count = threads
    config = ctr_config(log, f"pipeline.in_flight={in_flight}", *workers(count), network=network)
    train(config, tmp_path / "run", probe=jitter(in_flight))
    assert bits(tmp_path / "run") == synchronous(network)


def test_async_has_others_and_counts_what_it_loses(log, tmp_path, synchronous):
    config = ctr_config(log, "pipeline.mode=async", "pipeline.in_flight=16", *workers(4))
    train(config, tmp_path / "run", probe=jitter(0))
    assert open_run(tmp_path / "run").summary["training.lost_updates"] > 0
    assert bits(tmp_path / "run") != synchronous("deepfm")


@pytest.mark.parametrize("overrides", [
    ("training.optimizer.kind=adam", "training.dense_optimizer.kind=adagrad", "model.dropout=0.3",
     "model.batch_norm=true"),
    ("training.optimizer.kind=rowwise_adagrad", "training.embedding_l2=0.05", "data.shuffle=100"),
    ("storage.dtype=bfloat16", "keys.admit_after=3"),
    pytest.param(("compute.precision=bfloat16", "model.network=dlrm", "model.bottom=[9]"), marks=needs_bfloat16),
    pytest.param(("keys.drop_after=1", "keys.admit_after=2"), marks=pytest.mark.slow),
    ("model.network=dcnv2", "data.categorical=[{name: user, dimension: 8}, {name: item, kind: integer}]"),
], ids=lambda overrides: " ".join(overrides))  # fmt: skip
def test_options_keep_the_bits_and_a_resumed_run_has_them(log, later, tmp_path, overrides):
    def config(mode):
        return ctr_config([log, later], f"pipeline.mode={mode}", "checkpoint.every_batches=7", *overrides)

    train(config("sync"), tmp_path / "sync")
    stop = tmp_path / "stopped"

    def probe(stage, batch_index):
        if (stage, batch_index) == ("write", 12):
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted):
        train(config("oac"), stop, probe=probe)
    resume(stop)
    assert bits(stop) == bits(tmp_path / "sync")
    assert compare_runs(stop, tmp_path / "sync").same


def test_kill_9_and_resume_have_the_bits_of_a_run_that_was_left_alone(log, tmp_path):
    config = ctr_config(log, "checkpoint.every_batches=4")
    train(config, tmp_path / "whole")
    (tmp_path / "c.yaml").write_text(config.dump())
    code = (
        "import os, signal\nfrom marius_oac import Config, train\n"
        "def probe(stage, sequence):\n"
        "    if (stage, sequence) == ('compute', 13): os.kill(os.getpid(), signal.SIGKILL)\n"
        f"train(Config.load({str(tmp_path / 'c.yaml')!r}), {str(tmp_path / 'killed')!r}, probe=probe)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=120)
    assert done.returncode == -signal.SIGKILL
    resume(tmp_path / "killed")
    assert bits(tmp_path / "killed") == bits(tmp_path / "whole")
    assert story(tmp_path / "killed") == story(tmp_path / "whole")


@pytest.fixture(scope="module")
def days(tmp_path_factory):
    folder = tmp_path_factory.mktemp("days")
    return [small_log(folder / f"day_{day:02}.parquet", rows=90 + 13 * day, seed=day, new=2 * day) for day in range(5)]


def test_day_by_day_has_the_bits_of_all_days_at_once(days, tmp_path):
    once = ("training.epochs=1", "training.progressive=true")
    train(ctr_config(days, *once), tmp_path / "whole")
    train(ctr_config(days[:1], *once), tmp_path / "daily")
    for day in days[1:]:
        resume(tmp_path / "daily", data=[str(day)])
    assert bits(tmp_path / "daily") == bits(tmp_path / "whole")
    assert story(tmp_path / "daily") == story(tmp_path / "whole")
    predicted = [
        line for line in RunFolder.open(tmp_path / "whole").metrics.lines() if line.get("split") == "progressive"
    ]
    assert [line["file"] for line in predicted] == [str(day) for day in days]
    assert all(0 <= line["auc"] <= 1 and line["unknown_ids"] > 0 for line in predicted)
    examples = sum(line["examples"] for line in predicted)
    for run in ("whole", "daily"):
        summary = open_run(tmp_path / run).summary
        assert summary["progressive.examples"] == examples == sum(90 + 13 * day for day in range(5))
        for name in ("auc", "log_loss"):
            mean = sum(line[name] * line["examples"] for line in predicted) / examples
            assert summary[f"progressive.{name}"] == pytest.approx(mean, rel=1e-12)
    assert f"  {'progressive.examples':<32}{examples}" in str(open_run(tmp_path / "daily"))


def test_a_progressive_mean_leaves_out_what_has_no_value():
    def line(epoch, examples, auc, loss):
        return {"kind": "evaluation", "split": "progressive", "epoch": epoch, "batch": 0, "examples": examples,
                "auc": auc, "log_loss": loss}  # fmt: skip

    lines = [line(0, 9, 0.1, 9.0), line(0, 30, None, 0.4), line(1, 10, 0.5, 0.8), line(2, 30, 0.9, 0.0)]
    others = [{"kind": "evaluation", "split": "valid", "auc": 1.0}, {**line(3, 5, 0.5, 0.5), "examples": "5"}]
    means = {"progressive.auc": (5 + 27) / 40, "progressive.log_loss": (12 + 8) / 70, "progressive.examples": 70}
    assert progressive_means(lines + others) == pytest.approx(means)
    assert progressive_means([line(0, 30, None, 0.5)])["progressive.auc"] is None
    assert progressive_means(others) == {}


def test_the_millions_of_a_day_are_told_apart(days, tmp_path, monkeypatch):
    monkeypatch.setattr("marius_oac.tasks.ctr.evaluate.MILLION", 64)
    config = ctr_config(days[:2], "training.epochs=1", "training.progressive=true", "evaluation.batch_size=32")
    train(config, tmp_path / "run")
    for line in RunFolder.open(tmp_path / "run").metrics.lines():
        if line.get("split") == "progressive":
            assert [each["examples"] for each in line["millions"]] == [64, line["examples"] - 64]
            assert all(0 <= each["auc"] <= 1 for each in line["millions"])


def test_a_weighted_run_is_evaluated_without_its_weights(days, tmp_path, command):
    """Clicks of weight 3 have the bits of clicks that were watched for 3 minutes; files to evaluate need no weights,
    and may have any."""

    def with_column(name, day, values, column="w"):
        table = pq.read_table(day)
        pq.write_table(table.append_column(column, [values(table["label"].to_numpy())]), tmp_path / name)
        return tmp_path / name

    three = with_column("three.parquet", days[0], lambda labels: np.where(labels == 1, 3.0, 1.0))
    watched = with_column("watched.parquet", days[0], lambda labels: np.where(labels == 1, 3.0, 77.0))
    train(ctr_config(three, "data.weight=w", test=days[1]), tmp_path / "all")
    odd = with_column("odd.parquet", days[1], lambda labels: labels * -5.0)
    train(ctr_config(watched, "data.weight={column: w, of: clicks}", test=odd), tmp_path / "clicks")
    train(ctr_config(days[0], test=days[1]), tmp_path / "none")
    assert bits(tmp_path / "all") == bits(tmp_path / "clicks") != bits(tmp_path / "none")
    tests = [
        {name: value for name, value in open_run(tmp_path / run).summary.items() if name.startswith("test.")}
        for run in ("all", "clicks", "none")
    ]
    assert tests[0] == tests[1] and tests[0]["test.calibration"] > 1.1 * tests[2]["test.calibration"]
    code, out, _ = command("eval", tmp_path / "all", "--data", days[2])
    assert code == 0 and any("auc" in line for line in out)
    code, _, err = command("resume", tmp_path / "all", "--data", days[2])
    assert code == 2 and says(err, "day_02.parquet: there is no column 'w', which the schema names")


def progressive_lines(path):
    return [line for line in RunFolder.open(path).metrics.lines() if line.get("split") == "progressive"]


@pytest.fixture
def forward(monkeypatch):
    """Labels and probabilities of the forward passes of training, whose networks have no dropout and no batch norm."""
    seen, real = [], CtrStep._logits

    def logits(self, inputs):
        found = real(self, inputs)
        if self._network.training:
            seen.append(torch.sigmoid(found).detach().numpy().copy())
        return found

    monkeypatch.setattr(CtrStep, "_logits", logits)
    monkeypatch.setattr(local, "note_arithmetic", lambda session, folder: None)  # it trains a batch of its own
    return seen


BY_BATCH = ("training.epochs=1", "training.progressive=true", "training.progressive_by=batch")


DEEPFM_AND_DIEN = pytest.mark.parametrize("network", ["deepfm", pytest.param("dien", marks=pytest.mark.slow)])


@DEEPFM_AND_DIEN
def test_a_batch_is_predicted_with_what_it_is_trained_from(days, tmp_path, forward, network):
    """The metrics of the batches between two checkpoints are those of training's own forward passes."""
    config = ctr_config(days[:2], *BY_BATCH, "checkpoint.every_batches=2", network=network)
    train(config, tmp_path / "run")
    labels = [pq.read_table(day)["label"].to_numpy().astype(np.float32) for day in days[:2]]
    cuts = [np.split(each, range(32, len(each), 32)) for each in labels]
    labels, lines, first = [batch for day in cuts for batch in day], progressive_lines(tmp_path / "run"), 0
    assert [(line["epoch"], line["first"], line["batch"]) for line in lines] == [
        (0, 0, 1), (0, 2, 2), (1, 3, 3), (1, 4, 5), (1, 6, 6)]  # fmt: skip
    for line in lines:
        with ClickMetrics() as exact:
            for number in range(first, line["batch"] + 1):
                exact.add(labels[number], forward[number])
            wanted = exact.result()
        assert line["first"] == first and line["examples"] == wanted["examples"]
        for name in ("auc", "log_loss", "normalized_entropy", "calibration"):
            assert line[name] == pytest.approx(wanted[name], rel=1e-5, abs=4e-3 * (name == "auc"))  # of few pairs
        first = line["batch"] + 1
    assert first == len(labels) == len(forward)
    summary = open_run(tmp_path / "run").summary
    assert summary["progressive.examples"] == sum(map(len, labels))
    loss = sum(line["log_loss"] * line["examples"] for line in lines) / summary["progressive.examples"]
    assert summary["progressive.log_loss"] == pytest.approx(loss, rel=1e-12)


@DEEPFM_AND_DIEN
def test_predicting_batches_changes_no_bit_of_training(days, tmp_path, network):
    noisy = ("training.epochs=1", "model.batch_norm=true", "model.dropout=0.3")
    for name, how in (("off", ()), ("file", BY_BATCH[1:2]), ("batch", BY_BATCH[1:])):
        train(ctr_config(days[:2], *noisy, *how, network=network), tmp_path / name)
    assert bits(tmp_path / "off") == bits(tmp_path / "file") == bits(tmp_path / "batch")
    file, batch = (progressive_lines(tmp_path / name) for name in ("file", "batch"))
    assert [line["examples"] for line in file] == [line["examples"] for line in batch]
    assert file[1]["log_loss"] != batch[1]["log_loss"], "a file is predicted by one model, batches by those between"


def test_a_run_that_predicts_batches_tells_all_of_them_once_whatever_stops_it(days, tmp_path):
    config = ctr_config(days[:3], *BY_BATCH, "checkpoint.every_batches=2")
    train(config, tmp_path / "whole")

    def probe(stage, batch_index):
        if (stage, batch_index) == ("compute", 5):
            raise RuntimeError("gone")

    with pytest.raises(RuntimeError, match="gone"):
        train(config, tmp_path / "run", probe=probe)
    resume(tmp_path / "run")
    assert story(tmp_path / "run") == story(tmp_path / "whole")


def test_tensors_of_a_device_are_taken_over_now_and_then(monkeypatch):
    """The last ones when they are asked for; an example that is another trainer's does not count."""
    monkeypatch.setattr("marius_oac.tasks.ctr.progressive._KEPT", 3)
    config, found = configure(), []
    for tensors in (False, True):
        batches = [draw("mixed", seed=seed) for seed in range(5)]
        batches[3].data = dataclasses.replace(batches[3].data, share=0.0)
        step = PredictingStep(config, batches[0].layout, batches[0].network(), torch.device("cpu"), 1)
        rows = batches[0].rows(config)
        rows = [torch.from_numpy(each) for each in rows] if tensors else rows
        for timestamp, batch in enumerate(batches):
            step.compute(rows, batch.tensors() if tensors else batch.data, timestamp)
        assert len(step._waiting) == tensors
        found.append(merged([step.predicted()]))
        assert not step._waiting and merged([step.predicted()]) == {}
        step.close()
    assert found[0]["examples"] == found[1]["examples"] == 44
    assert found[1] == pytest.approx(found[0], rel=1e-2)


def test_a_progressive_run_takes_days_in_order(tmp_path, command):
    for day in (9, 10):
        small_log(tmp_path / f"day_{day}.parquet", seed=day)
    once = ("training.epochs=1", "training.progressive=true")
    train(ctr_config(tmp_path / "day_*.parquet", *once), tmp_path / "run")
    told = [
        line["file"] for line in RunFolder.open(tmp_path / "run").metrics.lines() if line.get("split") == "progressive"
    ]
    assert [Path(file).name for file in told] == ["day_9.parquet", "day_10.parquet"]
    small_log(tmp_path / "day_8.parquet", seed=8)
    code, _, err = command("resume", tmp_path / "run", "--data", tmp_path / "day_8.parquet")
    assert code == 2 and says(err, "day_8.parquet: comes after day_10.parquet")


def test_yesterdays_file_may_be_gone_but_a_changed_one_is_named(tmp_path):
    first, today = small_log(tmp_path / "first.parquet"), small_log(tmp_path / "today.parquet", seed=1)
    train(ctr_config(first, "training.epochs=1"), tmp_path / "run")
    first.unlink()
    resume(tmp_path / "run", data=[str(today)])
    with pytest.raises(InputError, match="has been trained on already"):
        resume(tmp_path / "run", data=[str(today)])
    small_log(today, seed=9)
    with pytest.raises(CheckpointError, match=r"today.parquet: has changed since the run began"):
        resume(tmp_path / "run", ["training.epochs=2"])


def test_training_finds_the_structure_and_says_so(log, later, tmp_path, command):
    path = tmp_path / "c.yaml"
    path.write_text(ctr_config(log, "training.epochs=12", valid=log, test=log).dump())
    code, out, _ = command("train", path, "--out", tmp_path / "run")
    summary = open_run(tmp_path / "run").summary
    assert code == 0 and summary["test.auc"] > 0.8 and any("test.auc" in line for line in out)
    assert {"test.log_loss", "test.normalized_entropy", "test.calibration", "test.unknown_ids"} <= set(summary)
    assert summary["tables.embeddings_4.keys"] > 70 and summary["test.unknown_ids"] == 0
    code, out, _ = command("eval", tmp_path / "run")
    assert code == 0 and any(f"{summary['test.auc']:.6g}" in line for line in out)
    code, out, _ = command("eval", tmp_path / "run", "--data", later)
    assert code == 0 and not any(line.split() == ["unknown_ids", "0"] for line in out)


def test_predictions_are_written_whole_and_need_no_labels(log, later, tmp_path, command):
    train(ctr_config(log), tmp_path / "run")
    blind = tmp_path / "blind.parquet"
    pq.write_table(pq.read_table(later).drop_columns(["label"]), blind)
    code, _, _ = command("predict", tmp_path / "run", "--data", blind, "--out", tmp_path / "scores.parquet")
    found = pq.read_table(tmp_path / "scores.parquet")
    assert code == 0 and found.column_names == ["file", "row", "probability"]
    assert found["row"].to_pylist() == list(range(300)) and set(found["file"].to_pylist()) == {str(blind)}
    probabilities = found["probability"].to_numpy()
    assert ((probabilities > 0) & (probabilities < 1)).all() and np.unique(probabilities).size > 100
    code, _, err = command("predict", tmp_path / "run", "--data", blind, "--out", tmp_path / "scores.parquet")
    assert code == 2 and says(err, "scores.parquet", "exists already")
    with TrainedClickModel.open(tmp_path / "run") as model:
        assert model.evaluate([str(later)]).values["examples"] == 300


def test_a_model_of_clicks_is_exported_with_its_keys(log, tmp_path):
    train(ctr_config(log), tmp_path / "run")
    folder = export_run(tmp_path / "run", "parquet")
    names = pq.read_table(folder / "embeddings_4.parquet")["name"].to_pylist()
    columns = pq.read_table(log)
    expected = {f"{name}={value}" for name in ("user", "item") for value in columns[name].to_pylist()}
    expected |= {f"tags={value}" for values in columns["tags"].to_pylist() for value in values}
    assert len(names) == len(expected) and set(names) == expected


@pytest.mark.parametrize("override, message", [
    ("data.train=missing.parquet", "missing.parquet"),
    ("model.network=deepfn", "model.network"),
    ("keys.capacity=20", "embeddings_4"),
    ("model.target=number", "model.target"),
    ("data.train=[]", "--set data.train: must name at least one, not []"),
    ("task=click", "--set task: must be graph, node_classification or ctr, not 'click'"),
])  # fmt: skip
def test_mistakes_are_one_line(log, tmp_path, command, override, message):
    tree = json.loads(json.dumps(ctr_config(log).model_dump(mode="json")))
    (tmp_path / "c.yaml").write_text(Config.build(tree).dump())
    code, _, err = command("train", tmp_path / "c.yaml", "--out", tmp_path / "run", "--set", override)
    assert code == 2 and says(err, message)


def same_bits(config, folder):
    """Whether oac with 1, 4 and 16 batches in flight and as many workers as go round has the bits of sync."""
    train(config.replace("pipeline.mode=sync"), folder / "sync")
    for in_flight, count in ((1, 1), (4, 2), (16, 4)):
        path = folder / f"oac-{in_flight}"
        train(config.replace(f"pipeline.in_flight={in_flight}", *workers(count)), path, probe=jitter(in_flight))
        assert bits(path) == bits(folder / "sync")


@pytest.mark.slow
@pytest.mark.parametrize("network", NETWORKS)
def test_same_bits_on_the_most_skewed_log(tmp_path, network):
    spec = LogSpec(categorical=6, numeric=2, keys=5000, skew=3.0, lists=True)
    write_day(tmp_path / "day.parquet", 0, 6000, spec)
    data = {"train": str(tmp_path / "day.parquet"), **spec.schema()}
    if network not in ("dien", "youtubednn"):
        data["ignored"] = [each["name"] for each in data.pop("sequences")]
    tree = {
        "task": "ctr", "threads": 1, "data": data,
        "model": {"network": network, "dimension": 8, "hidden": [16], "bottom": [16]}
        | ({"target": "c0"} if network == "dien" else {}),
        "training": {"batch_size": 128, "optimizer": {"learning_rate": 0.2}},
    }  # fmt: skip
    same_bits(Config.build(tree), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("network", [name for name in NETWORKS if name != "dien"])
def test_same_bits_on_frappe(tmp_path, network):
    """DIEN is left out: Frappe has no sequences."""
    folder = Path(os.environ.get("MARIUS_OAC_DATA", "")) / "frappe"
    if not (folder / "test.csv.gz").is_file():
        pytest.skip("set MARIUS_OAC_DATA to a folder with frappe/ to run this")
    names = ["user", "item", "daytime", "weekday", "isweekend", "homework", "cost", "weather", "country", "city"]
    tree = {
        "task": "ctr", "threads": 1,
        "data": {"train": str(folder / "test.csv.gz"), "categorical": names, "shuffle": 10_000},
        "model": {"network": network, "dimension": 10, "hidden": [32, 32], "batch_norm": True, "dropout": 0.2},
        "training": {"batch_size": 512, "optimizer": {"kind": "adam", "learning_rate": 0.01}},
    }  # fmt: skip
    same_bits(Config.build(tree), tmp_path)


def test_a_command_for_the_other_task_is_one_line(log, finished, tmp_path, command):
    train(ctr_config(log), tmp_path / "run")
    for argv, message in [
        (("predict", tmp_path / "run", "--head", "x"), "was trained on a click log: name the files"),
        (("eval", tmp_path / "run"), "data.test: the run has no test files"),
        (("eval", finished, "--data", log), "--data: the run was trained on a graph"),
        (("predict", finished, "--data", log, "--out", tmp_path / "p.parquet"), "was trained for link prediction"),
        (("resume", finished, "--data", log), "--data: a run on a graph takes no more data"),
        (("predict", tmp_path / "run", "--data", log), "--out: name the file to write: .parquet"),
    ]:
        code, _, err = command(*argv)
        assert code == 2 and says(err, message)


def test_a_full_table_is_named_and_a_larger_one_goes_on(log, tmp_path):
    with pytest.raises(InputError, match=r"keys.capacity: table embeddings_4: all 60 rows are taken"):
        train(ctr_config(log, "keys.capacity=60", "checkpoint.every_batches=1"), tmp_path / "run")
    resume(tmp_path / "run", ["keys.capacity=200"])
    train(ctr_config(log), tmp_path / "whole")
    assert bits(tmp_path / "run") == bits(tmp_path / "whole")


def test_nothing_in_the_pipeline_or_the_store_asks_what_it_trains():
    words = {
        "graph",
        "graphs",
        "click",
        "clicks",
        "ctr",
        "edge",
        "edges",
        "relation",
        "relations",
        "log",
        "logs",
        "task",
    }
    for room in ("pipeline", "storage"):
        for path in sorted((Path(marius_oac.__file__).parent / room).glob("*.py")):
            names = set()
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if isinstance(node, ast.ImportFrom):
                    names.add(node.module.replace(".", "_"))
                names |= {getattr(node, part) for part in ("id", "attr", "arg", "name") if hasattr(node, part)}
            said = {word for name in names if isinstance(name, str) for word in name.lower().split("_")}
            assert not said & words, f"{path}: {said & words}"
