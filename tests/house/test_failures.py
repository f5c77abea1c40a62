"""A session of tests of its own: what is said of a failed one, and that ignored signals hang nothing."""

import os
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest

from tests import failures
from tests.dispositions import KEPT

pytestmark = pytest.mark.usefixtures("forked_programs")
HANDLER = "default_int_handler"
SESSION = """
import signal, sys
for number in (1, 2, 3, 15):
    signal.signal(number, signal.SIG_IGN)
import pytest
sys.exit(pytest.main(["-q", "--tb=no", "-p", "tests.conftest", "-p", "no:cacheprovider", *sys.argv[1:]]))
"""
SIGNALS = """
import pytest, signal, subprocess

def test_signals():
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    ignored = subprocess.run(["grep", "SigIgn", "/proc/self/status"], capture_output=True, text=True).stdout
    numbers = {number for number in (1, 2, 3, 15) if int(ignored.split()[1], 16) >> (number - 1) & 1}
    assert not numbers, "programs that tests start ignore these"
"""
HANGUP = """
import signal
signal.raise_signal(signal.SIGHUP)  # the terminal closes as the tests are collected
"""
FAILS = """
import pytest
from hypothesis import given, strategies as st

@given(st.integers())
def test_drawn(number):
    assert number < 0

@pytest.fixture
def broken():
    raise OSError

def test_set_up(broken):
    pass

def test_passes():
    pass
"""


def session(folder, text, *options):
    """The exit code of a session that is started with these signals ignored, and the lines that it prints."""
    file = folder / "tests" / "house" / "test_tiny.py"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    command = [sys.executable, "-c", SESSION, f"--rootdir={folder}", *options, str(file)]
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(command, cwd=folder, env=variables | {"PYTHONPATH": os.getcwd()}, text=True,
                          capture_output=True, check=False, timeout=100)  # fmt: skip
    return done.returncode, (done.stdout + done.stderr).splitlines()


@pytest.fixture(scope="module")
def ended(tmp_path_factory, forked_programs):
    """As by `nohup make test` in the background of a script, whose terminal closes."""
    return session(tmp_path_factory.mktemp("session"), HANGUP + SIGNALS + FAILS, "--hypothesis-seed=7")


def test_signals_that_were_ignored_are_not(ended):
    code, lines = ended
    assert code == 1 and "1 failed, 2 passed, 1 error" in lines[-1], lines


def test_the_seed_and_the_load_of_a_failure_are_printed(ended):
    _, lines = ended
    begin = next(number for number, line in enumerate(lines) if "seed and load of each failure" in line)
    found = [line.removeprefix("tests/house/test_tiny.py::") for line in lines[begin + 1 : begin + 3]]
    load = r"load [\d.]+ [\d.]+ [\d.]+, \d+/\d+ threads run, \d+ processors"
    assert re.fullmatch(rf"test_drawn \(call\): --hypothesis-seed=7; {load}", found[0])
    assert re.fullmatch(rf"test_set_up \(setup\): no seed; {load}", found[1])


def handlers(before="", **variables):
    """What SIGHUP and SIGINT do after `as_usual`, and what workers are told."""
    text = f"""import os, signal
{before}
from tests.dispositions import as_usual
as_usual()
print(*(getattr(signal.getsignal(number), "__name__", "default") for number in (1, 2)), os.environ.get({KEPT!r}))"""
    own = {name: value for name, value in os.environ.items() if name != KEPT}  # of tests that nohup has started
    done = subprocess.run([sys.executable, "-c", text], env=own | variables, text=True, capture_output=True)
    return done.stdout.split()


def test_a_hangup_ends_no_worker_where_it_was_ignored():
    """A worker was started with the default, by a process that had undone it."""
    assert handlers("signal.signal(1, signal.SIG_IGN)") == handlers(**{KEPT: "1"}) == ["<lambda>", HANDLER, "1"]


def test_where_none_was_ignored_nothing_is_changed():
    assert handlers() == ["default", HANDLER, "None"]
    assert handlers("signal.signal(2, print)") == ["default", "print", "None"]


def test_examples_that_are_drawn_by_no_seed_are_not_given_one():
    item = SimpleNamespace(
        get_closest_marker=lambda name: name == "hypothesis",
        config=SimpleNamespace(getoption=lambda name, other: other),
    )
    assert failures.seed_of(item) == "the same examples each time"


def test_what_a_worker_saw_comes_with_its_report(monkeypatch, tmp_path):
    (tmp_path / "load").write_text("7.50 3.00 1.25 5/512 4711\n")
    monkeypatch.setattr(failures, "LOAD", tmp_path / "load")
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw1")
    monkeypatch.setenv("PYTEST_XDIST_WORKER_COUNT", "3")
    report = pytest.TestReport("a::b", ("a", 1, "b"), {}, "failed", None, "call")
    item = SimpleNamespace(get_closest_marker=lambda name: None)
    made = failures.Failures().pytest_runtest_makereport(item, None)
    next(made)
    with pytest.raises(StopIteration):
        made.send(report)
    sent = pytest.TestReport._from_json(report._to_json())
    assert sent.conditions.startswith("no seed; load 7.50 3.00 1.25, 5/512 threads run, ")
    assert sent.conditions.endswith(" processors; worker gw1 of 3")
