"""What the ends of processes come to, and that none outlives the one that has started it."""

import os
import select
import signal
import subprocess
import sys
import threading
from contextlib import suppress

import pytest

from marius_oac.errors import DivergedError, InputError, MariusOacError, NodeLost
from marius_oac.nodes.launch.agent import LOST, LocalProcesses, exit_code_of, node_loss_marked, stopped_by_sigterm
from marius_oac.nodes.launch.parent import (
    MET,
    PARENT,
    SPARE,
    TOLD,
    _asking_the_kernel,
    bound,
    end_with_parent,
    has_told,
    tell_agent,
)
from marius_oac.nodes.launch.remote import end_of
from marius_oac.runtime.signals import StopSignal, stopped_by_signals
from tests.nodes.outliving import STOPS, ends_with
from tests.threads import PATIENCE

GUARD = [sys.executable, "-m", "marius_oac.nodes.launch.guard", "60"]
WAITS = """
import os, signal
from marius_oac.nodes.launch.parent import end_with_parent
end_with_parent()
print(os.getpid(), flush=True)
signal.pause()
"""


def test_the_secret_is_no_part_of_what_a_crew_is_shown_as():
    peers = LocalProcesses(["train"], ["a"], "x7secret")
    assert "names=['a']" in repr(peers) and "x7secret" not in repr(peers)


def test_a_sigterm_that_comes_while_an_error_is_handled_is_not_lost():
    """As in an import that tries another one first."""
    with pytest.raises(StopSignal) as stopped, stopped_by_sigterm():
        try:
            raise ImportError
        except ImportError:
            os.kill(os.getpid(), signal.SIGTERM)
            signal.sigtimedwait([], 0)  # it has been handled
        signal.sigtimedwait([], 60)
    assert stopped.value.number == signal.SIGTERM


def test_a_sigterm_that_is_lost_comes_again():
    with pytest.raises(StopSignal), stopped_by_signals(), stopped_by_sigterm():
        with suppress(StopSignal):  # as in a destructor
            os.kill(os.getpid(), signal.SIGTERM)
            signal.sigtimedwait([], 60)
        signal.sigtimedwait([], 60)


def test_a_reminder_that_comes_in_the_clean_up_is_heard():
    """Else the next request would be taken for it."""
    with stopped_by_signals() as requests:
        with suppress(StopSignal), stopped_by_sigterm():
            try:
                os.kill(os.getpid(), signal.SIGTERM)
                signal.sigtimedwait([], 60)
            finally:
                requests._timers[-1].join()  # it has sent the reminder
        assert requests.add(signal.SIGINT) == 2


def test_a_sigterm_that_is_put_off_when_all_is_done_stops_nothing_else():
    with stopped_by_signals() as requests:
        with stopped_by_sigterm():
            try:
                raise ImportError
            except ImportError:
                os.kill(os.getpid(), signal.SIGTERM)
                signal.sigtimedwait([], 0)
        assert not requests.asked


def test_whoever_fails_says_why_also_when_all_are_asked_to_stop_for_it():
    before = threading.active_count()
    with pytest.raises(NodeLost), stopped_by_sigterm():
        try:
            raise NodeLost("b", "has ended")
        finally:
            os.kill(os.getpid(), signal.SIGTERM)
            signal.sigtimedwait([], 0)
    assert threading.active_count() == before
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


@pytest.mark.parametrize(
    ("codes", "comes_to"),
    [
        ([2], 2),  # a full disk
        ([1], 1),  # a defect
        ([LOST, 2], 2),
        ([-9, 2], 2),
        ([143, 2], 2),  # the first was stopped because of the second
        ([-9], None),
        ([-11, 143], None),
        ([LOST], None),
        ([LOST, -15], None),
        ([130, 130], 130),
        ([-1], 129),
        ([-15], 143),
    ],
)
def test_only_after_a_loss_are_processes_started_again(codes, comes_to):
    assert exit_code_of(codes) == exit_code_of(codes[::-1]) == comes_to


@pytest.mark.parametrize(
    ("code", "found"),
    [
        (0, (0, "ended with exit code 0")),
        (1, (1, "ended with exit code 1")),
        (2, (2, "ended with exit code 2")),
        (255, (1, "ended with exit code 255")),
        (130, (130, "was stopped by SIGINT")),
        (129, (129, "was stopped by SIGHUP")),
        (137, (1, "was ended by SIGKILL")),
        (-9, (1, "was ended by SIGKILL")),
        (-15, (143, "was stopped by SIGTERM")),
    ],
)
def test_the_launchers_exit_code_is_one_of_the_documented(code, found):
    assert end_of(code) == found


@pytest.mark.parametrize(
    ("error", "code"), [(NodeLost("b", "gone"), LOST), (InputError("x"), 2), (DivergedError(1, float("nan")), 2)]
)
def test_an_agent_is_told_that_a_node_was_lost(monkeypatch, error, code):
    monkeypatch.setenv(PARENT, "1")
    with pytest.raises(type(error)), node_loss_marked():
        raise error
    assert error.exit_code == code


def test_torchrun_is_told_nothing(monkeypatch):
    monkeypatch.delenv(PARENT, raising=False)
    error = NodeLost("b", "gone")
    with pytest.raises(NodeLost), node_loss_marked():
        raise error
    assert error.exit_code == 1


def test_whose_parent_has_ended_does_not_begin(monkeypatch):
    monkeypatch.setenv(PARENT, str(os.getpid()))
    monkeypatch.setattr("marius_oac.nodes.launch.parent.ctypes.CDLL", lambda name: None)
    with pytest.raises(MariusOacError, match="the launcher has ended"):
        end_with_parent()


@pytest.mark.parametrize(("code", "variables"), [(STOPS, {}), (WAITS, {"PATH": ""})], ids=["setpriv", "none"])
def test_what_a_guard_has_started_ends_with_it(code, variables):
    command = [*GUARD, sys.executable, "-c", code]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    assert ends_with(subprocess.Popen(command, env={**os.environ, **variables}, **pipes), b"secret\n")


def test_an_agent_is_told_by_each_process_of_itself(monkeypatch, tmp_path):
    monkeypatch.delenv(TOLD, raising=False)
    tell_agent(SPARE)  # to nobody
    monkeypatch.setenv(TOLD, str(tmp_path))
    tell_agent(MET)
    pids = os.getpid(), os.getppid()
    assert [has_told(tmp_path, pid, what) for pid in pids for what in (MET, SPARE)] == [True, False, False, False]


@pytest.mark.parametrize("answers", ["exit 1", None])
def test_where_the_kernel_is_not_asked_a_command_is_as_it_is(monkeypatch, tmp_path, answers):
    if answers is not None:  # as a version that does not know the option
        (tmp_path / "setpriv").write_text(f"#!/bin/sh\n{answers}\n")
        (tmp_path / "setpriv").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    _asking_the_kernel.cache_clear()
    assert bound(["a", "b"]) == ["a", "b"]
    _asking_the_kernel.cache_clear()


def test_a_guard_without_a_launcher_starts_nothing():
    done = subprocess.run([*GUARD, "echo", "started"], stdin=subprocess.DEVNULL, capture_output=True)
    assert (done.returncode, done.stdout) == (1, b"")


PATIENT_GUARD = """
import sys
from marius_oac.nodes.launch import guard
from marius_oac.runtime import signals
signals.SAME_SECONDS = 60.0
sys.exit(guard.main(60.0, sys.argv[1:]))
"""
HEARD = """
import signal, threading
signal.signal(signal.SIGTERM, lambda number, frame: print("heard", flush=True))
print("ready", flush=True)
threading.Event().wait()  # `signal.pause()` would not see a signal whose handler is yet to run
"""


def test_a_guard_passes_a_request_on_once():
    command = [sys.executable, "-c", PATIENT_GUARD, sys.executable, "-c", HEARD]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        process.stdin.write("secret\n")
        process.stdin.flush()
        for line in ("ready\n", "heard\n"):
            assert process.stdout.readline() == line
            process.send_signal(signal.SIGTERM)
        assert not select.select([process.stdout], [], [], 0.2)[0]
        process.send_signal(signal.SIGINT)  # not handled: it ends
        assert process.stdout.read() == "" and process.wait(PATIENCE) in (1, 130)
