"""Tests that were left out are named at the end."""

from types import SimpleNamespace

from tests.skips import Skips


def test_skips_are_counted_by_reason():
    said = []
    reports = [
        SimpleNamespace(longrepr=("test_a.py", 3, f"Skipped: {why}")) for why in ("needs root", "no dgl", "needs root")
    ]
    terminal = SimpleNamespace(stats={"skipped": reports}, section=said.append, write_line=said.append)
    Skips().pytest_terminal_summary(terminal)
    assert said == ["skipped tests by reason", "    2  needs root", "    1  no dgl"]


def test_nothing_is_said_where_nothing_was_left_out():
    Skips().pytest_terminal_summary(SimpleNamespace(stats={}))
