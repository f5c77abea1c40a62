"""Every kind of mistake in a configuration is one line that names file, line and key."""

import pytest
import yaml
from pydantic import ValidationError

from marius_oac.config import Config
from marius_oac.errors import ConfigError

MINIMAL = {"data": {"path": "g"}}


def message(text_or_overrides, tmp_path):
    """The error of a YAML text, or of overrides of the minimal config."""
    path = tmp_path / "c.yaml"
    overrides = []
    if isinstance(text_or_overrides, str):
        path.write_text(text_or_overrides)
    else:
        path.write_text(yaml.safe_dump(MINIMAL))
        overrides = text_or_overrides
    with pytest.raises(ConfigError) as caught:
        Config.load(path, overrides)
    text = str(caught.value)
    assert "\n" not in text and caught.value.exit_code == 2
    return text.replace(str(path), "c.yaml")


def test_five_lines_are_enough(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("data:\n  path: g\ntraining:\n  epochs: 3\n  batch_size: 10\n")
    config = Config.load(path, ["pipeline.mode=sync", "seed=7", "training.early_stopping.patience=2"])
    assert (config.training.epochs, config.seed, config.pipeline.mode) == (3, 7, "sync")
    assert config.training.early_stopping.patience == 2
    path.write_text(config.dump())
    assert Config.load(path) == config
    with pytest.raises(ValidationError):
        config.seed = 1


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["training.epoch=3"], "--set training.epoch: unknown key 'epoch'; did you mean 'epochs'?"),
        (["batch_size=3"], "--set batch_size: unknown key 'batch_size'; did you mean 'training.batch_size'?"),
        (["training.epochs=0"], "--set training.epochs: input should be greater than 0, not 0"),
        (["training.batch_size=-1"], "--set training.batch_size: input should be greater than 0, not -1"),
        (["seed=1.5"], "--set seed: input should be a valid integer, not 1.5"),
        (["seed=yes"], "--set seed: input should be a valid integer, not True"),
        (["training.optimizer.learning_rate=.nan"],
         "--set training.optimizer.learning_rate: input should be a finite number, not nan"),
        (["pipeline.mode=oca"],
         "--set pipeline.mode: input should be 'sync', 'async', 'async-delta' or 'oac', not 'oca'"),
        (["evaluation.candidates=-4"], "--set evaluation.candidates: must be 'all' or a number above 0, not -4"),
        (["training.early_stopping=3"], "--set training.early_stopping: must be a section of keys, not 3"),
        (["data.path=null"], "--set data.path: input should be a valid string, not None"),
        (["device=tpu"], "--set device: must be auto, cpu, cuda or cuda:N, not 'tpu'"),
        (["model.dimension=7"], "--set model.dimension: complex needs an even number of floats, not 7"),
        (["pipeline.mode=sync", "pipeline.order=arrival"],
         "--set pipeline.order: 'arrival' needs several batches in flight; mode is 'sync'"),
        (["training.negatives.chunks=2000"],
         "--set training.negatives.chunks: 2000 chunks of a batch of 1000"),
        (["training.regularization.weight=1"],
         "--set training.regularization.weight: set, but regularization.kind is 'none'"),
        (["seed"], "--set seed: must look like key.path=value"),
        (["seed=[1"], "--set seed: '[1' is not a YAML value"),
    ],
)  # fmt: skip
def test_a_wrong_override_is_named(overrides, expected, tmp_path):
    assert message(overrides, tmp_path) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("data:\n  path: g\ntraining:\n  epoch: 3\n",
         "c.yaml:4: training.epoch: unknown key 'epoch'; did you mean 'epochs'?"),
        ("data:\n  path: g\nmodel:\n  decoder: complex\n  dimension: 9\n",
         "c.yaml:5: model.dimension: complex needs an even number of floats, not 9"),
        ("seed: 1\n", "c.yaml: data: this key is required"),
        ("data: {}\n", "c.yaml:1: data.path: this key is required"),
        ("- 1\n", "c.yaml: must be a mapping of keys, such as `data: {path: ...}`"),
        ("", "c.yaml: must be a mapping of keys, such as `data: {path: ...}`"),
        ("data: [g\n", "c.yaml:2: expected ',' or ']', but got '<stream end>'"),
        ("data: {path: g}\nseed: 1\nseed: 2\n", "c.yaml:3: seed: this key stands here twice"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_named_with_its_line(text, expected, tmp_path):
    assert message(text, tmp_path) == expected


def test_unreadable_files(tmp_path):
    with pytest.raises(ConfigError, match="no such file"):
        Config.load(tmp_path / "none.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="is not UTF-8 text"):
        Config.load(tmp_path / "binary.yaml")
