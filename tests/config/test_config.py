"""Every kind of mistake in a configuration is one line that names file, line and key."""

import copy
import functools
import pickle

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from marius_oac.config import errors
from marius_oac.config.link_prediction import Config
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


def test_all_mistakes_are_told_at_once_each_with_its_line(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text(
        "data: {path: g}\nmodel:\n  decoder: complexx\n  dimention: 8\ntraining:\n  epochs: 0\n"
        "  negatives: {count: 0}\nevaluation:\n  candidates: -4\npipeline: 7\n"
    )
    with pytest.raises(ConfigError) as caught:
        Config.load(path, ["seed=x", "training.epoch=3"])
    error = pickle.loads(pickle.dumps(caught.value))
    assert error.lines == [str(error), *map(str, error.others)]
    told = [line.replace(str(path), "c.yaml").partition(": must")[0].partition(": unk")[0] for line in error.lines]
    assert told == [
        "--set seed", "c.yaml:10: pipeline", "c.yaml:3: model.decoder", "c.yaml:4: model.dimention",
        "c.yaml:6: training.epochs", "c.yaml:7: training.negatives.count", "--set training.epoch",
        "c.yaml:9: evaluation.candidates",
    ]  # fmt: skip


def test_of_many_mistakes_ten_are_told(tmp_path):
    with pytest.raises(ConfigError) as caught:
        Config.build(MINIMAL, [f"model.key{number}=1" for number in range(12)])
    assert len(caught.value.lines) == 11 and caught.value.lines[-1] == "and 2 more"
    with pytest.raises(ConfigError) as caught:
        Config.build(MINIMAL, [f"model.key{number}=1" for number in range(10)])
    assert len(caught.value.lines) == 10 and "key9" in caught.value.lines[-1]


def test_an_unknown_key_stands_for_the_missing_one(tmp_path):
    with pytest.raises(ConfigError) as caught:
        Config.build({"data": {"pathh": "g", "path2": "h"}, "seed": -1})
    assert len(caught.value.lines) == 3 and "required" not in str(caught.value.lines)
    with pytest.raises(ConfigError, match="must be graph") as caught:
        Config.build({"task": "graphs", "data": {"pathh": "g"}})
    assert len(caught.value.lines) == 1


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
        (["training.epochs=0"], "--set training.epochs: must be greater than 0, not 0"),
        (["training.batch_size=-1"], "--set training.batch_size: must be greater than 0, not -1"),
        (["seed=1.5"], "--set seed: must be an integer, not 1.5"),
        (["seed=yes"], "--set seed: must be an integer, not true"),
        (["training.optimizer.learning_rate=.nan"],
         "--set training.optimizer.learning_rate: must be a finite number, not nan"),
        (["pipeline.mode=oca"],
         "--set pipeline.mode: must be 'sync', 'async', 'async-delta' or 'oac', not 'oca'"),
        (["evaluation.candidates=-4"], "--set evaluation.candidates: must be 'all' or a number above 0, not -4"),
        (["training.early_stopping=3"], "--set training.early_stopping: must be a section of keys, not 3"),
        (["data.path=null"], "--set data.path: must be text, not null"),
        (["device=tpu"], "--set device: must be auto, cpu, cuda or cuda:N, not 'tpu'"),
        (["model.dimension=7"], "--set model.dimension: complex needs an even number of floats, not 7"),
        (["pipeline.mode=sync", "pipeline.order=arrival"],
         "--set pipeline.order: 'arrival' needs several batches in flight; mode is 'sync'"),
        (["training.negatives.chunks=2000"],
         "--set training.negatives.chunks: 2000 chunks of a batch of 1000"),
        (["training.regularization.weight=1"],
         "--set training.regularization.weight: set, but regularization.kind is 'none'"),
        (["seed=1.0"], "--set seed: must be an integer, not 1.0"),
        (["seed='1'"], "--set seed: must be an integer, not '1'"),
        (["seed="], "--set seed: must be an integer, not null"),
        (["training.negatives.count=9223372036854775808"],
         "--set training.negatives.count: must be less than or equal to 9223372036854775807, not 9223372036854775808"),
        (["training.optimizer.learning_rate=yes"],
         "--set training.optimizer.learning_rate: must be a number, not true"),
        (["training.optimizer.learning_rate=fast"],
         "--set training.optimizer.learning_rate: must be a number, not 'fast'"),
        (["training.optimizer.decay=.nan"], "--set training.optimizer.decay: must be a finite number, not nan"),
        (["training.optimizer.beta1=1"], "--set training.optimizer.beta1: must be less than 1, not 1"),
        (["training.negatives.degree_fraction=1.5"],
         "--set training.negatives.degree_fraction: must be less than or equal to 1, not 1.5"),
        (["model.norm=3"], "--set model.norm: must be 1 or 2, not 3"),
        (["model.norm=true"], "--set model.norm: must be a number, not true"),
        (["evaluation.filtered='yes'"], "--set evaluation.filtered: must be true or false, not 'yes'"),
        (["evaluation.filtered=1"], "--set evaluation.filtered: must be true or false, not 1"),
        (["evaluation.candidates=some"], "--set evaluation.candidates: must be 'all' or a number above 0, not 'some'"),
        (["data.path=''"], "--set data.path: must not be empty"),
        (['data.path="g\\0"'], "--set data.path: must be text without null characters, not 'g\\x00'"),
        (["data.path=2020-01-02"], "--set data.path: must be text, not 2020-01-02"),
        (["training=3"], "--set training: must be a section of keys, not 3"),
        (["training.early_stopping={}"], "--set training.early_stopping.patience: this key is required"),
        (["training.early_stopping.patience=2", "evaluation.every=0"],
         "--set training.early_stopping: needs evaluation.every >= 1"),
        (["pipeline.mode=async", "pipeline.order=order.npy"],
         "--set pipeline.order: mode 'async' always computes in order of arrival; leave `order` out"),
        (["training={epochs: 0}"], "--set training.epochs: must be greater than 0, not 0"),
        (["training={epochs: 1, epochs: 2}"], "--set training: '{epochs: 1, epochs: 2}' is not a YAML value"),
        (["training.epochs.x=3"], "--set training.epochs: must be an integer, not {'x': 3}"),
        (["training.optimiser.kind=sgd"],
         "--set training.optimiser: unknown key 'optimiser'; did you mean 'optimizer'?"),
        (["storage.compression=1"], "--set storage.compression: unknown key 'compression'; known here: dtype, "
             "memory, path, io, depth, look_ahead, page"),
        (["storage.memory=lots"], "--set storage.memory: must be a size such as 4GiB, not 'lots'"),
        (["storage.memory=3parsecs"], "--set storage.memory: must be a size such as 4GiB, not '3parsecs'"),
        (["storage.memory=-5"], "--set storage.memory: must be a size such as 4GiB, not -5"),
        (["storage.memory=0"], "--set storage.memory: must be greater than 0, not 0"),
        (["storage={memory: 1GiB, page: 5000}"], "--set storage.page: 5000 is not a multiple of 4KiB"),
        (["storage.path=/data"], "--set storage.path: needs storage.memory, else all rows are in memory"),
        (["storage.io=buffered"], "--set storage.io: 'buffered' needs storage.memory, else all rows are in memory"),
        (["storage={io: mmap, memory: 1GiB}"],
         "--set storage.memory: with io 'mmap' the system decides what is in memory; leave `memory` out"),
        (["data.path.x=1"], "--set data.path.x: 'path' is 'g', not a section of keys"),
        (["seed==3"], "--set seed: must be an integer, not '=3'"),
        (["=3"], "--set =3: must look like key.path=value"),
        (["training..epochs=3"], "--set training..epochs=3: must look like key.path=value"),
        (["seed=2020-13-45"], "--set seed: '2020-13-45' is not a YAML value"),
        (["seed=" + "x" * 99], f"--set seed: must be an integer, not '{'x' * 56}..."),
        (["seed"], "--set seed: must look like key.path=value"),
        (["seed=[1"], "--set seed: '[1' is not a YAML value"),
    ],
)  # fmt: skip
def test_a_wrong_override_is_named(overrides, expected, tmp_path):
    assert message(overrides, tmp_path) == expected


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["encoder.layers=[{kind: sage, neighbors: 0}]"],
         "--set encoder.layers.0.neighbors: must be 'all' or a number above 0, not 0"),
        (["encoder={layers: [{kind: sage, neighbors: 10000000000}]}"],
         "--set encoder.layers.0.neighbors: must be 'all' or a number below 2^31, not 10000000000"),
        (["encoder.direction=out"], "c.yaml:5: encoder.layers.1.neighbors: must be 'all' or a number above 0, not -3"),
        (["training.epochs=2"], "c.yaml:5: encoder.layers.1.neighbors: must be 'all' or a number above 0, not -3"),
    ],
)  # fmt: skip
def test_a_mistake_is_where_its_value_comes_from(overrides, expected, tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text(
        "data: {path: g}\nencoder:\n  layers:\n    - {kind: sage, neighbors: 3}\n    - {kind: sage, neighbors: -3}\n"
    )
    with pytest.raises(ConfigError) as caught:
        Config.load(path, overrides)
    assert str(caught.value).replace(str(path), "c.yaml") == expected


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
        ("data: g\n", "c.yaml:1: data: must be a section of keys, not 'g'"),
        ("data:\n", "c.yaml:1: data: must be a section of keys, not null"),
        ("data: {path: g}\n7: 1\nstorage: {}\n",
         "c.yaml:2: 7: unknown key '7'; known here: seed, device, threads, binding, compute, pipeline, storage, "
         "checkpoint, metrics, trackers, stall_after, nodes, task, data, model, encoder, training, evaluation"),
        ("data: {path: g}\nencoder:\n  layers:\n    - {kind: sage}\n    - {kind: sagee}\n",
         "c.yaml:5: encoder.layers.1: `kind` must be one of sage, gat, module, not 'sagee'"),
        ("data: {path: g}\nencoder:\n  layers:\n    - kind: sage\n      neigbors: 3\n",
         "c.yaml:5: encoder.layers.0.neigbors: unknown key 'neigbors'; did you mean 'neighbors'?"),
        ("data: {path: g}\nencoder:\n  layers:\n    - {kind: gat, neighbors: 0}\n",
         "c.yaml:4: encoder.layers.0.neighbors: must be 'all' or a number above 0, not 0"),
        ("data: {path: g}\nencoder: {layers: {kind: sage}}\n",
         "c.yaml:2: encoder.layers: must be a list, not {'kind': 'sage'}"),
        ("data: {path: g}\nencoder: {layers: [sage]}\n",
         "c.yaml:2: encoder.layers.0: must be a section of keys, not 'sage'"),
        ("task: node_classification\ndata: {path: g, labels: l}\nencoder: {layers: [{kind: sage, dimension: 3}]}\n",
         "c.yaml:3: encoder.layers: the last one makes a score of each class; leave its `dimension` out"),
        ("task: node_classification\ndata: {path: g}\nencoder: {layers: [{kind: sage}]}\n",
         "c.yaml:2: data.labels: this key is required"),
        ("data: {path: g}\nseed: 2020-13-45\n",
         "c.yaml:2: '2020-13-45' is not a number or date; put quotes around text"),
        ("data: {path: g}\nseed: !!int many\n", "c.yaml:2: 'many' is not a number or date; put quotes around text"),
        ("data: {path: g}\nseed: " + "1" * 5000 + "\n",
         f"c.yaml:2: '{'1' * 56}... is not a number or date; put quotes around text"),
        ("data: &self {path: *self}\n", "c.yaml: a value contains itself, or is nested too deeply"),
        ("[" * 3000, "c.yaml: a value contains itself, or is nested too deeply"),
        ("data: {path: g}\n---\nseed: 1\n",
         "c.yaml:2: expected a single document in the stream, but found another document"),
        ("data: g\0\n", "c.yaml: special characters are not allowed"),
        ("data: {path: g}\nseed: !python/object 3\n",
         "c.yaml:2: could not determine a constructor for the tag '!python/object'"),
        ("\tdata: g\n", "c.yaml:1: found character '\\t' that cannot start any token"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_named_with_its_line(text, expected, tmp_path):
    assert message(text, tmp_path) == expected


def test_an_override_does_not_hide_what_is_wrong_in_the_file(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("data: {path: g}\ntraining: 5\n")
    with pytest.raises(ConfigError, match="--set training.epochs: 'training' is 5, not a section of keys"):
        Config.load(path, ["training.epochs=3"])
    path.write_text("data: {path: g}\ntraining: {epochs: 0}\n")
    with pytest.raises(ConfigError, match=r"c.yaml:2: training.epochs: must be greater than 0, not 0"):
        Config.load(path, ["training.batch_size=3"])


def test_the_last_override_of_a_key_counts_and_a_section_may_be_switched_on_and_off():
    config = Config.build(MINIMAL, ["seed=1", "seed=2", "training.early_stopping.patience=3"])
    assert (config.seed, config.training.early_stopping.patience) == (2, 3)
    assert config.replace("training.early_stopping=").training.early_stopping is None


path_of = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1)
settings_of = {
    "seed": st.integers(0, 2**63 - 1),
    "device": st.sampled_from(["auto", "cpu", "cuda", "cuda:3"]),
    "model.dimension": st.integers(1, 2**19).map(lambda number: 2 * number),
    "model.init_scale": st.floats(0, exclude_min=True, allow_infinity=False),
    "training.early_stopping": st.none() | st.fixed_dictionaries({"patience": st.integers(1, 9)}),
    "training.optimizer.learning_rate": st.floats(0, exclude_min=True, allow_infinity=False),
    "evaluation.candidates": st.just("all") | st.integers(1, 2**63 - 1),
    "evaluation.filtered": st.booleans(),
    "pipeline.order": st.sampled_from(["plan", "arrival", "runs/a/order.npy"]),
}


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.fixed_dictionaries({"data.path": path_of}, optional=settings_of))
def test_what_is_dumped_is_loaded_again(tmp_path, values):
    tree = {}
    for key, value in values.items():
        *sections, last = key.split(".")
        functools.reduce(lambda here, part: here.setdefault(part, {}), sections, tree)[last] = value
    config = Config.build(tree)
    path = tmp_path / "c.yaml"
    path.write_text(config.dump(), encoding="utf-8")
    again = Config.load(path)
    assert again == config and again.dump() == config.dump()
    for key, value in values.items():
        found = functools.reduce(getattr, key.split("."), again)
        assert (found.model_dump(include={"patience"}) if isinstance(value, dict) else found) == value


def test_sections_are_frozen_too():
    config = Config.build(MINIMAL)
    for change in (lambda: setattr(config.training, "epochs", 2), lambda: setattr(config.data, "other", 1)):
        with pytest.raises(ValidationError, match="frozen"):
            change()


def test_unreadable_files(tmp_path):
    with pytest.raises(ConfigError, match="none.yaml: no such file or directory$"):
        Config.load(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match="is a folder, not a file$"):
        Config.load(tmp_path)
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="is not UTF-8 text"):
        Config.load(tmp_path / "binary.yaml")


def test_binding_may_be_off_though_yaml_takes_the_word_for_false(tmp_path):
    (tmp_path / "c.yaml").write_text("data: {path: g}\nbinding: off\n")
    assert Config.load(tmp_path / "c.yaml").binding == "off"
    assert Config.load(tmp_path / "c.yaml", ["binding=auto"]).replace("binding=off").binding == "off"
    with pytest.raises(ConfigError, match="binding: must be 'auto' or 'off', not true"):
        Config.load(tmp_path / "c.yaml", ["binding=on"])


def test_a_text_that_is_parsed_again_says_the_same_whatever_was_done_with_the_first_answer():
    for text in ("a: &x {b: [1]}\nc: *x\n", "a: &x {b: [1]}\nc: {<<: *x, b: 2}\n"):
        tree, lines = errors.parse(text, "x")
        before = copy.deepcopy((tree, lines))
        tree["a"]["b"].append(2)
        lines.clear()
        assert errors.parse(text, "x") == before
    for source in ("one", "two"):
        with pytest.raises(ConfigError, match=f"{source}:2: a: this key stands here twice"):
            errors.parse("a: 1\na: 2\n", source)
