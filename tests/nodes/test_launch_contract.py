"""What all launchers decide alike: when commands stop, and which exit code the run has."""

import signal

import pytest

from marius_oac.nodes.launch.contract import Started, Watch


class Command(Started):
    def __init__(self, name):
        self.name, self.asked = name, []

    def ask(self, again):
        self.asked.append(again)


@pytest.fixture
def watch():
    return Watch([Command("node0"), Command("node1")])


@pytest.mark.parametrize(
    "ends, code", [([0, 0], 0), ([1, 0], 1), ([1, 2], 2), ([2, 1], 2), ([0, 143], 143), ([1, 143], 1)]
)
def test_the_exit_code_is_the_first_failures_but_for_a_mistake(watch, ends, code):
    for one, ended in zip(watch.started, ends, strict=True):
        watch.ended(one, ended, f"ended with exit code {ended}")
    assert watch.code == code
    assert all(one.asked == ([False] if any(ends) else []) for one in watch.started)
    assert (watch.left is None) == (not any(ends))


def test_the_first_failure_is_named(watch, capsys):
    watch.ended(watch.started[1], 1, "was ended by SIGKILL")
    watch.ended(watch.started[0], 1, "ended with exit code 1")
    assert capsys.readouterr().err == "marius-oac: node node1: was ended by SIGKILL\n"


def test_signals_stop_all_in_an_orderly_way_and_then_at_once(watch, capsys):
    watch.interrupted(signal.SIGTERM, None)
    watch.interrupted(signal.SIGTERM, None)  # at once again: as from a closing terminal
    assert [one.asked for one in watch.started] == [[False]] * 2
    watch.interrupted(signal.SIGINT, None)
    watch.ended(watch.started[0], 1, "ended with exit code 1")
    assert [one.asked for one in watch.started] == [[False, True]] * 2
    assert watch.code == 143 and watch.left > 600 and watch.asked == 2
    assert capsys.readouterr().err == ""
