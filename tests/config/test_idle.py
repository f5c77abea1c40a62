"""Settings that do nothing in a run are told of, in one line each."""

import pytest

from marius_oac.config.idle import idle_settings
from marius_oac.config.link_prediction import Config
from tests.click_logs import ctr_config
from tests.graphs import tiny_config
from tests.run_folders import write_config


@pytest.mark.parametrize(
    "settings, told",
    [
        (["nodes.mode=gba"], "nodes.mode does nothing here: the run is on one machine, without --nodes"),
        (["nodes.dense.kind=kstep"], "nodes.dense does nothing here: the run is on one machine, without --nodes"),
        (["model.norm=1"], "model.norm does nothing here: model.decoder is 'complex'"),
        (["storage.page=8192"], "storage.page does nothing here: all rows are in memory"),
        (["training.regularization.kind=n3"],
         "training.regularization.kind 'n3' does nothing here: its weight is 0"),
        (["training.loss.margin=3"], "training.loss.margin does nothing here: training.loss.kind is 'softmax'"),
        (["training.negatives.all=true", "training.negatives.count=9"],
         "training.negatives.count does nothing here: training.negatives.all is true"),
        (["evaluation.degree_fraction=0.5"],
         "evaluation.degree_fraction does nothing here: evaluation.candidates is 'all'"),
        (["training.optimizer.beta1=0.5"],
         "training.optimizer.beta1 does nothing here: training.optimizer.kind is 'adagrad'"),
        (["compute.products=torch", "compute.precision=bfloat16"],
         "compute.products does nothing here: compute.precision is 'bfloat16'"),
        (["compute.products=torch", "compute.precision=tf32"], None),
        (["model.norm=1", "model.decoder=transe"], None),
        (["storage.page=8192", "storage.memory=1GiB"], None),
        (["training.regularization={kind: n3, weight: 0.1}"], None),
        ([], None),
    ],
)  # fmt: skip
def test_a_setting_that_does_nothing_is_told_of(settings, told):
    config = Config.build({"data": {"path": "g"}}, settings)
    assert idle_settings(config) == ([told] if told else [])
    assert idle_settings(config.replace()) == idle_settings(config), "also as a run's config.yaml has it"


def test_so_it_is_of_click_logs(tmp_path):
    network = tmp_path / "own.py"
    config = ctr_config(tmp_path / "log.parquet", "model.cross_layers=5", "nodes.packing=even")
    assert idle_settings(config) == [
        "model.cross_layers does nothing here: model.network is 'deepfm'",
        "nodes.packing does nothing here: the run is on one machine, without --nodes",
    ]
    idle = config.replace("model.cross_layers=3", "nodes.packing=measured", "model.auxiliary_loss=0.5",
                          "training.progressive_by=batch")  # fmt: skip
    assert idle_settings(idle) == [
        "model.auxiliary_loss does nothing here: model.network is 'deepfm'",
        "training.progressive_by does nothing here: training.progressive is false",
    ]
    assert idle_settings(config.replace(f"model.network={network}:Net", "nodes.packing=measured")) == []


def test_train_says_it_and_resume_says_what_is_new(command, graph, tmp_path):
    config = write_config(tmp_path / "c.yaml", tiny_config(graph, "model.norm=1", "training.epochs=1"))
    code, _, err = command("train", config, "--out", tmp_path / "run")
    notes = [line for line in err if line.startswith("note: ")]
    assert code == 0 and notes == ["note: model.norm does nothing here: model.decoder is 'complex'"]
    code, _, err = command("resume", tmp_path / "run", "--set", "training.epochs=2", "--set", "nodes.mode=gba")
    notes = [line for line in err if line.startswith("note: ")]
    assert code == 0 and notes == ["note: nodes.mode does nothing here: the run is on one machine, without --nodes"]
