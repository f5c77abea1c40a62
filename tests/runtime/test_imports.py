"""Imports of large libraries, without Python's garbage collector meanwhile."""

import gc
import sys

import pytest

from marius_oac.runtime.imports import imports


@pytest.fixture(autouse=True)
def unfrozen():
    yield
    gc.unfreeze()
    gc.enable()


def test_nothing_is_collected_while_libraries_are_imported_and_they_are_left_out_of_later_collections():
    gc.unfreeze()
    with imports():
        assert not gc.isenabled()
        made = [[] for _ in range(1000)]
    assert gc.isenabled()
    assert gc.get_freeze_count() >= len(made)


def test_a_collector_that_is_off_stays_off():
    gc.disable()
    with imports():
        pass
    assert not gc.isenabled()


def test_an_import_that_fails_leaves_the_collector_as_it_was():
    with pytest.raises(ImportError), imports():
        import marius_oac.no_such_module  # noqa: F401
    assert gc.isenabled()


def test_a_command_imports_its_libraries_without_the_collector(monkeypatch, tmp_path):
    from marius_oac import runs
    from marius_oac.cli import commands

    seen = []

    class Finder:
        @staticmethod
        def find_spec(name, path, target=None):
            seen.append((name, gc.isenabled()))

    monkeypatch.setattr(runs, "verification", None, raising=False)  # as it was, afterwards
    monkeypatch.delitem(sys.modules, "marius_oac.runs.verification", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Finder, *sys.meta_path])
    assert commands.main(["verify", str(tmp_path)]) == 2
    assert ("marius_oac.runs.verification", False) in seen
