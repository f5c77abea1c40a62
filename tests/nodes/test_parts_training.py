"""Any number of trainers ends with the same bits of rows and dense parameters, with `nodes.parts`."""

import pytest

from benchmarks.nodes.trainers import train_together
from tests.click_logs import ctr_config, small_log
from tests.nodes.test_node_tasks import SAGE, labelled, links
from tests.nodes.test_node_training import OFTEN, configs, digests, interrupt, kill, run, start
from tests.run_folders import slow

__all__ = ["configs", "labelled"]
pytestmark = pytest.mark.usefixtures("forked_programs", "all_code_is_known")


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    return small_log(tmp_path_factory.mktemp("log") / "log.parquet", rows=333)


def on_any_number(config, counts, parts=8):
    """What trainers find, `oac` with many in flight; all that is said of their bits is the same."""
    found = [train_together(config.replace(f"nodes.parts={parts}", "pipeline.in_flight=8"), count) for count in counts]
    for each in found:
        assert each.digests == found[0].digests and each.replaced > 0
        assert {**each.test, "seconds": 0} == {**found[0].test, "seconds": 0}
    return found


@pytest.mark.parametrize("counts, parts", [((1, 3), 8), slow((1, 2, 3, 4, 5, 6, 7, 8), 8), slow((1, 5), 6)])
def test_links(labelled, counts, parts):
    base = links(labelled)
    found = on_any_number(base, counts, parts)
    off = train_together(base, counts[-1])
    assert off.digests != found[0].digests


@pytest.mark.slow
def test_a_graph_encoder_with_dropout(labelled):
    on_any_number(links(labelled, SAGE, "encoder.dropout=0.2", "encoder.embeddings=5"), (1, 3, 8))


@pytest.mark.slow
def test_clicks_with_batch_norm_and_dropout(log):
    settings = ["model.batch_norm=true", "model.dropout=0.2", "training.epochs=1"]
    on_any_number(ctr_config(log, *settings, test=log), (1, 3, 8))


NETS = {
    "graph": ["training.batch_size=660"],
    "clicks": ["training.batch_size=128", "model.batch_norm=true", "model.dropout=0.2"],
    "sage": ["training.batch_size=1320", SAGE, "encoder.dropout=0.2", "encoder.embeddings=5",
             "training.regularization.weight=0", "model.decoder=distmult"],
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("net", NETS)
def test_killed_and_stopped_and_gone_on_with_by_other_numbers_of_trainers(configs, tmp_path, net):
    """Processes: one of two is killed, four go on and are stopped, one ends; as one trainer that did all."""
    task = configs / ("clicks.yaml" if net == "clicks" else "graph.yaml")
    parts = [word for key in ("nodes.parts=4", *NETS[net]) for word in ("--set", key)]
    run("train", task, "--local-nodes", 1, "--out", tmp_path / "one", *parts, "--set", "training.epochs=3")
    path, often = tmp_path / "several", [*OFTEN, "--set", "checkpoint.every_batches=10"]
    kill(start("train", task, "--local-nodes", 2, "--out", path, *parts, *often), path, 15, 1)
    interrupt(start("resume", path, "--local-nodes", 4, "--set", "training.epochs=3"), path, 25)
    run("resume", path, "--local-nodes", 1)
    assert digests(path) == digests(tmp_path / "one")
