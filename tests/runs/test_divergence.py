"""Training that diverges ends with a line and exit code 2, by the batch that made the number; JSON has no NaN."""

import itertools
import json
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from marius_oac import resume, train
from marius_oac.cli.commands import main
from marius_oac.errors import DivergedError
from marius_oac.kernels.cpu.products import largest_bits
from marius_oac.models.compute import soundness
from marius_oac.models.compute.network_parameters import NetworkParameters
from marius_oac.models.compute.row_optimizers import GradientPassThrough
from marius_oac.models.compute.soundness import LARGEST_VALUE, is_sound
from marius_oac.models.compute.update import Update
from marius_oac.models.link_prediction.step import LinkPredictionStep
from marius_oac.runs.checkpoints.retention import Checkpoints
from marius_oac.runtime.files.atomic import json_text
from marius_oac.types import BatchData
from tests.click_logs import ctr_config, small_log
from tests.graphs import tiny_config, workers
from tests.run_folders import write_config

RATE = "training.optimizer.learning_rate=1e6"


def strict(text: str):
    """JSON as other programs read it."""

    def refuse(name):
        raise AssertionError(f"{name} is no JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.mark.parametrize(
    "overrides",
    [
        ["training.optimizer.kind=adagrad"],
        ["training.optimizer.kind=sgd", "training.loss.kind=logistic"],
        ["training.optimizer.kind=adam", "training.loss.kind=margin", "model.decoder=transe"],
    ],
)
def test_a_rate_of_a_million_diverges_and_says_so(graph, tmp_path, capsys, overrides):
    config = write_config(tmp_path / "c.yaml", tiny_config(graph, RATE, *overrides))
    assert main(["train", str(config), "--out", str(tmp_path / "run")]) == 2
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert last.startswith("marius-oac: diverged: ") and "learning_rate" in last
    assert not (tmp_path / "run" / "summary.json").exists()


@pytest.mark.parametrize("which", ["optimizer", "dense_optimizer"])
def test_so_does_one_of_clicks(tmp_path, which):
    log = small_log(tmp_path / "log.parquet", 600)
    config = ctr_config(log, f"training.{which}.learning_rate=1e6")
    with pytest.raises(DivergedError, match="diverged: .* learning_rate"):
        train(config, tmp_path / "run")


def test_a_large_rate_that_training_survives_is_let_be(graph, tmp_path):
    train(tiny_config(graph, "training.optimizer.learning_rate=3"), tmp_path / "run")


def test_a_loss_out_of_proportion_stops_at_the_segments_end_and_an_outlier_does_not(graph, tmp_path, monkeypatch):
    """Here the loss alone tells: rows stay small. The checkpoint before stays."""
    compute, worse = LinkPredictionStep.compute, set()

    def told(self, rows, data, timestamp):
        return compute(self, rows, data, timestamp) * (1e12 if timestamp in worse else 1.0)

    monkeypatch.setattr(LinkPredictionStep, "compute", told)
    worse.update((24, 47))
    train(tiny_config(graph), tmp_path / "outliers")
    worse.update(range(30, 50))
    with pytest.raises(DivergedError, match=r"diverged: the loss is \S+e\+1\d, and began with [\d.]+ at batch 49: .*"):
        train(tiny_config(graph), tmp_path / "run")
    assert Checkpoints(tmp_path / "run" / "checkpoints").names() == ["0000000025"]


def test_what_the_loss_began_with_is_kept_for_a_resumed_run(graph, tmp_path, monkeypatch):
    train(tiny_config(graph, "training.epochs=1"), tmp_path / "run")
    compute = LinkPredictionStep.compute
    monkeypatch.setattr(LinkPredictionStep, "compute", lambda *args: compute(*args) * 1e9)
    with pytest.raises(DivergedError, match="and began with [\\d.]+ at batch 49"):
        resume(tmp_path / "run", ["training.epochs=2"])


MODES = ["pipeline.mode=sync"], ["pipeline.mode=oac"], ["pipeline.mode=async"], ["pipeline.mode=async-delta"]


@pytest.mark.parametrize("mode", [*MODES, ["pipeline.mode=oac", "storage.memory=1MiB"]])
def test_numbers_are_blamed_on_the_batch_that_made_them(graph, tmp_path, monkeypatch, mode):
    """The loss of that batch is finite; the batches in flight with it read the row from the cache or the store."""
    compute, begun, spoilt = LinkPredictionStep.compute, [], []

    def spoil(self, rows, data, timestamp):
        loss = compute(self, rows, data, timestamp)
        if timestamp == 30:
            spoilt.append(begun[-1])  # in async batches are not computed in the order of their numbers
            rows[0][:, 0] = np.nan
        return loss

    def probe(stage, batch_index):
        if stage == "compute":
            begun.append(batch_index)

    monkeypatch.setattr(LinkPredictionStep, "compute", spoil)
    config = tiny_config(graph, *mode, *workers(3), "checkpoint.every_batches=7")
    with pytest.raises(DivergedError, match="'entities' hold numbers that are NaN, ") as raised:
        train(config, tmp_path / "run", probe=probe)
    assert [raised.value.batch_index] == spoilt
    assert Checkpoints(tmp_path / "run" / "checkpoints").names()[-1] == "0000000028"


def test_relations_too(graph, tmp_path, monkeypatch):
    """The first update makes them infinite: the loss of that batch knows nothing of it yet."""
    rate = LinkPredictionStep.__init__

    def infinite(self, *args, **named):
        rate(self, *args, **named)
        self._relations._optimizer._learning_rate = float("inf")

    monkeypatch.setattr(LinkPredictionStep, "__init__", infinite)
    with np.errstate(all="ignore"), pytest.raises(DivergedError, match="the loss is nan .* at batch 0: "):
        train(tiny_config(graph), tmp_path / "run")


def made(network, config):
    update = Update(GradientPassThrough())
    update.own(NetworkParameters(network, config))
    update.ready()
    return update


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e25])
def test_a_gradient_of_a_network_is_told_beside_the_loss(bad):
    config = ctr_config("log.parquet").training.dense_optimizer
    network = torch.nn.Linear(3, 2)
    update = made(network, config)
    for number, expected in ((1.0, 0.0), (bad, None)):
        network(torch.ones(1, 3)).sum().backward()
        network.weight.grad[1, 2] = number
        fault = float(update.dense(0.0, BatchData(), 0))
        assert fault == 0.0 if expected == 0.0 else np.isnan(fault)


def test_a_network_that_an_update_makes_infinite_is_told(tmp_path):
    config = ctr_config(
        "log.parquet", "training.dense_optimizer.kind=sgd", "training.dense_optimizer.learning_rate=1e38"
    )
    network = torch.nn.Linear(3, 2)
    update = made(network, config.training.dense_optimizer)
    (network(torch.ones(1, 3)).sum() * 1e3).backward()
    assert np.isnan(float(update.dense(0.0, BatchData(), 0)))


def test_the_fault_of_a_network_reaches_the_batch(tmp_path, monkeypatch):
    dense = Update.dense

    def spoiled(self, loss, data, timestamp):
        if timestamp == 5:
            self._groups[0].parameters[0].grad.fill_(np.nan)
        return dense(self, loss, data, timestamp)

    monkeypatch.setattr(Update, "dense", spoiled)
    with pytest.raises(DivergedError, match="the loss is nan .* at batch 5: "):
        train(ctr_config(small_log(tmp_path / "log.parquet", 400)), tmp_path / "run")


@pytest.mark.parametrize("kernel", [largest_bits, getattr(largest_bits, "py_func", largest_bits)])
@settings(max_examples=60, deadline=None)
@given(data=st.data(), largest=st.sampled_from([LARGEST_VALUE, np.inf]), shape=st.tuples(*[st.integers(1, 5)] * 2))
def test_rows_are_sound_as_told_number_by_number(kernel, data, largest, shape):
    dimension = data.draw(st.integers(1, shape[1]))
    numbers = st.sampled_from([0, -1, LARGEST_VALUE, -2 * LARGEST_VALUE, 3e38]) | st.floats(width=32)
    rows = np.full(shape, data.draw(st.sampled_from([0, -1e6])), np.float32)
    rows[-1, -1], rows[0, 0] = data.draw(numbers), data.draw(numbers)
    sound = all(abs(x) <= largest if j < dimension else True for row in rows for j, x in enumerate(row))
    with patch.object(soundness, "largest_bits", kernel):
        assert is_sound(rows, dimension, largest) == (sound and bool(np.isfinite(rows).all()))


@pytest.mark.parametrize("make", [np.array, torch.tensor])
@pytest.mark.parametrize("largest", [LARGEST_VALUE, np.inf])
def test_sound_rows(make, largest):
    values, state = (0, -1, largest, -largest), (0, 1e38, -1e38)
    for column, value in [*itertools.product((0, 1), values), *itertools.product((2, 3), state)]:
        rows = np.zeros((5, 4), np.float32)
        rows[3, column] = min(max(value, -3e38), 3e38)
        assert is_sound(make(rows), 2, largest)
    values, state = (np.nan, np.inf, -np.inf, 2 * largest, -2 * largest), (np.nan, -np.inf)
    for column, value in [*itertools.product((0, 1), values), *itertools.product((2, 3), state)]:
        rows = np.zeros((5, 4), np.float32)
        rows[3, column] = value
        assert not is_sound(make(rows), 2, largest)
    assert is_sound(make(np.zeros((0, 4), np.float32)), 2, largest)


def test_json_has_null_where_a_number_has_no_name_there():
    content = {"a": [np.nan, 1.5, {"b": -np.inf}], "c": (np.float64("nan"), 2), "d": "NaN"}
    assert strict(json_text(content)) == {"a": [None, 1.5, {"b": None}], "c": [None, 2], "d": "NaN"}


def test_a_set_with_one_class_has_no_auc_and_says_so(tmp_path, capsys):
    log = small_log(tmp_path / "log.parquet", 200)
    table = pq.read_table(log)
    ones = pa.array(np.ones(len(table), np.int8))
    pq.write_table(table.set_column(table.schema.get_field_index("label"), "label", ones), tmp_path / "ones.parquet")
    config = ctr_config(log, "training.epochs=1", valid=tmp_path / "ones.parquet", test=tmp_path / "ones.parquet")
    assert main(["train", str(write_config(tmp_path / "c.yaml", config)), "--out", str(tmp_path / "run")]) == 0
    said = capsys.readouterr()
    assert "note: all 200 examples are a click: no AUC without both classes (null in files)" in said.err
    assert any(line.split() == ["test.auc", "none"] for line in said.out.splitlines())
    assert strict((tmp_path / "run" / "summary.json").read_text())["test.auc"] is None
    lines = [strict(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["auc"] for line in lines if line["kind"] == "evaluation"] == [None]
    assert main(["eval", str(tmp_path / "run")]) == 0
    said = capsys.readouterr()
    assert "all 200 examples are a click" in said.err and "nan" not in said.out
