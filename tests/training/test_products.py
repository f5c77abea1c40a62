"""Which library multiplies a run's matrices: chosen when it begins, kept when it goes on."""

import json

import pytest
import yaml

import marius_oac
from marius_oac import Config
from marius_oac.errors import InputError
from marius_oac.models.compute.multiply import Layer, Times
from marius_oac.nodes.groups.thread_group import ThreadGroup
from marius_oac.nodes.sharded.place import agreed_products
from marius_oac.runs import arithmetic
from marius_oac.tasks.registry import entry_of
from marius_oac.training import products
from tests.graphs import tiny_graph
from tests.nodes.worlds import together

CPU = {"device": "cpu", "data": {"path": "g"}}
LONGER = {"epochs": 2, "negatives": {"count": 9}}


@pytest.fixture(autouse=True)
def measured(monkeypatch):
    """`measured(ratio)`: torch is so many times faster; returns the layers that are asked for. Nothing is kept."""
    monkeypatch.delenv("OPENBLAS_CORETYPE", raising=False)
    monkeypatch.setattr(products, "cache_folder", lambda: None)

    def set_to(ratio):
        asked = []
        monkeypatch.setattr(products, "times_of", lambda layer: asked.append(layer) or Times(ratio, 1.0))
        return asked

    return set_to


def graph(**changes):
    return Config.build(CPU | {"model": {"dimension": 40}} | changes)


@pytest.mark.parametrize("ratio, library", [(0.5, "numpy"), (1.1, "numpy"), (1.2, "torch")])
def test_auto_is_the_faster_library_on_the_runs_own_shapes(measured, ratio, library):
    asked = measured(ratio)
    config = graph(training={"batch_size": 600, "negatives": {"count": 70, "chunks": 3}})
    assert products.chosen(config) == (library, [])
    assert asked == [Layer(200, 40, 70)]


@pytest.fixture
def kept(monkeypatch, tmp_path):
    """The folder where measured times are kept."""
    monkeypatch.setattr(products, "cache_folder", lambda: tmp_path / "cache")
    return tmp_path / "cache"


def test_a_machine_keeps_what_was_measured_first(measured, monkeypatch, kept):
    measured(1.2)
    assert products.chosen(graph()) == ("torch", [])
    asked = measured(1.1)
    assert products.chosen(graph()) == ("torch", []) and not asked
    (file,) = kept.iterdir()
    assert json.loads(file.read_text()) == [1.2, 1.0]
    assert products.chosen(graph(model={"dimension": 42})) == ("numpy", []) and len(asked) == 1
    monkeypatch.setattr(products.blas, "kernels", lambda: "Other")
    assert products.chosen(graph()) == ("numpy", []) and len(asked) == 2


@pytest.mark.parametrize(
    "text", ["", "[1.0]", "[1, 2, 3]", "[0, 1]", "[1, NaN]", "[1, Infinity]", '["a", 1]', "{}", "7", "\xff"]
)
def test_kept_times_that_are_damaged_are_measured_again(measured, kept, text):
    measured(1.2)
    products.chosen(graph())
    (file,) = kept.iterdir()
    file.write_bytes(text.encode("latin-1"))
    asked = measured(0.5)
    assert products.chosen(graph()) == ("numpy", []) and len(asked) == 1
    assert json.loads(file.read_text()) == [0.5, 1.0]


def test_where_nothing_can_be_kept_the_library_is_measured(measured, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setattr(products, "cache_folder", lambda: tmp_path / "file")
    asked = measured(1.2)
    assert products.chosen(graph()) == products.chosen(graph()) == ("torch", []) and len(asked) == 2


def test_what_is_set_is_not_measured(measured):
    asked = measured(3)
    assert products.chosen(graph(compute={"products": "numpy"})) == ("numpy", []) and not asked


@pytest.mark.parametrize("library, then", [("auto", "torch's are used in training"), ("numpy", "which is numpy")])
def test_kernels_that_the_environment_forces_are_named_where_they_are_slow(measured, monkeypatch, library, then):
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Haswell")
    measured(1.1)
    assert not products.chosen(graph(compute={"products": library}))[1]
    measured(1.9)
    _, (line,) = products.chosen(graph(compute={"products": library}))
    assert line.startswith("OPENBLAS_CORETYPE=Haswell is set: NumPy's products take 1.9 x the time of torch's here")
    assert line.endswith(then)


def test_steps_without_such_products_are_left_alone(measured):
    asked = measured(3)
    for change in (
        {"model": {"decoder": "transe"}}, {"model": {"decoder": "mine.py:Decoder"}}, {"device": "cuda"},
        {"compute": {"precision": "bfloat16"}},
    ):  # fmt: skip
        assert products.chosen(graph(**change)) == ("auto", []) and not asked


@pytest.mark.parametrize(
    "tree, layer",
    [
        ({"data": {"path": "g"}, "training": {"negatives": {"all": True}}}, Layer(256, 100, 512)),
        ({"data": {"path": "g"}, "encoder": {"layers": [{"kind": "sage", "dimension": 30}, {"kind": "gat"}]}},
         Layer(1000, 100, 30)),
        ({"task": "node_classification", "data": {"path": "g", "labels": "l.csv"}, "model": {"dimension": 50},
          "encoder": {"layers": [{"kind": "module", "module": "a.py:b"}, {"kind": "gat", "heads": 2}]}},
         Layer(1000, 50, 50)),
        ({"task": "ctr", "data": {"train": "a.csv", "numeric": ["n"], "categorical": ["a", "b", "c"]},
          "model": {"network": "deepfm", "hidden": [10, 20], "dimension": 8}}, Layer(4096, 25, 10)),
        ({"task": "ctr", "data": {"train": "a.csv", "numeric": ["n"], "categorical": ["a", "b", "c"]},
          "model": {"network": "dlrm", "hidden": [10, 5], "bottom": [7, 9], "dimension": 8}}, Layer(4096, 7, 9)),
        ({"task": "ctr", "data": {"train": "a.csv", "categorical": ["a", "b", "c"]},
          "model": {"network": "dcnv2", "hidden": [10], "dimension": 8}}, Layer(4096, 24, 24)),
        ({"task": "ctr", "data": {"train": "a.csv", "categorical": ["a"]},
          "model": {"network": "lr", "hidden": [], "dimension": 8}}, Layer(4096, 8, 1)),
    ],
)  # fmt: skip
def test_the_largest_layer_of_each_task(tree, layer):
    config = Config.build(tree)
    assert entry_of(config).largest_layer(config) == layer


@pytest.fixture
def tiny(tmp_path):
    return tiny_graph(tmp_path / "g").path


def trained(tiny, out, **changes):
    tree = CPU | {"data": {"path": str(tiny)}, "model": {"dimension": 8}, "threads": 1}
    return marius_oac.train(Config.build(tree | {"training": {"epochs": 1, "negatives": {"count": 9}}} | changes), out)


def library_of(path):
    return yaml.safe_load((path / "config.yaml").read_text())["compute"]["products"]


def test_a_run_records_the_library_and_goes_on_with_it(measured, tiny, tmp_path, caplog):
    measured(2)
    run = trained(tiny, tmp_path / "run").path
    assert library_of(run) == "torch" and json.loads((run / "run.json").read_text())["arithmetic"][
        "products"
    ].startswith("torch ")
    assert "torch " in json.loads((run / "summary.json").read_text())["machine"]
    measured(0.5)
    whole = trained(tiny, tmp_path / "whole", compute={"products": "torch"}, training=LONGER)
    for change in ("training.epochs=2", "compute.products=auto"):
        marius_oac.resume(run, ["training.epochs=2", change])
        assert library_of(run) == "torch" and not [line for line in caplog.messages if "bits" in line]
    ours, theirs = (json.loads((each / "summary.json").read_text()) for each in (run, whole.path))
    assert ours["tables.entities.sha256"] == theirs["tables.entities.sha256"]


def test_a_run_may_go_on_with_the_other_library_and_says_so(measured, tiny, tmp_path, caplog, monkeypatch):
    measured(1)
    run = trained(tiny, tmp_path / "run").path
    assert library_of(run) == "numpy"
    monkeypatch.setattr(
        arithmetic, "digest_of", lambda sample: sample.step.close() or "0" * 64
    )  # so small, they are alike
    marius_oac.resume(run, ["training.epochs=2", "compute.products=torch"])
    assert library_of(run) == "torch"
    (line,) = [line for line in caplog.messages if "other bits" in line]
    assert "products by torch " in line and "the last bits may differ" in line


def test_slow_kernels_are_noted_once_the_data_are_found(measured, monkeypatch, tiny, tmp_path, caplog):
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Haswell")
    measured(2)
    with pytest.raises(InputError):
        trained(tmp_path / "none", tmp_path / "run")
    assert not caplog.messages
    trained(tiny, tmp_path / "run")
    assert len([line for line in caplog.messages if line.startswith("OPENBLAS_CORETYPE=Haswell is set")]) == 1


def test_a_run_of_the_version_before_goes_on_with_numpy(measured, tiny, tmp_path):
    measured(1)
    run = trained(tiny, tmp_path / "run").path
    tree = yaml.safe_load((run / "config.yaml").read_text())
    del tree["compute"]  # which that version did not write
    (run / "config.yaml").write_text(yaml.safe_dump(tree))
    measured(9)
    marius_oac.resume(run, ["training.epochs=2"])
    whole = trained(tiny, tmp_path / "whole", compute={"products": "numpy"}, training=LONGER)
    ours, theirs = (json.loads((each / "summary.json").read_text()) for each in (run, whole.path))
    assert ours["tables.entities.sha256"] == theirs["tables.entities.sha256"] and library_of(run) == "auto"


def test_over_nodes_the_first_process_decides(measured):
    asked, config = measured(2), graph()
    elsewhere = graph(threads=7)

    def begin(group):
        return agreed_products(config, elsewhere if group.rank else config, group)

    found = together(ThreadGroup.members(2), begin)
    assert [each.compute.products for each, _ in found] == ["torch", "torch"] and len(asked) == 1
