"""What the battery's cases start from: one small run of each kind, trained once and not to be changed."""

import pytest

from marius_oac.config.link_prediction import Config
from marius_oac.training import local as training
from tests.click_logs import ctr_config, small_log
from tests.graphs import tiny_config


@pytest.fixture(scope="session")
def specimens(graph, tmp_path_factory):
    """Paths by name: graph, run (of links), labels, classes (a run), log, clicks (a run)."""
    folder = tmp_path_factory.mktemp("specimens")
    training.train(tiny_config(graph, "training.epochs=1"), folder / "run")
    names = graph.node_names(range(graph.num_nodes))
    rows = "".join(f"{name}\t{n % 2}\t{('train', 'valid', 'test')[n % 3]}\n" for n, name in enumerate(names))
    (folder / "labels.tsv").write_text("name\tlabel\tsplit\n" + rows)
    tree = {
        "task": "node_classification", "device": "cpu", "threads": 1, "model": {"dimension": 4},
        "data": {"path": str(graph.path), "labels": str(folder / "labels.tsv")},
        "encoder": {"layers": [{"kind": "sage", "neighbors": 2}]}, "training": {"epochs": 1, "batch_size": 64},
    }  # fmt: skip
    training.train(Config.build(tree), folder / "classes")
    log = small_log(folder / "log.parquet", rows=96)
    training.train(ctr_config(log, "training.epochs=1", test=log), folder / "clicks")
    paths = {name: str(folder / name) for name in ("run", "classes", "clicks")}
    return paths | {"graph": str(graph.path), "labels": str(folder / "labels.tsv"), "log": str(log)}
