"""Who computes on a device: Triton's kernels, or torch's operations where they are missing, which is said once."""

import logging
import sys

import pytest
import torch

from marius_oac.kernels.gpu import choice
from marius_oac.models.link_prediction.fused import is_fused
from tests.models.batches import Shape, configure
from tests.models.own_parts import EXAMPLE

GPU, CPU = torch.device("cuda:1"), torch.device("cpu")


@pytest.fixture
def asked_anew():
    choice._is_there.cache_clear()
    yield
    choice._is_there.cache_clear()


def test_a_gpu_has_the_kernels_and_a_cpu_has_not(asked_anew):
    assert choice.chosen(GPU) and not choice.chosen(CPU)
    with choice.forced(True):
        assert choice.chosen(CPU)
        with choice.forced(False):
            assert not choice.chosen(GPU)
    assert choice.chosen(GPU) and not choice.chosen(CPU)


def test_where_triton_is_missing_is_said_once(asked_anew, monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "triton", None)
    with caplog.at_level(logging.WARNING, "marius_oac"):
        assert not choice.chosen(CPU) and not caplog.records
        assert not choice.chosen(GPU) and not choice.chosen(GPU)
    assert len(caplog.records) == 1 and "Triton is missing" in caplog.text


@pytest.mark.usefixtures("all_code_is_known")
@pytest.mark.parametrize("dimension, decoders", [
    (512, {"complex", "dot", "transe-1", "rotate"}), (1024, {"transe-1", "rotate"}), (2048, {"rotate"}), (4096, set()),
])  # fmt: skip
def test_vectors_have_their_bounds(asked_anew, dimension, decoders):
    names = ("complex", "dot", "transe-1", "rotate")
    assert {name for name in names if is_fused(configure(name, shape=Shape(dimension=dimension)), GPU)} == decoders
    own = configure("dot", shape=Shape(dimension=16), training__loss__kind=f"{EXAMPLE}:SquaredHinge")
    assert not is_fused(own, GPU) and not is_fused(configure("dot"), CPU)
