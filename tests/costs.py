"""Processor time of each test file, with that of the processes that its tests start, against the budget.

`tests/budget.txt` says how many seconds each topic may cost, which files it has, and what `tests.turns` asks of it.
`pytest --costs` prints the table. The dearest files come first, so that no worker of a
test run is left with one when the others are done.
"""

from __future__ import annotations

import fnmatch
import resource
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

BUDGET = Path(__file__).with_name("budget.txt")
_OWN = "processor time"


def spent() -> float:
    """Seconds of this process and of those that it has started and that have ended."""
    return sum(
        usage.ru_utime + usage.ru_stime
        for usage in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


class Costs:
    """Adds up what the tests of each file cost, also where several workers run them."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item, call):
        report = yield
        now, before = spent(), item.session._spent
        item.session._spent = now
        report.user_properties.append((_OWN, now - before))
        return report

    def pytest_runtestloop(self, session):
        session._spent = spent()

    def pytest_runtest_logreport(self, report):
        # A list that the three reports of a test share: each takes what was last.
        self.seconds[report.nodeid.split("::")[0]] += report.user_properties[-1][1]

    def pytest_terminal_summary(self, terminalreporter, config):
        terminalreporter.section("processor time by topic and file")
        terminalreporter.write_line(table(self.seconds, topics(), with_slow(config)))


@dataclass(frozen=True)
class Topic:
    """A line `NAME SECONDS SECONDS TURNS PATTERN ... : PATH ...`.

    Attributes:
        quick, all: seconds that its quick tests may cost, and all its tests.
        turns: in how many turns all its slow tests are made.
        patterns: its files, below `tests`. A file is the first topic's that matches.
        tested: files and folders, relative to the root, whose change asks for all its tests.
    """

    name: str
    quick: float
    all: float
    turns: int
    patterns: tuple[str, ...]
    tested: tuple[str, ...]

    def has(self, file: str) -> bool:
        return any(fnmatch.fnmatch(file, f"tests/{pattern}") for pattern in self.patterns)

    def seconds(self, slow: bool) -> float:
        return self.all if slow else self.quick


Topics = list[Topic]


def topics(budget: str | None = None) -> Topics:
    """Those of a text, by default of `tests/budget.txt`."""
    lines = (line.split("#")[0].partition(":") for line in (budget or BUDGET.read_text("utf-8")).splitlines())
    words = ((before.split(), after.split()) for before, _, after in lines)
    return [
        Topic(name, float(quick), float(all_), int(turns), tuple(patterns), tuple(tested))
        for (name, quick, all_, turns, *patterns), tested in filter(lambda each: each[0], words)
    ]


def with_slow(config) -> bool:
    """Whether the slow tests run, too."""
    return config.getoption("markexpr") != "not slow"


def dearest_first(items: list, known: Topics, slow: bool = False) -> list:
    """Tests in the order of their files' shares of the budget, which a topic's files have alike."""
    of = {file: topic_of(file, known) for file in {item.nodeid.split("::")[0] for item in items}}
    count = Counter(topic.name for topic in of.values())
    share = {file: topic.seconds(slow) / count[topic.name] for file, topic in of.items()}
    return sorted(items, key=lambda item: -share[item.nodeid.split("::")[0]])


def topic_of(file: str, known: Topics) -> Topic:
    for topic in known:
        if topic.has(file):
            return topic
    raise LookupError(f"no topic of tests/budget.txt has {file}")


def table(seconds: Counter[str], known: Topics, slow: bool = False) -> str:
    """Topics with their budgets, and below each its files, the dearest first."""
    lines = []
    for topic in known:
        files = {file: cost for file, cost in seconds.items() if topic_of(file, known) is topic}
        total, allowed = sum(files.values()), topic.seconds(slow)
        over = "  OVER" if total > allowed else ""
        lines.append(f"{total:7.1f} of {allowed:5.0f} s  {topic.name}{over}")
        lines += [f"{cost:24.1f}  {file}" for file, cost in sorted(files.items(), key=lambda each: -each[1])]
    lines.append(f"{sum(seconds.values()):7.1f} of {sum(topic.seconds(slow) for topic in known):5.0f} s  all")
    return "\n".join(lines)


def add_option(parser):
    parser.addoption("--costs", action="store_true", help="processor time by topic and file, against tests/budget.txt")


def modify(config, items):
    items[:] = dearest_first(items, topics(), with_slow(config))


def configure(config):
    if config.getoption("--costs"):
        config.pluginmanager.register(Costs(), "costs")
