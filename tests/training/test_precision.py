"""`compute.precision`: where it is refused, that a run keeps it, and that a run without it has the bits of before."""

import json

import pytest
import torch

import marius_oac
from marius_oac import Config
from marius_oac.errors import ConfigError, InputError
from marius_oac.kernels.cpu import bfloat16_gemm
from marius_oac.runs.session import pick_device, reading_device
from marius_oac.tasks.registry import entry_of
from marius_oac.training.precision import check_precision
from tests.graphs import jitter, run_batches, tiny_config, tiny_graph, workers
from tests.run_folders import write_config

CPU, GPU = torch.device("cpu"), torch.device("cuda:0")
needs_bfloat16 = pytest.mark.skipif(not bfloat16_gemm.is_there(), reason="the processor has no AVX-512 BF16")
BFLOAT16 = "compute.precision=bfloat16"
DISTANCES, OWN = "model.decoder=transe", "model.decoder=mine.py:Decoder"
ENCODER = "encoder.layers=[{kind: sage}]"


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return tiny_graph(tmp_path_factory.mktemp("tiny"))


@pytest.mark.parametrize(
    "settings, device, there, line",
    [
        (("compute.precision=tf32",), CPU, True, "'tf32' is for GPUs; this run computes on the CPU"),
        ((BFLOAT16,), CPU, False, "'bfloat16' needs a processor with AVX-512 BF16, or a GPU; 'float32' needs neither"),
        ((BFLOAT16, DISTANCES), CPU, True, "'bfloat16' changes nothing here: scores are distances"),
        ((BFLOAT16, DISTANCES), GPU, True, "'bfloat16' changes nothing here: scores are distances"),
        ((BFLOAT16, OWN), CPU, True, "'bfloat16' changes nothing here: .* those of a decoder or loss of your own"),
        ((BFLOAT16, "training.loss.kind=mine.py:Loss"), CPU, True, "those of a decoder or loss of your own"),
        (("compute.precision=tf32", DISTANCES), GPU, True, "'tf32' changes nothing here"),
    ],
)
def test_what_is_refused(monkeypatch, settings, device, there, line):
    monkeypatch.setattr(bfloat16_gemm, "is_there", lambda: there)
    with pytest.raises(ConfigError, match=f"^compute.precision: .*{line}"):
        check_precision(Config.build({"data": {"path": "g"}}, settings), device)


@pytest.mark.parametrize("name", ["auto", "cuda:0"])
@pytest.mark.parametrize("override, refused", [("1", True), ("2", True), ("0", False), ("", False), (None, False)])
def test_a_variable_that_torch_can_not_undo_is_refused(monkeypatch, name, override, refused):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.delenv("NVIDIA_TF32_OVERRIDE", raising=False)
    if override is not None:
        monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", override)
    assert pick_device("cpu") == CPU
    if not refused:
        assert pick_device(name) == reading_device(name) == GPU
        return
    for pick in (pick_device, reading_device):
        with pytest.raises(InputError, match=f"^NVIDIA_TF32_OVERRIDE={override}: cuBLAS computes float32 in TF32"):
            pick(name)


def test_a_variable_that_turns_tf32_off_is_refused_where_it_is_asked_for(monkeypatch):
    asks, does_not = (
        Config.build({"data": {"path": "g"}}, [f"compute.precision={each}"]) for each in ("tf32", "float32")
    )
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    check_precision(does_not, GPU)
    with pytest.raises(ConfigError, match="^compute.precision: 'tf32' is turned off by NVIDIA_TF32_OVERRIDE=0; unset"):
        check_precision(asks, GPU)


@pytest.mark.parametrize(
    "settings, device, there",
    [
        ((), CPU, False), ((DISTANCES,), CPU, False), ((BFLOAT16,), CPU, True),
        ((BFLOAT16, DISTANCES, ENCODER), CPU, True), ((BFLOAT16,), GPU, False), ((BFLOAT16, OWN), GPU, False),
        (("compute.precision=tf32",), GPU, False),
    ],
)  # fmt: skip
def test_what_is_not(monkeypatch, settings, device, there):
    monkeypatch.setattr(bfloat16_gemm, "is_there", lambda: there)
    config = Config.build({"data": {"path": "g"}}, settings)
    check_precision(config, device)
    assert entry_of(config)


def test_a_processor_without_it_is_told_by_its_features(monkeypatch):
    codegen = bfloat16_gemm.cpu_target.target_context.codegen()
    for features, found in (("+avx512f,+avx512bf16", True), ("+avx512f,-avx512bf16", False), ("", False)):
        monkeypatch.setattr(type(codegen), "magic_tuple", lambda self, text=features: ("triple", "cpu", text))
        assert bfloat16_gemm.is_there.__wrapped__() == found


def bits(run):
    summary = json.loads((run.path / "summary.json").read_text())
    return summary["tables.entities.sha256"], summary["tables.dense.sha256"]


@pytest.mark.slow
@needs_bfloat16
def test_a_run_keeps_its_precision(monkeypatch, graph, tmp_path, command):
    config = tiny_config(graph, BFLOAT16, "training.epochs=1", "checkpoint.every_epochs=1")
    run = marius_oac.train(config, tmp_path / "run")
    assert "bfloat16 kernels" in json.loads((run.path / "summary.json").read_text())["machine"]
    plain = marius_oac.train(tiny_config(graph, "training.epochs=1"), tmp_path / "plain")
    assert bits(run) != bits(plain)
    for path, other in ((run.path, "float32"), (plain.path, "bfloat16")):
        code, _, err = command("resume", path, "--set", "training.epochs=2", "--set", f"compute.precision={other}")
        assert code == 2 and "compute.precision: the run was trained with" in err[-1]
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(bfloat16_gemm, "is_there", lambda: False)
        code, _, err = command("resume", run.path, "--set", "training.epochs=2")
        assert code == 2 and err[-1].endswith("'float32' needs neither") and "compute.precision" in err[-1]
        code, _, err = command("train", write_config(tmp_path / "c.yaml", config), "--out", tmp_path / "new")
        assert code == 2 and "compute.precision" in err[-1] and not (tmp_path / "new").exists()
        assert command("eval", run.path)[0] == 0, "evaluations are float32"
    whole = marius_oac.train(config.replace("training.epochs=2"), tmp_path / "whole")
    assert bits(marius_oac.resume(run.path, ["training.epochs=2"])) == bits(whole)


@needs_bfloat16
@pytest.mark.parametrize("more", [(), ("training.negatives.all=true",), (ENCODER, "encoder.sampler=own")])
def test_oac_has_the_bits_of_sync_with_any_threads(graph, more):
    def trained(mode, threads, in_flight):
        settings = (BFLOAT16, *more, f"pipeline.mode={mode}", f"threads={threads}", f"pipeline.in_flight={in_flight}")
        config = tiny_config(graph, *settings, *workers(2))
        return run_batches(config, graph, 12, jitter(threads) if mode == "oac" else None).bits

    expected = trained("sync", 1, 1)
    assert expected != run_batches(tiny_config(graph, *more, "pipeline.mode=sync"), graph, 12).bits
    assert trained("oac", 1, 4) == trained("oac", 3, 4) == trained("sync", 2, 1) == expected
