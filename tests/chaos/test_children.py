"""What commands do is judged, and counted, as it is called."""

import threading

import pytest

from tests.chaos import __main__ as sweeps
from tests.chaos import children
from tests.chaos.children import HUNG, Outcome, Said, Tally

OWN = "marius-oac: /run: is damaged"


@pytest.mark.parametrize(
    ("argv", "code", "err", "raised", "kind"),
    [
        ("eval", 0, ["note: a line"], None, None),
        ("eval", 2, ["note: a line", OWN], None, None),
        ("eval", 2, [OWN, OWN], None, "wrong"),
        ("eval", 2, [], None, "wrong"),
        ("eval", 0, [OWN], None, "wrong"),
        ("eval", 1, [OWN], None, "wrong"),
        ("eval", 2, ["Traceback (most recent call last):", OWN], None, "traceback"),
        ("eval", -1, [], "ValueError: 1", "traceback"),
        ("verify", 2, [], None, None),
        ("verify", 2, [OWN], None, None),
        ("verify", 2, [OWN, OWN], None, "wrong"),
    ],
)
def test_a_command_is_judged(monkeypatch, argv, code, err, raised, kind):
    monkeypatch.setattr(threading, "active_count", lambda: 1)  # whatever other tests have left
    fault = Said((argv,), code, (), tuple(err), raised).fault
    assert (fault and fault.split(":")[0]) == kind


def test_cases_are_counted_by_what_was_wrong():
    tally = Tally("flips")
    ended = "the process has ended with code 1: "
    for fault in (None, "lost: a", "traceback: b", "wrong: c", f"{ended}{HUNG}0:05:00)!", f"{ended}Segmentation fault"):
        tally.add(Outcome("memory", 0, "x", codes=(2,) if fault is None else (), fault=fault))
    assert tally.counts == {"lost": 1, "hung": 1, "traceback": 1, "wrong": 2}
    assert tally.row() == "| flips | 6 | 1 | 1 | 1 | 1 | 2 | 0 |" and len(tally.faults) == 5


def test_after_a_case_that_ends_its_process_the_next_one_goes_on(tmp_path, monkeypatch):
    began = []

    def outcomes_of(command, specimen, begin, *rest, **environment):
        began.append(begin)
        yield from (Outcome(specimen, number, "x") for number in range(begin, min(begin + 2, 5)))
        if begin < 5:
            yield Outcome(specimen, begin + 2, "x", fault="the process has ended with code -11: ")

    monkeypatch.setattr(children, "outcomes_of", outcomes_of)
    tally = children.run_cases("flips", 0, tmp_path)
    assert began == [0, 3, 6] and tally.counts["wrong"] == 2


@pytest.mark.parametrize(("fault", "code"), [(None, 0), ("lost: a", 1)])
def test_the_table_comes_last(monkeypatch, capsys, fault, code):
    def run_cases(name, seed, folder, first, count, seconds, told, environment):
        tally = Tally(name)
        tally.add(Outcome("memory", first, f"seed {seed}", fault=fault))
        told(tally.faults[0]) if fault else None
        return tally

    monkeypatch.setattr(sweeps, "run_cases", run_cases)
    assert sweeps.main(["crash", "flips", "--seed", "3", "--first", "7"]) == code
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2].startswith("| crash_states | 1 |") and lines[-1].startswith("| flips | 1 |")
    assert (code == 1) == lines[0].startswith("seed 3: --only 'memory' --first 7")


@pytest.mark.parametrize("budget", ["0.001", "-1"])
def test_a_budget_that_leaves_a_sweep_without_cases_is_an_error(budget, capsys):
    assert sweeps.main(["crash", "resealed", "--budget", budget]) == 2
    assert "no case of crash_states, resealed was run" in capsys.readouterr().err
