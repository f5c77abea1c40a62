"""Every benchmark starts; what one measures with is tested elsewhere."""

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"
COMMANDS = [
    ".".join(path.relative_to(FOLDER.parent).with_suffix("").parts)
    for path in sorted(FOLDER.rglob("*.py"))
    if "\ndef main() -> " in path.read_text("utf-8")
]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_benchmark_says_what_it_does(name, monkeypatch, capsys):
    if name.endswith("pykeen_check"):
        pytest.importorskip("pykeen", reason="PyKEEN is not installed")
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit) as end:
        import_module(name).main()
    assert end.value.code == 0
    assert capsys.readouterr().out.startswith("usage: ")


def test_benchmarks_are_found():
    assert len(COMMANDS) > 40


def test_a_benchmark_runs_with_the_kernels_that_numpy_chooses():
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu.warm", "--help"],
        env=os.environ | {"OPENBLAS_CORETYPE": "Haswell"}, cwd=FOLDER.parent, timeout=60,
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0
    assert done.stderr == "OPENBLAS_CORETYPE=Haswell is set: starting again without it\n"


def test_a_picture_that_cannot_be_drawn_is_refused_before_the_run(monkeypatch, capsys):
    monkeypatch.setattr("benchmarks.plots.find_spec", lambda name: None)
    monkeypatch.setattr(sys, "argv", ["days"])
    with pytest.raises(SystemExit) as end:
        import_module("benchmarks.clicks.days").main()
    assert end.value.code == 2
    assert capsys.readouterr().err.endswith("error: pictures take matplotlib: pip install '.[plots]'\n")
