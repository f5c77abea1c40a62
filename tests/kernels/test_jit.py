"""Machine code that was kept holds for the sources that it was made from, and for no others."""

from pathlib import Path

import pytest

from marius_oac.kernels.cpu import jit, losses
from tests.storage.conformance import JIT

TEXTS = {
    "cpu/outer.py": "import numpy as np\nfrom marius_oac.kernels.cpu.middle import (\n    step,\n)\n",
    "cpu/middle.py": "from marius_oac.kernels.cpu import inner as kernels, other\n\nSTEP = 3\n",
    "cpu/inner.py": "def add(one):\n    return one + 1\n",
    "cpu/other.py": "    from marius_oac.kernels.cpu.outer import step\n",
    "cpu/alone.py": "def add(one):\n    return one + 1\n",
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(jit, "_KERNELS", tmp_path)
    (tmp_path / "cpu").mkdir()
    for name, text in TEXTS.items():
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize("changed", TEXTS)
def test_a_change_of_whatever_a_module_imports_is_one_of_its_own(folder, changed):
    def fingerprints():
        return {name: jit.fingerprint.__wrapped__(folder / name) for name in TEXTS}

    before = fingerprints()
    assert before == fingerprints()
    (folder / changed).write_text(TEXTS[changed] + "# \n")
    differ = {name for name, found in fingerprints().items() if found != before[name]}
    whole = {"cpu/outer.py", "cpu/middle.py", "cpu/other.py"}
    expected = {"cpu/alone.py": {"cpu/alone.py"}, "cpu/inner.py": whole | {"cpu/inner.py"}}
    assert differ == expected.get(changed, whole)


@pytest.mark.skipif(not JIT, reason="nothing is compiled")
def test_kernels_are_kept_under_it():
    assert losses._softmax._cache._cache_file._source_stamp == jit.fingerprint(Path(losses.__file__))
