"""Signals at an agent: what comes more than once is one request, and only the first interrupts."""

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import pytest
from torch.distributed import DistError
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing.api import SignalException

from marius_oac.errors import NodeLost
from marius_oac.nodes.launch import agent, agent_signals
from marius_oac.nodes.launch.agent import LocalProcesses, run
from marius_oac.nodes.launch.agent_signals import AgentSignals
from marius_oac.nodes.launch.guard import ALIVE
from marius_oac.nodes.launch.remote import _end, _launched, start
from marius_oac.runtime.signals import SAME_SECONDS, STOPPING, StopSignal
from tests.threads import PATIENCE

TRAINER = """
import sys, threading
from pathlib import Path
from marius_oac.runtime.signals import stop_on_interrupt, stopped_by_signals

folder, asked = Path(sys.argv[1]), threading.Event()
try:
    with stopped_by_signals() as requests, stop_on_interrupt(asked.set):
        (folder / "ready").touch()
        while not asked.wait(0.01):
            pass
        (folder / "asked").touch()
        asked.clear()
        while not (folder / "all sent").exists():  # saves a checkpoint
            asked.wait(0.01)
        asked.wait(0.2)
        (folder / "saved").touch()
    sys.exit(128 + requests.first)
except KeyboardInterrupt:
    (folder / "stopped at once").touch()
    sys.exit(1)
"""

SAID = b"secret\n" + ALIVE


def sent(folder, signals, last=True):
    """Sends these to this process when its trainer is ready, the others after it has heard the first. `last`: no other
    comes, and the trainer may end."""
    for number, file in zip(signals, ("ready", *["asked"] * len(signals)), strict=False):
        end = time.monotonic() + PATIENCE
        while not (folder / file).exists():
            assert time.monotonic() < end
            threading.Event().wait(0.01)
        if file == "asked" and number == signals[0]:
            threading.Event().wait(SAME_SECONDS + 0.1)  # for the trainer it would be another request
        os.kill(os.getpid(), number)
    if last:
        (folder / "all sent").touch()


@pytest.fixture
def untouched():
    before = [signal.getsignal(number) for number in STOPPING]
    yield
    assert [signal.getsignal(number) for number in STOPPING] == before


@pytest.mark.parametrize("number, times", [(signal.SIGINT, 2), (signal.SIGHUP, 2), (signal.SIGTERM, 3)])
def test_a_signal_that_comes_more_than_once_leaves_time_for_the_checkpoint(
    tmp_path, untouched, monkeypatch, number, times
):
    """As from a closing terminal, or from the launcher, the guard and a cluster manager."""
    monkeypatch.setattr("marius_oac.runtime.signals.SAME_SECONDS", 60.0)
    sender = threading.Thread(target=sent, args=(tmp_path, [number] * times))
    sender.start()
    assert run(LocalProcesses(["-c", TRAINER, str(tmp_path)], ["a"], "secret")) == 128 + number
    sender.join()
    assert (tmp_path / "saved").exists() and not (tmp_path / "stopped at once").exists()


def test_a_second_request_stops_at_once(tmp_path, untouched):
    sender = threading.Thread(target=sent, args=(tmp_path, [signal.SIGTERM, signal.SIGINT], False))
    sender.start()
    assert run(LocalProcesses(["-c", TRAINER, str(tmp_path)], ["a"], "secret")) == 143
    sender.join()
    assert (tmp_path / "stopped at once").exists()


def test_processes_inherit_that_a_hangup_is_ignored():
    """`nohup`."""
    ignores = "import signal, sys; sys.exit(signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN)"
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert run(LocalProcesses(["-c", ignores], ["a"], "secret")) == 0
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_signal_that_comes_when_all_is_over_changes_nothing(monkeypatch, untouched):
    """While the store is closed, which may take a while where another node is frozen."""

    @contextmanager
    def closes(*given):
        with agent.store_of.before(*given) as store:
            yield store
        come(signal.SIGTERM)

    closes.before = agent.store_of
    monkeypatch.setattr(agent, "store_of", closes)
    assert run(LocalProcesses(["-c", ""], ["a"], "secret")) == 0


def test_a_signal_that_comes_when_all_have_ended_changes_nothing(monkeypatch, untouched):
    """While torch's agent and the rendezvous are told."""
    monkeypatch.setattr(
        "torch.distributed.elastic.agent.server.api.SimpleElasticAgent._record_worker_events",
        lambda *given: come(signal.SIGTERM),
    )
    assert run(LocalProcesses(["-c", ""], ["a"], "secret")) == 0


def test_a_signal_that_comes_while_processes_are_started_waits_until_they_can_be_stopped(monkeypatch, untouched):
    start_workers, started = LocalElasticAgent._start_workers, []

    def starts(self, group):
        come(signal.SIGTERM)
        started.append(start_workers(self, group))
        return started[0]

    monkeypatch.setattr(LocalElasticAgent, "_start_workers", starts)
    waits = "import signal; signal.pause()"
    assert run(LocalProcesses(["-c", waits], ["a"], "secret")) == 143 and len(started) == 1


def test_the_first_nodes_store_is_never_another_nodes(monkeypatch, untouched):
    """An error of the store that this process keeps is a defect."""

    def broken(self):
        raise DistError("broken")

    monkeypatch.setattr("marius_oac.nodes.launch.elastic.Meeting.next_rendezvous", broken)
    with pytest.raises(DistError, match="broken"):
        run(LocalProcesses(["-c", ""], ["a"], "secret"))


@pytest.fixture
def signals(untouched, monkeypatch):
    """With one process group, 7, and what was sent to it; the same signal is never the same request."""
    monkeypatch.setattr("marius_oac.runtime.signals.SAME_SECONDS", 0.0)
    passed_on = []
    monkeypatch.setattr(agent_signals.os, "killpg", lambda group, number: passed_on.append((group, number)))
    with AgentSignals().handled() as made:
        made.passed_on = passed_on
        yield made


def come(number):
    signal.raise_signal(number)


def test_until_processes_are_started_a_signal_is_the_commands(signals):
    with pytest.raises(KeyboardInterrupt) as raised:
        come(signal.SIGINT)
    assert raised.type is KeyboardInterrupt
    with pytest.raises(StopSignal, match="SIGTERM"):
        come(signal.SIGTERM)
    assert signals.passed_on == []


def test_the_first_interrupts_and_others_are_passed_on(signals):
    signals.started(lambda: [7, 8])
    with pytest.raises(SignalException) as raised:
        come(signal.SIGHUP)
    assert raised.value.sigval == signal.SIGHUP and signals.passed_on == []
    come(signal.SIGINT)
    come(signal.SIGTERM)
    assert signals.passed_on == [(7, 2), (8, 2), (7, 9), (8, 9)]
    signals.raise_late()  # the first was raised


def test_one_that_comes_while_processes_are_stopped_is_passed_on_and_raised_afterwards(signals):
    signals.started(lambda: [7])
    with signals.held_back():
        with signals.held_back():
            pass
        come(signal.SIGTERM)
    assert signals.passed_on == [(7, 15)]
    with pytest.raises(SignalException) as raised:
        signals.raise_late()
    assert raised.value.sigval == signal.SIGTERM


@pytest.mark.parametrize("asked", [True, False])
def test_when_all_have_ended_the_first_does_nothing(signals, asked):
    """Also where another one had ended them."""
    signals.started(list)
    if asked:
        with pytest.raises(SignalException):
            come(signal.SIGHUP)
    signals.ended()
    come(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt):
        come(signal.SIGINT)


def test_a_process_that_has_ended_meanwhile_gets_nothing(signals, monkeypatch):
    def gone(group, number):
        raise ProcessLookupError

    monkeypatch.setattr(agent_signals.os, "killpg", gone)
    signals.started(lambda: [7])
    with signals.held_back():
        come(signal.SIGTERM)


def test_an_ssh_that_is_stopped_is_not_waited_for(monkeypatch):
    monkeypatch.setattr("marius_oac.nodes.launch.remote._TERMINATED", 1.0)
    takes_a_moment = (
        "import os, signal, threading\n"
        "signal.signal(15, lambda *given: (threading.Event().wait(0.1), os._exit(5)))\n"
        "print(flush=True); threading.Event().wait()"
    )
    codes = "import os; os.kill(os.getpid(), 19)", "import sys; sys.stdin.read()", takes_a_moment
    started = [_launched("a", [sys.executable, "-c", code], subprocess.PIPE) for code in codes]
    os.waitid(os.P_PID, started[0].process.pid, os.WSTOPPED)
    assert started[2].process.stdout.readline() == b"\n"
    _end(started)
    assert [one.process.returncode for one in started] == [-signal.SIGKILL, -signal.SIGTERM, 5]


def test_a_guard_hears_with_the_secret_that_its_launcher_is_there():
    """The launcher may be stopped right after it has sent the secret."""
    said = f"import os, sys; sys.exit(os.read(0, 99)[: len({SAID!r})] != {SAID!r})"
    assert start([("a", [sys.executable, "-S", "-c", said])], "secret", 3600.0) == 0


@pytest.mark.parametrize(("number", "kills", "named"), [(9, (3, 4), True), (9, (3, 3), False), (11, (3, 4), False)])
def test_a_process_that_the_kernel_has_killed_for_memory_is_told(monkeypatch, untouched, number, kills, named):
    told = iter(kills)
    monkeypatch.setattr(agent, "memory_kills", lambda: next(told))
    dies = f"import os; os.kill(os.getpid(), {number})"
    with pytest.raises(NodeLost, match=f"was ended by {signal.Signals(number).name}") as caught:
        run(LocalProcesses(["-c", dies], ["a"], "secret"))
    assert ("the kernel has ended a process for lack of memory" in str(caught.value)) == named
