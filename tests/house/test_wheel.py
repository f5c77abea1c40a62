"""The sdist holds what git tracks, and the wheel that is built from it all that the package needs: trained with,
elsewhere than in this checkout."""

import os
import re
import subprocess
import sys
import tarfile
import zipfile

import pytest

from tests.house.test_house import ROOT

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def tracked():
    """Files that belong to the project, by their paths."""
    words = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    found = subprocess.run(words, cwd=ROOT, capture_output=True, text=True).stdout.split()
    if not found:
        pytest.skip("no checkout of git, which says what belongs to the project")
    return [path for path in found if (ROOT / path).exists()]


@pytest.fixture(scope="module")
def dist(tracked, tmp_path_factory):
    """A folder with both."""
    source, out = (tmp_path_factory.mktemp(name) for name in ("source", "dist"))
    subprocess.run(["cp", "--parents", *tracked, source], cwd=ROOT, check=True)
    (source / "tests" / "compiled.pyc").write_bytes(b"")  # as a checkout has them that was tested
    build = [sys.executable, "-P", "-m", "build", "--outdir", out, source]
    subprocess.run(build, check=True, capture_output=True)
    return out


def test_the_sdist_holds_what_is_tracked(tracked, dist):
    with tarfile.open(*dist.glob("*.tar.gz")) as parts:
        found = {each.name.partition("/")[2] for each in parts if each.isfile()}
    made = {path for path in found if path == "PKG-INFO" or path.startswith("marius_oac.egg-info/")}
    assert found - made == {*tracked}


def test_a_wheel_trains_the_embedded_graph(dist, tmp_path):
    """Dependencies are those of this environment; the package is the wheel's."""
    with zipfile.ZipFile(*dist.glob("*.whl")) as parts:
        names = parts.namelist()
        parts.extractall(tmp_path / "site")
    assert not [name for name in names if not name.startswith(("marius_oac/", "marius_oac-"))]
    [description] = (tmp_path / "site").glob("*.dist-info/METADATA")
    links = re.findall(r"\]\(|\(`docs/guides/graph.md`\)", description.read_text("utf-8"))
    assert links == ["(`docs/guides/graph.md`)"], "where it is shown, there are no files to link to"

    def run(*words):
        command, environment = [sys.executable, *words], os.environ | {"PYTHONPATH": str(tmp_path / "site")}
        return subprocess.run(
            command, env=environment, cwd=tmp_path, check=True, capture_output=True, text=True, timeout=240
        )

    assert run("-c", "import marius_oac; print(marius_oac.__file__)").stdout.startswith(str(tmp_path / "site"))
    (tmp_path / "c.yaml").write_text("data: {path: codex-s}\nmodel: {dimension: 8}\ntraining: {epochs: 1}\n")
    said = run("-m", "marius_oac", "train", "c.yaml", "--out", "run")
    assert "test.filtered.mrr" in said.stdout and (tmp_path / "run" / "summary.json").exists()
