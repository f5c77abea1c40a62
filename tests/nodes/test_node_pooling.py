"""Training with bags pooled at the shards, for real: the tables of a run whose trainers pool, up to rounding."""

import numpy as np
import pytest
import yaml

from benchmarks.generate.log import HISTORY, LogSpec, write_day
from marius_oac.cli import commands as cli
from marius_oac.runs.folder.folder import RunFolder
from tests.nodes.test_node_training import SMOOTH, digests, furthest, run

pytestmark = pytest.mark.usefixtures("forked_programs")
BATCHES = 200


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """A click log with two bags, of which the longer one has the keys of a single-valued feature."""
    folder = tmp_path_factory.mktemp("pooled")
    spec = LogSpec(categorical=3, numeric=2, keys=3000, skew=1.05, lists=True)
    write_day(folder / "day.parquet", 0, 64 * BATCHES, spec)
    write_day(folder / "next.parquet", 1, 2000, spec)
    schema = {name: columns for name, columns in spec.schema().items() if name != "sequences"}
    bags = [
        {"name": "tags", "pooling": "mean", "pool_at": "shard"},
        {"name": "history", "vocabulary": "c0", "max_values": HISTORY, "pool_at": "shard"},
    ]
    tree = {
        "task": "ctr",
        "data": {
            "train": str(folder / "day.parquet"), "valid": str(folder / "next.parquet"), **schema,
            "multi_valued": bags,
        },
        "model": {"network": "deepfm", "dimension": 4, "hidden": [16]},
        "training": {"batch_size": 64, "epochs": 1, "embedding_l2": 1e-4},
    }  # fmt: skip
    (folder / "shard.yaml").write_text(yaml.safe_dump(tree))
    for bag in bags:
        bag["pool_at"] = "trainer"
    (folder / "trainer.yaml").write_text(yaml.safe_dump(tree))
    return folder


def train(config, out, pool_at, nodes, *overrides):
    settings = [word for each in (SMOOTH, *overrides) for word in ("--set", each)]
    command = ["train", config / f"{pool_at}.yaml", *settings, "--out", out]
    if nodes:
        run(*command, "--local-nodes", nodes)
    else:
        assert cli.main([str(word) for word in command]) == 0
    return out


@pytest.fixture(scope="module")
def pooled(config, tmp_path_factory):
    return train(config, tmp_path_factory.mktemp("trained") / "shard", "shard", 2)


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [0, 2])
def test_sums_of_shards_train_as_rows_do(config, tmp_path, pooled, nodes):
    plain = train(config, tmp_path / "trainer", "trainer", nodes)
    assert 0 < furthest(plain, pooled) <= 1e-5
    one, other = (RunFolder.open(path).summary() for path in (plain, pooled))
    assert other["training.batches"] >= BATCHES
    assert other["rows.bytes_pulled"] != one.get("rows.bytes_pulled")
    metrics = [{name: value for name, value in each.items() if name.startswith("valid.")} for each in (one, other)]
    assert metrics[0] and metrics[0].keys() == metrics[1].keys()
    assert np.allclose(list(metrics[0].values()), list(metrics[1].values()), atol=1e-5)


@pytest.mark.slow
def test_sums_that_are_pulled_ahead_have_the_bits_of_one_batch_at_a_time(config, tmp_path, pooled):
    sync = train(config, tmp_path / "sync", "shard", 2, "pipeline.mode=sync")
    assert digests(sync) == digests(pooled)
    assert RunFolder.open(pooled).summary()["training.replaced_rows"] > 0


@pytest.mark.slow
def test_one_node_that_pools_has_the_bits_of_the_single_box(config, tmp_path):
    """Its sums are whole, and their gradients are added up in the order in which the box adds up the rows'."""
    assert furthest(train(config, tmp_path / "box", "shard", 0), train(config, tmp_path / "one", "shard", 1)) == 0


@pytest.mark.slow
def test_freely_sums_are_trained_too(config, tmp_path, pooled):
    free = train(config, tmp_path / "free", "shard", 2, "pipeline.mode=async", "nodes.dense.kind=easgd")
    assert digests(free) != digests(pooled)
    one, other = (RunFolder.open(path).summary()["valid.auc"] for path in (free, pooled))
    assert abs(one - other) < 0.05 and min(one, other) > 0.6
