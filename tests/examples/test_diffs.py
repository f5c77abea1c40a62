"""A user changes few lines, and the page says which."""

import pytest

from tests.examples import diffs
from tests.examples.running import EXAMPLES
from tests.house.test_house import ROOT

MOST = 8
PAGE = (ROOT / "docs" / "own_loop_examples.md").read_text("utf-8")


@pytest.mark.parametrize("name", EXAMPLES)
def test_few_lines_change_and_the_page_shows_what_they_are(name):
    found = diffs.of(name)
    assert 0 < diffs.lines(found) <= MOST
    (section,) = [part for part in PAGE.split("\n## ") if f"`python -m examples.own_loops.after.{name}" in part]
    assert diffs.shown(found) in section or "```diff" not in section


def test_every_file_is_an_example():
    for side in ("before", "after"):
        assert {path.stem for path in (diffs.FOLDER / side).glob("*.py")} == set(EXAMPLES)


def test_a_line_that_moves_in_is_none_that_changes():
    found = diffs.changes("a\nb\nc\n", "a\nwith:\n    b\n    d\n    e\n")
    assert diffs.lines(found) == 3 and found == [([], ["with:"]), (["c"], ["    d", "    e"])]
    assert diffs.shown(found) == "```diff\n+with:\n-c\n+    d\n+    e\n```"
