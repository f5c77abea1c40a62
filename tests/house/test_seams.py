"""What must be asked in one place: the rows of `SEAMS` count the others."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

from marius_oac.config.parts import DECODERS, LOSSES
from marius_oac.config.reference import TASKS
from marius_oac.config.task import TaskConfig
from marius_oac.tasks import registry
from tests.layers import PACKAGE, imported, syntax


def nodes(homes: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """The syntax of all modules, with their paths, but those of `homes`, files and folders."""
    for path in sorted(PACKAGE.rglob("*.py")):
        place = str(path.relative_to(PACKAGE))
        if not place.startswith(homes):
            yield from ((place, node) for node in ast.walk(syntax(path)))


def constants(names: set[str], home: str) -> Iterator[str]:
    """The places outside of `home` whose code has one of these texts, as a comparison of names needs."""
    for place, node in nodes((home,)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in names:
            yield f"{place}:{node.lineno}"


def comparisons(names: set[str], homes: tuple[str, ...]) -> Iterator[str]:
    """The places outside of `homes` that compare anything with one of these texts."""
    for place, node in nodes(homes):
        if isinstance(node, ast.Compare):
            found = {each.value for each in ast.walk(node) if isinstance(each, ast.Constant)}
            yield from [f"{place}:{node.lineno}"] if found & names else []
        if isinstance(node, ast.MatchValue) and isinstance(node.value, ast.Constant) and node.value.value in names:
            yield f"{place}:{node.lineno}"


def imports_of(modules: tuple[str, ...], homes: tuple[str, ...]) -> Iterator[str]:
    """The places outside of `homes` that import from these modules or folders, once for each import."""
    for path in sorted(PACKAGE.rglob("*.py")):
        place = str(path.relative_to(PACKAGE))
        if not place.startswith(homes):
            yield from (place for name in imported(path) if f"{name}.".startswith(modules))


def tiers(builder: str) -> Iterator[str]:
    """The places outside of `storage` and `builder` that name where rows lie: by a kind of store, or as a tier."""
    kinds = tuple(f"marius_oac.storage.{kind}" for kind in ("disk", "mapped", "memory"))
    for place, node in nodes(("storage/", builder)):
        names = {str(getattr(node, field, "")) for field in ("id", "attr", "arg", "module", "name")}
        if "tier" in names or any(name.startswith(kinds) for name in names):
            yield f"{place}:{node.lineno}"


ONE_TASK = ("link_prediction", "node_classification", "ctr")
OF_ONE_TASK = ("config/", "tasks/", "models/ctr/", "models/link_prediction/", "models/heads/", "data/logs/",
               "data/batches/", "evaluation/", "prepare/init/", "testing/")  # fmt: skip
"""Folders whose modules may serve one task alone."""

SEAMS = {
    "a decoder's name": lambda: constants({*DECODERS}, "config/parts.py"),
    "a loss's name": lambda: constants({*LOSSES} - {"margin", "softmax"}, "config/parts.py"),
    "a tier": lambda: tiers(builder="runs/stores.py"),
    "a task's name": lambda: comparisons({*TASKS}, ("config/", "tasks/")),
    "a task's class": lambda: imports_of(
        tuple(f"{folder}.{task}." for folder in ("config", "tasks") for task in ONE_TASK), OF_ONE_TASK
    ),
}
"""Of each seam: the places in the package that cross it; there are none."""


@pytest.mark.parametrize("seam", SEAMS)
def test_nothing_crosses(seam):
    assert list(SEAMS[seam]()) == []


def planted(folder: Path, monkeypatch, text: str) -> None:
    (folder / "scores.py").write_text(text)
    monkeypatch.setattr("tests.house.test_seams.PACKAGE", folder)


def test_a_comparison_is_found(tmp_path: Path, monkeypatch):
    planted(tmp_path, monkeypatch, 'print(decoder == "rotate")\nprint("rotates")\n')
    assert list(SEAMS["a decoder's name"]()) == ["scores.py:1"]


def test_what_names_a_tier_is_found(tmp_path: Path, monkeypatch):
    (tmp_path / "storage").mkdir()
    lines = ("from marius_oac.storage.disk.store import SsdStore", "print(parts.tier)", "def run(tier): ...",
             "from marius_oac.storage.contract import ParameterStore", "print(parts.tiers)")  # fmt: skip
    for name in ("loop.py", "stores.py", "storage/memory.py"):
        (tmp_path / name).write_text("\n".join(lines))
    monkeypatch.setattr("tests.house.test_seams.PACKAGE", tmp_path)
    assert list(tiers(builder="stores.py")) == ["loop.py:1", "loop.py:2", "loop.py:3"]


@pytest.mark.parametrize(
    "text",
    ['config.task != "ctr"', 'config.task in ("graph", "ctr")', 'match config.task:\n    case "ctr":\n        pass'],
)
def test_a_question_about_the_task_is_found(tmp_path: Path, monkeypatch, text):
    planted(tmp_path, monkeypatch, f'graph = "graph"\n{text}\n')
    assert [each.partition(":")[0] for each in SEAMS["a task's name"]()] == ["scores.py"]


def test_a_task_s_class_is_found(tmp_path: Path, monkeypatch):
    inside = "def f():\n    from marius_oac.config.ctr import CtrConfig\n"
    planted(tmp_path, monkeypatch, "from marius_oac.tasks.ctr.task import CtrTask\n" + inside)
    assert list(SEAMS["a task's class"]()) == ["scores.py", "scores.py"]


def test_the_registry_has_every_task():
    assert {*registry.TASKS} == {*TASKS}
    assert {entry.config for entry in registry.TASKS.values()} == {*get_args(TaskConfig)}
    for name, entry in registry.TASKS.items():
        assert entry.trained.task == name and get_args(entry.config.model_fields["task"].annotation) == (name,)
