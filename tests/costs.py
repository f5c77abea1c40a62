"""Processor time of each test file, with that of the processes that its tests start, against the budget.

`pytest --costs` prints the table; `tests/budget.txt` says how many seconds each topic may cost, and which files it has.
"""

from __future__ import annotations

import fnmatch
import resource
from collections import Counter
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

    def pytest_terminal_summary(self, terminalreporter):
        terminalreporter.section("processor time by topic and file")
        terminalreporter.write_line(table(self.seconds, BUDGET.read_text("utf-8")))


def topics(budget: str) -> list[tuple[str, float, list[str]]]:
    """(name, seconds, patterns) of each line `NAME SECONDS PATTERN ...`; a file is the first topic's that matches."""
    lines = (line.split("#")[0].split() for line in budget.splitlines())
    return [(name, float(seconds), patterns) for name, seconds, *patterns in filter(None, lines)]


def topic_of(file: str, known: list[tuple[str, float, list[str]]]) -> str:
    for name, _, patterns in known:
        if any(fnmatch.fnmatch(file, f"tests/{pattern}") for pattern in patterns):
            return name
    raise LookupError(f"no topic of tests/budget.txt has {file}")


def table(seconds: Counter[str], budget: str) -> str:
    """Topics with their budgets, and below each its files, the dearest first."""
    known, lines = topics(budget), []
    for name, allowed, _ in known:
        files = {file: cost for file, cost in seconds.items() if topic_of(file, known) == name}
        total = sum(files.values())
        over = "  OVER" if total > allowed else ""
        lines.append(f"{total:7.1f} of {allowed:5.0f} s  {name}{over}")
        lines += [f"{cost:24.1f}  {file}" for file, cost in sorted(files.items(), key=lambda each: -each[1])]
    lines.append(f"{sum(seconds.values()):7.1f} of {sum(allowed for _, allowed, _ in known):5.0f} s  all")
    return "\n".join(lines)


def add_option(parser):
    parser.addoption("--costs", action="store_true", help="processor time by topic and file, against tests/budget.txt")


def configure(config):
    if config.getoption("--costs"):
        config.pluginmanager.register(Costs(), "costs")
