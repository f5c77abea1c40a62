"""What tells the processor time of tests adds it up by file and topic."""

import re
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.costs import Topic, dearest_first, table, topic_of, topics

FILE = "tests/house/test_costs.py"
ROOT = Path(__file__).parents[2]
LINES = """
nodes 10 100 7 nodes/* : marius_oac/nodes marius_oac/runs  # comments are left out
the-rest 5 200 1 *
"""


def test_files_are_added_up_under_the_first_topic_that_matches():
    found = Counter({"tests/nodes/a.py": 7.0, "tests/nodes/b.py": 4.5, "tests/c.py": 5.0})
    told = table(found, topics(LINES)).splitlines()
    assert [line.split() for line in told] == [
        ["11.5", "of", "10", "s", "nodes", "OVER"], ["7.0", "tests/nodes/a.py"], ["4.5", "tests/nodes/b.py"],
        ["5.0", "of", "5", "s", "the-rest"], ["5.0", "tests/c.py"],
        ["16.5", "of", "15", "s", "all"],
    ]  # fmt: skip
    with pytest.raises(LookupError, match=r"no topic of tests/budget.txt has tests/c.py"):
        topic_of("tests/c.py", topics("nodes 10 100 1 nodes/*"))
    files = [str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py")]
    assert all(topic_of(file, topics()) for file in files)
    assert topics(LINES)[0] == Topic("nodes", 10, 100, 7, ("nodes/*",), ("marius_oac/nodes", "marius_oac/runs"))
    assert topics(LINES)[1].tested == () and topics(LINES)[1].seconds(slow=True) == 200


@dataclass
class Item:
    nodeid: str


def test_the_dearest_files_come_first_and_their_tests_in_the_order_they_had():
    """With the slow tests others may be the dearest."""
    items = [Item(f"tests/{name}::test_{number}") for name in ("a.py", "nodes/b.py", "nodes/c.py") for number in "12"]
    assert dearest_first(items, topics(LINES)) == items
    assert dearest_first(items, topics("nodes 11 0 1 nodes/*\nrest 5 1 1 *")) == [*items[2:], *items[:2]]
    assert dearest_first(items, topics("nodes 11 0 1 nodes/*\nrest 5 1 1 *"), slow=True) == items


@pytest.mark.slow
def test_it_is_there_however_pytest_is_started():
    """The command `pytest` has no folder of the caller's to import from; `python -P` neither."""
    words = f"-P -m pytest -q --costs -p no:cacheprovider {FILE} -k added_up".split()
    said = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert re.search(r"\d of +\d+ s  all", said) and FILE in said
