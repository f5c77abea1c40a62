"""What `.ci/run` leaves out is made by the six landings after it, and what has changed at once."""

import re
import subprocess
import zlib
from types import SimpleNamespace

import pytest

from tests import turns
from tests.costs import topics
from tests.turns import ENVIRONMENTS, INSTALLED, ROOT, TURNS, Turn, modify, targets, turn

NOTHING = frozenset()


@pytest.fixture
def checkout(tmp_path):
    """`checkout(name=text, ...)` commits files, `.ci/turn` under the name `turn`."""

    def git(*words):
        who = ("-c", "user.name=a", "-c", "user.email=a@b")
        subprocess.run(["git", "-C", tmp_path, *who, *words], check=True, capture_output=True)

    def commit(**files):
        write(tmp_path, **files)
        git("add", "-A")
        git("commit", "-m", "one")

    git("init", "-q")
    return SimpleNamespace(root=tmp_path, commit=commit)


def write(root, **files):
    for name, text in files.items():
        path = root / (turns.FILE if name == "turn" else name)
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)


def test_what_has_changed_is_counted_from_the_turn_before(checkout):
    checkout.commit(turn="4", first="1")
    assert turn(checkout.root) == Turn(4, None)  # since when is not known
    checkout.commit(second="2")
    checkout.commit(turn="5", third="3")
    assert turn(checkout.root).changed == {"second", "third", turns.FILE}
    checkout.commit(fourth="4")
    write(checkout.root, first="other", fifth="5")
    found = turn(checkout.root)
    assert found.number == 5 and found.changed == {"first", "second", "third", "fourth", "fifth", turns.FILE}
    write(checkout.root, turn="6")  # not committed yet
    found = turn(checkout.root)
    assert found.number == 6 and found.changed == {"first", "fourth", "fifth", turns.FILE}


def test_without_a_history_everything_is_made(tmp_path):
    write(tmp_path, turn="3")
    found = turn(tmp_path)
    assert found == Turn(3, None) and targets(found)[0] == [*ENVIRONMENTS]
    assert all(found.why(place, ()) for place in range(TURNS))


@pytest.mark.parametrize(("changed", "made"), [
    ("a/b.py", True), ("b.py", False), ("a/bb.py", False), ("f/x/y.py", True), ("ff/x.py", False), ("f", True),
])  # fmt: skip
def test_what_has_changed_is_made_whosever_turn_it_is(changed, made):
    assert bool(Turn(0, frozenset([changed])).why(1, ("a/b.py", "f"))) == made


def test_seven_turns_make_everything_once():
    for place in (*range(TURNS), zlib.crc32(b"tests/a.py::test_b[c]")):
        assert sum(bool(Turn(number, NOTHING).why(place, ())) for number in range(20, 20 + TURNS)) == 1


def test_environments_are_made_in_turns_and_where_what_they_test_has_changed():
    alone = [[each] for each in ENVIRONMENTS] + [[]] * (TURNS - len(ENVIRONMENTS))
    assert [targets(Turn(number, NOTHING))[0] for number in range(TURNS)] == alone
    for target, paths in ENVIRONMENTS.items():
        for path in paths:
            assert target in targets(Turn(6, frozenset([path])))[0]
    for path in INSTALLED:
        assert targets(Turn(6, frozenset([path])))[0] == [*ENVIRONMENTS]
    chosen, lines = targets(Turn(1, frozenset(["docs/a.md"]), "0123456789"))
    assert chosen == ["test-loops", "docs"] and lines == [
        "turn 1 of 7, changes since 01234567", "  test-dgl: left out; its turn is 0", "  test-loops: its turn",
        "  test-ray: left out; its turn is 2", "  docs: docs/a.md has changed",
        "  test-triton: left out; its turn is 4",
    ]  # fmt: skip


def test_environments_and_their_paths_are_there():
    makefile = (ROOT / "Makefile").read_text("utf-8")
    for target, paths in ENVIRONMENTS.items():
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)
        assert all((ROOT / path).exists() for path in (*paths, *INSTALLED)), paths


class Item:
    def __init__(self, nodeid, marker):
        self.nodeid, self.added, self._marker = nodeid, [], marker

    def get_closest_marker(self, name):
        return name == self._marker

    def add_marker(self, marker):
        self.added.append(marker)


def skipped(monkeypatch, now, option="slow", marker="slow", topic="a 1 1 7 a.py : marius_oac/storage"):
    """Of 70 tests of a file with this marker, the numbers of those that are skipped."""
    monkeypatch.setattr(turns, "turn", lambda: now)
    monkeypatch.setattr(turns, "topics", lambda: topics(topic))
    items = [Item(f"tests/a.py::test_b[{number}]", marker) for number in range(70)]
    modify(SimpleNamespace(getoption=lambda name: option), items)
    return {number for number, item in enumerate(items) if item.added}


@pytest.mark.parametrize("marker", ["slow", "hypothesis"])
def test_a_seventh_of_the_tests_is_made_and_the_others_are_skipped(monkeypatch, marker):
    found = [skipped(monkeypatch, Turn(number, NOTHING), marker, marker) for number in range(TURNS)]
    assert all(50 <= len(each) < 70 for each in found) and set.intersection(*found) == set()
    assert skipped(monkeypatch, Turn(0, NOTHING), None, marker) == set()
    assert skipped(monkeypatch, Turn(0, NOTHING), marker, "other") == set()


def test_a_topic_says_in_how_many_turns(monkeypatch):
    halves = [skipped(monkeypatch, Turn(number, NOTHING), topic="a 1 1 2 a.py") for number in (4, 5)]
    assert sorted((*halves[0], *halves[1])) == [*range(70)] and all(20 < len(half) < 50 for half in halves)
    assert skipped(monkeypatch, Turn(0, NOTHING), topic="a 1 1 1 a.py") == set()


@pytest.mark.parametrize(("changed", "all_are_made"), [
    ("tests/a.py", True), ("marius_oac/storage/memory.py", True), ("marius_oac/nodes/a.py", False),
    ("tests/b.py", False),
])  # fmt: skip
def test_all_are_made_where_they_or_what_they_test_have_changed(monkeypatch, changed, all_are_made):
    assert (skipped(monkeypatch, Turn(0, frozenset([changed]))) == set()) == all_are_made


def test_what_topics_test_is_there():
    assert all((ROOT / path).exists() for topic in topics() for path in topic.tested)
    assert all(1 <= topic.turns <= TURNS for topic in topics())
