"""What must be asked in one place: the rows of `SEAMS` count the others."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from marius_oac.config.parts import DECODERS, LOSSES
from tests.layers import PACKAGE


def constants(names: set[str], home: str) -> Iterator[str]:
    """The places outside of `home` whose code has one of these texts, as a comparison of names needs."""
    for path in sorted(PACKAGE.rglob("*.py")):
        place = str(path.relative_to(PACKAGE))
        for node in ast.walk(ast.parse(path.read_text("utf-8"))) if place != home else ():
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in names:
                yield f"{place}:{node.lineno}"


def tiers(builder: str) -> Iterator[str]:
    """The places outside of `storage` and `builder` that name where rows lie: by a kind of store, or as a tier."""
    kinds = tuple(f"marius_oac.storage.{kind}" for kind in ("disk", "mapped", "memory"))
    for path in sorted(PACKAGE.rglob("*.py")):
        place = path.relative_to(PACKAGE)
        if place.parts[0] == "storage" or str(place) == builder:
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            names = {str(getattr(node, field, "")) for field in ("id", "attr", "arg", "module", "name")}
            if "tier" in names or any(name.startswith(kinds) for name in names):
                yield f"{place}:{node.lineno}"


SEAMS = {
    "a decoder's name": lambda: constants({*DECODERS}, "config/parts.py"),
    "a loss's name": lambda: constants({*LOSSES} - {"margin", "softmax"}, "config/parts.py"),
    "a tier": lambda: tiers(builder="runs/stores.py"),
}
"""Of each seam: the places in the package that still cross it."""


@pytest.mark.parametrize("seam", SEAMS)
def test_nothing_crosses(seam):
    assert list(SEAMS[seam]()) == []


def test_a_comparison_is_found(tmp_path: Path, monkeypatch):
    (tmp_path / "scores.py").write_text('print(decoder == "rotate")\nprint("rotates")\n')
    monkeypatch.setattr("tests.house.test_seams.PACKAGE", tmp_path)
    assert list(SEAMS["a decoder's name"]()) == ["scores.py:1"]


def test_what_names_a_tier_is_found(tmp_path: Path, monkeypatch):
    (tmp_path / "storage").mkdir()
    lines = ("from marius_oac.storage.disk.store import SsdStore", "print(parts.tier)", "def run(tier): ...",
             "from marius_oac.storage.contract import ParameterStore", "print(parts.tiers)")  # fmt: skip
    for name in ("loop.py", "stores.py", "storage/memory.py"):
        (tmp_path / name).write_text("\n".join(lines))
    monkeypatch.setattr("tests.house.test_seams.PACKAGE", tmp_path)
    assert list(tiers(builder="stores.py")) == ["loop.py:1", "loop.py:2", "loop.py:3"]
