"""What is told of programs that a test has waited for in vain."""

import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

from tests import hangs

pytestmark = pytest.mark.usefixtures("forked_programs")
WAITS = """
import threading
def never():
    print("waits", flush=True)
    threading.Event().wait()
thread = threading.Thread(target=never)
thread.start()
thread.join()
"""


@pytest.fixture
def waiting():
    process = subprocess.Popen([sys.executable, "-c", WAITS], stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdout.readline() == "waits\n"
        yield process
        process.kill()


def reported(waiting, seconds=0.01):
    with pytest.raises(subprocess.TimeoutExpired) as given_up:
        waiting.wait(seconds)
    report = SimpleNamespace(sections=[])
    hangs.add_to(report, given_up)
    ((_, text),) = report.sections
    return text.partition(f"--- process {waiting.pid} of ")[2].partition("\n---")[0]


def test_the_stacks_of_all_threads_are_told_each_time(waiting):
    for _ in range(2):
        text = reported(waiting)
        assert text.count("Thread 0x") == 1 and text.count("Current thread 0x") == 1 and text.count("in never") == 1


def test_a_stopped_one_is_told_too(waiting, monkeypatch):
    monkeypatch.setattr(hangs, "_PATIENCE", 0.05)
    waiting.send_signal(signal.SIGSTOP)
    assert "it does not answer" in reported(waiting)


def test_a_test_that_fails_otherwise_asks_nobody():
    report = SimpleNamespace(sections=[])
    with pytest.raises(OSError) as failed:
        raise OSError
    hangs.add_to(report, failed)
    hangs.add_to(report, None)
    assert report.sections == []
