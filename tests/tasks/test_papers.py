"""The papers' experiments in examples/papers: each trains two batches of a small stand-in for its data."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from benchmarks.nodes.trainers import train_together
from marius_oac import Config, train
from tests.graphs import tiny_graph

EXAMPLES = sorted((Path(__file__).parents[2] / "examples" / "papers").glob("*.yaml"))
SMALL = ("device=cpu", "threads=1", "training.epochs=1")
BATCHES = {  # of the papers: edges, or examples of all trainers
    "oac_setup_1": 50_000, "oac_setup_2": 500_000, "kstep": 8 * 8 * 1000, "gba_criteo": 32 * 40_000,
    "gba_alimama": 32 * 3000, "gba_private": 64 * 6400, "shadow_easgd": 20 * 24 * 200, "shadow_ma": 20 * 24 * 200,
    "shadow_bmuf": 20 * 24 * 200,
}  # fmt: skip


def stand_in(data, folder, rows):
    """A file with the columns that a configuration of clicks names."""
    generator = np.random.default_rng(0)
    columns = {data.label.column: np.arange(rows) % 2}
    if data.weight:
        columns[data.weight.column] = generator.exponential(5.0, rows)
    columns |= {each.name: generator.integers(0, 50, rows) for each in data.numeric}
    columns |= {each.name: [f"{key:08x}" for key in generator.integers(0, 9, rows)] for each in data.categorical}
    for each in (*data.multi_valued, *data.sequences):
        lists = [[f"{key:08x}" for key in generator.integers(0, 9, size)] for size in generator.integers(0, 6, rows)]
        columns[each.name] = pa.array(lists, pa.list_(pa.string()))
    table = pa.table({name: columns[name] for name in data.columns or columns})
    if data.format == "csv":
        with pa.CompressedOutputStream(str(folder / "day_0.gz"), "gzip") as file:
            options = pa.csv.WriteOptions(include_header=False, delimiter=data.delimiter, quoting_style="none")
            pa.csv.write_csv(table, file, options)
        return folder / "day_0.gz"
    pq.write_table(table, folder / "day_0.parquet")
    return folder / "day_0.parquet"


def test_all_are_here():
    assert [path.stem for path in EXAMPLES] == sorted(BATCHES)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_two_batches(path, tmp_path):
    config = Config.load(path)
    assert config.training.batch_size == BATCHES[path.stem]
    if config.task == "graph":
        graph = tiny_graph(tmp_path)
        half = graph.edges("train").shape[0] // 2
        small = [f"data.path={graph.path}", f"training.batch_size={half}", "evaluation.candidates=100"]
        run = train(Config.load(path, [*SMALL, *small]), tmp_path / "run")
        assert run.summary["training.batches"] == 2 and run.summary["test.unfiltered.mrr"] > 0
        return
    file = stand_in(config.data, tmp_path, 64)
    overrides = [
        *SMALL,
        f"data.train={file}",
        f"data.test={file}",
        "training.batch_size=32",
        "keys.capacity=300",
        "model.hidden=[8]",
    ]
    dispatched = ["nodes.mode_options.parts=2"] if config.nodes.dispatches else []
    bottom = ["model.bottom=[8]"] if config.model.network == "dlrm" else []
    found = train_together(Config.load(path, [*overrides, *dispatched, *bottom]), 2)
    assert 0 < found.train_loss < 10 and found.test["examples"] == 64
    if config.predicts_batches:
        assert found.predicted[0]["examples"] == 64
