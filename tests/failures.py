"""Under what a test failed: its seed and the machine's load at that moment, printed with its name at the end of a run.

A test that failed is not run again by anything here. Whoever runs it again has this line first, and can tell a defect
from a machine that was too busy.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

PROPERTIES = "hypothesis"  # the marker that Hypothesis gives its tests
LOAD = Path("/proc/loadavg")


class Failures:
    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item, call):
        report = yield
        if report.failed:
            report.conditions = f"{seed_of(item)}; {load()}"  # a worker of pytest-xdist sends it along
        return report

    def pytest_terminal_summary(self, terminalreporter):
        failed = [each for kind in ("failed", "error") for each in terminalreporter.stats.get(kind, ())]
        found = [each for each in failed if hasattr(each, "conditions")]  # not of files that can't be imported
        if found:
            terminalreporter.section("seed and load of each failure")
            for report in found:
                terminalreporter.write_line(f"{report.nodeid} ({report.when}): {report.conditions}")


def seed_of(item) -> str:
    """Of Hypothesis, whose examples are the only ones that are ever drawn by chance."""
    if item.get_closest_marker(PROPERTIES) is None:
        return "no seed"
    given = item.config.getoption("hypothesis_seed", None)
    return "the same examples each time" if given is None else f"--hypothesis-seed={given}"


def load() -> str:
    """Of the last 1, 5 and 15 minutes, and now: threads that run or want to, of all."""
    *minutes, now, _ = LOAD.read_text().split()
    worker, count = (os.environ.get(f"PYTEST_XDIST_WORKER{each}") for each in ("", "_COUNT"))
    place = f"; worker {worker} of {count}" if worker else ""
    return f"load {' '.join(minutes)}, {now} threads run, {len(os.sched_getaffinity(0))} processors{place}"
