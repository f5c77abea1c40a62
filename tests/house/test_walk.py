"""`docs/walk.md` names what a run calls, in the order in which it does, by the thread that does."""

import importlib
import inspect
import re
import sys
import threading
from pathlib import Path
from typing import NamedTuple

import pytest

from marius_oac.cli.commands import main
from tests.graphs import tiny_config

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "walk.md").read_text("utf-8")


class Step(NamedTuple):
    number: int
    thread: str
    file: str
    function: str


def steps_of(page):
    """The rows of the page's tables; the title above a table names the thread."""
    found = []
    for section in re.split(r"^## ", page, flags=re.M)[1:]:
        thread = re.match(r"`(\w+)`", section)[1]
        rows = re.findall(r"^\| (\d+) \| `([\w/]+\.py)` \| `([\w.]+)` \|", section, flags=re.M)
        found += [Step(int(number), thread, file, function) for number, file, function in rows]
    return found


STEPS = steps_of(PAGE)


def code_of(step):
    """The code of a step's function, which must stand in the step's file under this name."""
    found = importlib.import_module("marius_oac." + step.file.removesuffix(".py").replace("/", "."))
    for name in step.function.split("."):
        found = inspect.getattr_static(found, name)
    code = inspect.unwrap(getattr(found, "__func__", found)).__code__
    assert (code.co_qualname, Path(code.co_filename)) == (step.function, ROOT / "marius_oac" / step.file)
    return code


def test_every_row_of_the_page_is_a_step():
    lines = [line for line in PAGE.splitlines() if line.startswith("|") and not line.startswith(("| step", "|---"))]
    assert [step.number for step in STEPS] == list(range(1, len(lines) + 1)) and len(STEPS) > 50
    assert len({step[2:] for step in STEPS}) == len(STEPS), "each is named once"


@pytest.mark.parametrize("step", STEPS, ids=lambda step: f"{step.number}-{step.function}")
def test_every_function_is_in_its_file(step):
    code_of(step)


@pytest.fixture(scope="module")
def walked(graph, tmp_path_factory):
    """The steps of the page in the order in which a run first takes them, each by the thread that it stands under.

    Elsewhere some are taken before: planning memory plans a batch.
    """
    folder, wanted, called = tmp_path_factory.mktemp("walk"), {code_of(step): step for step in STEPS}, {}

    def look(frame, event, _):
        step = wanted.get(frame.f_code) if event == "call" else None
        if step and threading.current_thread().name.partition("-")[0] == step.thread:
            called.setdefault(step)

    (folder / "config.yaml").write_text(tiny_config(graph, "training.epochs=1").dump(), "utf-8")
    threading.setprofile(look)
    sys.setprofile(look)
    try:
        assert main(["train", str(folder / "config.yaml"), "--out", str(folder / "run")]) == 0
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return list(called)


def test_a_run_takes_the_steps_in_the_order_of_the_page(walked):
    """Across threads, too: what a stage does first comes after what the stage before it did first."""
    assert walked == STEPS
