"""A run records what decides its last bits, and says where a batch has others."""

import os
import platform
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import yaml

from marius_oac.runs import arithmetic
from marius_oac.runs.arithmetic import Arithmetic, digest_of
from marius_oac.runs.folder.about import About
from marius_oac.training import local
from marius_oac.training.local import start_task
from tests.bits import CASES, write_sources
from tests.graphs import tiny_config

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    """The task of each configuration of `tests.bits`, by name."""
    from marius_oac.cli.commands import main

    folder, here = tmp_path_factory.mktemp("cases"), os.getcwd()
    os.chdir(folder)
    try:
        write_sources(folder)
        assert main(["prepare", "edges.tsv", "--out", "graph"]) == 0
        assert main(["prepare", "links.tsv", "--no-relations", "--unseen", "keep", "--out", "links"]) == 0
        yield {case.name: local_task(case) for case in CASES if "codex" not in case.name}
    finally:
        os.chdir(here)


def local_task(case):
    from marius_oac.config.task import build_config

    return start_task(build_config(case.config), quiet=True)


def test_a_batch_of_every_task_is_trained_alike_each_time(cases):
    found = {name: {digest_of(task.sample(CPU, threads)) for threads in (1, 2)} for name, task in cases.items()}
    assert all(len(each) == 1 for each in found.values())
    assert len(set().union(*found.values())) >= len(cases) - 1  # two of them train the same model


def test_a_batch_changes_rows_and_dense_parameters_to_finite_numbers(cases):
    for name, task in cases.items():
        sample = task.sample(CPU, 1)
        rows = [arithmetic.made_rows(*shape) for shape in sample.shapes]
        before, dense = [each.copy() for each in rows], {k: v.clone() for k, v in sample.step.dense_state().items()}
        assert np.isfinite(sample.step.compute(rows, sample.data, 0)), name
        after = sample.step.dense_state()
        assert all(np.isfinite(each).all() and (each != old).any() for each, old in zip(rows, before, strict=True)), (
            name
        )
        assert not dense or any(not torch.equal(after[key], dense[key]) for key in dense), name
        sample.step.close()


@pytest.fixture
def run(graph, tmp_path):
    path = tmp_path / "run"
    local.train(tiny_config(graph), path)
    return path


def rewrite(run, **changes):
    about = About.read(run)
    changed = about.arithmetic.model_copy(update=changes)
    (run / "run.json").write_bytes(about.model_copy(update={"arithmetic": changed}).dump())


def test_what_a_run_began_with_is_recorded_and_kept(run, monkeypatch):
    began = About.read(run).arithmetic
    assert began.python == platform.python_version() and began.numpy == np.__version__ and len(began.batch) == 64
    monkeypatch.setattr(platform, "python_version", lambda: "3.99.0")
    local.resume(run, ["training.epochs=3"])
    assert About.read(run).arithmetic == began


def test_resuming_says_what_differs_where_a_batch_has_other_bits(run, command):
    rewrite(run, python="3.2.1", batch="0" * 64)
    code, _, said = command("resume", run, "--set", "training.epochs=3")
    (line,) = [line for line in said if "other bits" in line]
    assert code == 0 and f"Python {platform.python_version()}, not 3.2.1" in line and "the last bits may differ" in line


def test_another_version_with_the_same_bits_is_no_alarm(run, command):
    rewrite(run, python="3.2.1", threads=99)
    code, _, said = command("resume", run, "--set", "training.epochs=3")
    assert code == 0 and not [line for line in said if "bits" in line]


def test_where_no_batch_was_trained_the_kernels_of_products_count(run, command):
    rewrite(run, batch=None, products="Elbrus")
    code, _, said = command("resume", run, "--set", "training.epochs=3")
    assert code == 0 and any("products by" in line and "not Elbrus" in line for line in said)


def test_comparing_names_what_differs(run, graph, tmp_path, command):
    other = tmp_path / "other"
    local.train(tiny_config(graph), other)
    code, out, _ = command("compare", run, other)
    assert code == 0 and "other bits" not in "".join(out)
    rewrite(run, numpy="1.0", batch="0" * 64)
    code, out, _ = command("compare", run, other)
    assert "where the first was trained: NumPy 1.0, not" in "".join(out)


def test_verifying_says_that_this_installation_is_another(run, command):
    code, out, _ = command("verify", run)
    assert code == 0 and "installation" not in "".join(out)
    rewrite(run, llvm="1.2.3")
    code, out, _ = command("verify", run)
    (line,) = [line for line in out if "installation" in line]
    assert code == 0 and "not checked" in line and "LLVM" in line and "not 1.2.3" in line


def test_trainers_that_meet_are_compared(graph, caplog):
    task = start_task(tiny_config(graph), quiet=True)
    kept = []

    def gather(mine):
        return [mine, mine | {"numpy": "1.0", "batch": "0" * 64}, mine | {"numpy": "1.0"}]

    home = SimpleNamespace(peers=SimpleNamespace(gather=gather, leads=True))
    session = SimpleNamespace(task=task, home=home, device=CPU, threads=1)
    local.note_arithmetic(session, SimpleNamespace(note_arithmetic=kept.append))
    (line,) = caplog.messages
    assert line.startswith("other bits are to be expected of process 1 than of the first (NumPy 1.0, not ")
    assert kept[0].numpy == np.__version__


@pytest.mark.slow
def test_another_blas_is_named_and_another_target_has_the_same_bits(graph, tmp_path):
    config = tiny_config(graph, "model.dimension=100", "compute.products=numpy").model_dump(
        mode="json", exclude_unset=True
    )
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(config))
    variables = {
        "one": {"OPENBLAS_CORETYPE": "Haswell"},
        "target": {"OPENBLAS_CORETYPE": "Haswell", "NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "+avx2,+fma"},
        "blas": {"OPENBLAS_CORETYPE": "Prescott"},
    }

    def run(*words, **more):
        words = [sys.executable, "-m", "marius_oac", *words]
        return subprocess.run(words, cwd=tmp_path, env=os.environ | more, capture_output=True, text=True)

    for name, more in variables.items():
        cache = {"NUMBA_CACHE_DIR": str(tmp_path / f"cache-{name}")}
        assert run("train", "c.yaml", "--out", name, **more, **cache).returncode == 0
    same = run("compare", "one", "target")
    assert same.returncode == 0 and "other bits" not in same.stdout
    other = run("compare", "one", "blas").stdout
    assert "other bits are to be expected" in other and "products by Haswell, not Katmai" in other


def test_the_same_batch_by_other_kernels_of_products_is_told(run, command):
    rewrite(run, products="Elbrus")  # larger matrices may have other bits
    code, _, said = command("resume", run, "--set", "training.epochs=3")
    assert code == 0 and any("other bits are to be expected" in line and "not Elbrus" in line for line in said)


def test_versions_that_are_alike_are_said_so():
    here = Arithmetic(
        python="1", torch="1", numpy="1", numba="1", llvm="1", target="t", products="p", vectors="v", threads=1
    )
    assert here.unlike(here) == "the same versions on the same kind of processor"
