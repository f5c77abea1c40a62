"""Runs say which kernels their matrix products ran on, and a resumed run says when they are others."""

import json

import pytest

from marius_oac.runs.folder.about import About
from marius_oac.runtime import blas
from marius_oac.runtime.blas import kernels
from marius_oac.training import local as training
from tests.graphs import tiny_config


def test_resuming_on_other_kernels_says_so(graph, tmp_path, command):
    path = tmp_path / "run"
    training.train(tiny_config(graph), path)
    about = About.read(path)
    assert about.kernels == kernels()
    (path / "run.json").write_bytes(about.model_copy(update={"kernels": "Elbrus"}).dump())
    code, _, said = command("resume", path, "--set", "training.epochs=3")
    assert code == 0
    assert any(line.startswith("note: matrix products run on") and "Elbrus" in line for line in said)


@pytest.mark.parametrize("name, value", [("_SGEMM", "no_such_function"), ("numpy", json)])
def test_a_numpy_without_a_library_that_has_the_function(monkeypatch, name, value):
    blas.sgemm.cache_clear()
    monkeypatch.setattr(blas, name, value)
    assert blas.sgemm() == 0
    blas.sgemm.cache_clear()
