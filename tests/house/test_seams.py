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


SEAMS = {
    "a decoder's name": lambda: constants({*DECODERS}, "config/parts.py"),
    "a loss's name": lambda: constants({*LOSSES} - {"margin", "softmax"}, "config/parts.py"),
}
"""Of each seam: the places in the package that still cross it."""


@pytest.mark.parametrize("seam", SEAMS)
def test_nothing_crosses(seam):
    assert list(SEAMS[seam]()) == []


def test_a_comparison_is_found(tmp_path: Path, monkeypatch):
    (tmp_path / "scores.py").write_text('print(decoder == "rotate")\nprint("rotates")\n')
    monkeypatch.setattr("tests.house.test_seams.PACKAGE", tmp_path)
    assert list(SEAMS["a decoder's name"]()) == ["scores.py:1"]
