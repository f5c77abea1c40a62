"""The cases that run through `main(argv)`."""

import tempfile
import threading
from pathlib import Path

import psutil
import pytest

from marius_oac.cli import commands as cli
from tests.battery.cases import listing, wrong_lines
from tests.battery.tables import QUICK


@pytest.fixture(scope="session")
def standing(specimens):
    """The folders in which nothing may change."""
    return [Path(specimens[name]) for name in ("graph", "run", "classes", "clicks")]


@pytest.mark.parametrize("case", QUICK, ids=lambda case: case.name)
def test_case(case, specimens, standing, tmp_path, monkeypatch, capfd):
    place, temporary = tmp_path / "here", tmp_path / "temporary"
    place.mkdir()
    temporary.mkdir()
    monkeypatch.chdir(place)
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    specimens = {**specimens, "here": str(place)}
    case.write(place, specimens)
    before, threads = listing(place, temporary, *standing), threading.active_count()
    children = psutil.Process().children()
    capfd.readouterr()
    code = cli.main(case.words(specimens))
    said = capfd.readouterr().err
    assert (code, wrong_lines(case, said, specimens)) == (case.code, None), said
    after = listing(place, temporary, *standing)
    made = {str(path) for pattern in case.made for path in place.glob(pattern)}
    changed = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
    assert changed == made
    assert threading.active_count() == threads and psutil.Process().children() == children
