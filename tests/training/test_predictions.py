"""The file of predictions: the suffix says what is written."""

import gzip
import json

import numpy as np
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest

from marius_oac import TrainedClickModel, train
from marius_oac.tasks.ctr import trained
from marius_oac.tasks.ctr.predict import write_predictions
from tests.click_logs import ctr_config, small_log
from tests.run_folders import says


@pytest.fixture(scope="module")
def clicks(tmp_path_factory):
    """A run, and a log to predict, whose name holds a comma and a quote."""
    folder = tmp_path_factory.mktemp("clicks")
    train(ctr_config(small_log(folder / "log.parquet"), "training.epochs=1"), folder / "run")
    return folder / "run", small_log(folder / 'today, "late".parquet', rows=70, seed=1)


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".csv.gz", ".TSV.GZ", ".pq"])
def test_the_suffix_decides(clicks, tmp_path, command, suffix):
    run, log = clicks
    for out in (tmp_path / "o.parquet", tmp_path / f"o{suffix}"):
        assert command("predict", run, "--data", log, "--out", out)[0] == 0
    expected = pq.read_table(tmp_path / "o.parquet")
    path = tmp_path / f"o{suffix}"
    if suffix == ".pq":
        assert pq.read_table(path).equals(expected)
        return
    content = path.read_bytes()
    content = gzip.decompress(content) if suffix.lower().endswith(".gz") else content
    assert content.startswith(b'"file"') or content.startswith(b"file")
    path.with_suffix(".plain").write_bytes(content)
    delimiter = "\t" if "t" in suffix.lower()[:3] else ","
    found = pa_csv.read_csv(path.with_suffix(".plain"), parse_options=pa_csv.ParseOptions(delimiter=delimiter))
    assert found.column_names == ["file", "row", "probability"] and found.num_rows == 70
    assert set(found["file"].to_pylist()) == {str(log)} and found["row"].to_pylist() == list(range(70))
    read = found["probability"].to_numpy().astype(np.float32)
    assert np.array_equal(read, expected["probability"].to_numpy()), "all digits are there"


@pytest.mark.parametrize("name", ["o", "o.txt", "o.gz", "o.parquet.gz", "o.json"])
def test_another_suffix_is_refused_before_anything_is_done(clicks, tmp_path, command, name):
    run, log = clicks
    code, _, err = command("predict", run, "--data", log, "--out", tmp_path / name)
    assert code == 2 and says(err, name, "its suffix says what is written, one of .parquet, .csv, .tsv, .csv.gz")
    assert not list(tmp_path.iterdir())


def test_rows_are_counted_in_each_file(tmp_path):
    parts = [np.full(size, 0.25, np.float32) for size in (2, 1, 3)]
    write_predictions(tmp_path / "x", tmp_path / "x.csv", [("a", 3), ("b", 3)], parts)
    lines = (tmp_path / "x").read_text().splitlines()
    assert lines[1:] == ["a,0,0.25", "a,1,0.25", "a,2,0.25", "b,0,0.25", "b,1,0.25", "b,2,0.25"]


def test_calibration_is_of_the_examples_that_are_evaluated(clicks, monkeypatch):
    run, log = clicks
    with TrainedClickModel.open(run) as model:
        assert model.quality().measured == 0
        model.config = model.config.replace(f"data.test={json.dumps([str(log)])}", "evaluation.batch_size=20")
        found, metrics = model.quality(), model.evaluate("test").values
        parts = [(each.count, each.predicted, each.clicked) for each in found.bins]
        counts, predicted, clicked = zip(*parts, strict=True)
        assert found.split == "test" and found.measured == sum(counts) == metrics["examples"] == 70
        ratio = np.average(predicted, weights=counts) / np.average(clicked, weights=counts)
        assert ratio == pytest.approx(metrics["calibration"], rel=1e-5)
        tables = [model.checkpoint.array(name, "values") for name in model.checkpoint.tables()]
        assert found.plane.rows == max(map(len, tables))
        monkeypatch.setattr(trained, "MOST_EXAMPLES", 1)
        model.config = model.config.replace(f"data.test={json.dumps([str(log), str(log.parent / 'log.parquet')])}")
        assert model.quality().measured == 70, "whole blocks, as many as are needed"
