"""The kernels of matrix products: asked for where they pay, and never against the user's word."""

import json
import os
import subprocess
import sys

import pytest

from marius_oac import training
from marius_oac.blas import kernels
from tests.graphs import tiny_config

AMD = (
    "vendor_id\t: AuthenticAMD\nflags\t\t: fpu avx2 avx512f avx512dq avx512bw avx512vl avx512cd\n\nvendor_id\t: other\n"
)
CASES = [
    (AMD, "", {}, "SkylakeX"),
    (AMD, "import numpy;", {}, "None"),
    (AMD, "", {"OPENBLAS_CORETYPE": "Zen"}, "Zen"),
    (AMD.replace("avx512vl", ""), "", {}, "None"),
    (AMD.replace("AuthenticAMD", "GenuineIntel"), "", {}, "None"),
    (None, "", {}, "None"),
]


@pytest.mark.parametrize(("cpuinfo", "before", "environment", "expected"), CASES)
def test_avx512_is_asked_for_where_it_pays(cpuinfo, before, environment, expected, tmp_path):
    path = tmp_path / "cpuinfo"
    if cpuinfo is not None:
        path.write_text(cpuinfo)
    clean = {name: value for name, value in os.environ.items() if name != "OPENBLAS_CORETYPE"}
    code = (
        f"{before}import importlib.util, os, sys; spec = importlib.util.spec_from_file_location('blas', sys.argv[1]); "
        "blas = importlib.util.module_from_spec(spec); spec.loader.exec_module(blas); blas.prefer_avx512(sys.argv[2]); "
        "print(os.environ.get('OPENBLAS_CORETYPE'))"
    )
    source = sys.modules["marius_oac.blas"].__file__
    done = subprocess.run(
        [sys.executable, "-c", code, source, str(path)],
        env=clean | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == expected


def test_the_kernels_in_use_have_a_name():
    assert kernels()


def test_resuming_on_other_kernels_says_so(graph, tmp_path, command):
    path = tmp_path / "run"
    training.train(tiny_config(graph), path)
    about = json.loads((path / "run.json").read_text())
    (path / "run.json").write_text(json.dumps(about | {"kernels": "Elbrus"}))
    code, _, said = command("resume", path, "--set", "training.epochs=3")
    assert code == 0
    assert any(line.startswith("note: matrix products run on") and "Elbrus" in line for line in said)
