"""The wheel holds all that the package needs: trained with, elsewhere than in this checkout."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_a_wheel_trains_the_embedded_graph(tmp_path):
    """Dependencies are those of this environment; the package is the wheel's."""
    source = tmp_path / "source"
    source.mkdir()
    for name in ("marius_oac", "setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        subprocess.run(["cp", "-r", ROOT / name, source], check=True)
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", tmp_path, source]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as parts:
        names = parts.namelist()
        parts.extractall(tmp_path / "site")
    assert not [name for name in names if not name.startswith(("marius_oac/", "marius_oac-"))]

    def run(*words):
        command, environment = [sys.executable, *words], os.environ | {"PYTHONPATH": str(tmp_path / "site")}
        return subprocess.run(
            command, env=environment, cwd=tmp_path, check=True, capture_output=True, text=True, timeout=240
        )

    assert run("-c", "import marius_oac; print(marius_oac.__file__)").stdout.startswith(str(tmp_path / "site"))
    (tmp_path / "c.yaml").write_text("data: {path: codex-s}\nmodel: {dimension: 8}\ntraining: {epochs: 1}\n")
    said = run("-m", "marius_oac", "train", "c.yaml", "--out", "run")
    assert "test.filtered.mrr" in said.stdout and (tmp_path / "run" / "summary.json").exists()
