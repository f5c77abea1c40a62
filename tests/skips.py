"""What a run of the tests has left out, and why: printed at its end."""

from __future__ import annotations

from collections import Counter


def reasons(reports) -> Counter[str]:
    """How many tests were skipped for each reason. Reports: of pytest, `longrepr` is (file, line, reason)."""
    return Counter(report.longrepr[2].removeprefix("Skipped: ").strip() for report in reports)


class Skips:
    def pytest_terminal_summary(self, terminalreporter):
        found = reasons(terminalreporter.stats.get("skipped", ()))
        if found:
            terminalreporter.section("skipped tests by reason")
            for reason, count in sorted(found.items(), key=lambda each: (-each[1], each[0])):
                terminalreporter.write_line(f"{count:5}  {reason}")
