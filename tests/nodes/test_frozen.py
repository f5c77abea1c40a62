"""Processes that are stopped count as lost after `timeout`, and who is not heard of any more ends what it has
started."""

import os
import selectors
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch.distributed as dist

from marius_oac.errors import NodeLost
from marius_oac.nodes.launch import guard, parent
from marius_oac.nodes.launch.agent_signals import AgentSignals
from marius_oac.nodes.launch.elastic import Agent, Meeting
from marius_oac.nodes.launch.frozen import Watched, frozen_end, is_stopped
from marius_oac.nodes.launch.parent import stopped_with_parent

WAITS = "import signal; print(flush=True); signal.pause()"
OBEYS = (
    "import os, signal, threading; signal.signal(signal.SIGTERM, lambda *a: os._exit(7)); print(flush=True); "
    "threading.Event().wait()"
)


@pytest.fixture
def waiting():
    with subprocess.Popen([sys.executable, "-S", "-c", WAITS], stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        yield process
        process.kill()


NAMED = "import ctypes; ctypes.CDLL(None).prctl(15, b'x) T (y', 0, 0, 0); " + WAITS  # PR_SET_NAME


def test_a_name_is_not_taken_for_a_state():
    with subprocess.Popen([sys.executable, "-S", "-c", NAMED], stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        assert not is_stopped(process.pid)
        stop(process)
        assert is_stopped(process.pid)
        process.kill()


def stop(process):
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)


def test_whoever_is_stopped_for_long_is_lost_and_nobody_else(waiting):
    time, lost = SimpleNamespace(now=100.0), []
    watched = Watched(lambda: [waiting.pid, os.getpid(), 1 << 30], 10.0, lost.append, lambda: time.now)

    def at(now):
        time.now = now
        watched.look()
        return len(lost)

    assert not is_stopped(waiting.pid) and at(100) == at(200) == 0
    stop(waiting)
    assert is_stopped(waiting.pid) and at(300) == at(309.9) == 0
    waiting.send_signal(signal.SIGCONT)
    os.waitid(os.P_PID, waiting.pid, os.WCONTINUED)
    assert at(320) == 0  # it went on meanwhile
    stop(waiting)
    assert at(330) == at(339.9) == 0 and at(340) == 1 and at(349.9) == 1 and at(350) == 2
    assert lost == [waiting.pid] * 2


def test_a_frozen_process_is_killed(waiting):
    stop(waiting)
    with frozen_end(lambda: [waiting.pid], 0.05):
        assert waiting.wait(60) == -signal.SIGKILL


@pytest.mark.parametrize(
    "said",
    [
        guard.ALIVE,  # and nothing after it
        pytest.param(guard.STOP, marks=pytest.mark.slow),
        pytest.param(b"", marks=pytest.mark.slow),  # by hand: who never said that it is alive need not go on saying so
    ],
)
def test_a_guard_asks_to_stop_when_told_or_when_nothing_is_heard(said):
    command = [sys.executable, "-m", "marius_oac.nodes.launch.guard", "0.2", sys.executable, "-S", "-c", OBEYS]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as process:
        process.stdin.write(b"secret\n")
        process.stdout.readline()
        process.stdin.write(said)
        if not said:
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(1)
            process.stdin.close()
        assert process.wait(60) == 7


def test_a_trainer_stops_when_its_parent_is_frozen(waiting, monkeypatch):
    stop(waiting)
    monkeypatch.setattr("marius_oac.nodes.launch.parent.os.getppid", lambda: waiting.pid)
    with pytest.raises(KeyboardInterrupt), stopped_with_parent(0.05):
        signal.sigtimedwait([], 60)
    assert waiting.poll() is None, "it is the user's to end"


# Its parent is stopped, and it is in compiled code, which hears no request: here it blocks them.
DEAF = """
import os, signal, sys, time
from marius_oac.nodes.launch import parent
parent.os.getppid = lambda: int(sys.argv[1])
parent._PATIENCE = 0.1
if "met" in sys.argv:
    parent.tell_agent(parent.MET)
asked, kill = [], os.kill
parent.os.kill = lambda pid, number: print(number, flush=True)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
with parent.stopped_with_parent(0.2):
    parent.kill = lambda pid: kill(pid, signal.SIGKILL)
    signal.sigtimedwait([], 60)
"""


@pytest.mark.parametrize(("met", "requests"), [("met", 2), ("", 1)])
def test_a_trainer_whose_parent_is_frozen_is_killed_if_it_hears_no_request(waiting, tmp_path, met, requests):
    stop(waiting)
    command = [sys.executable, "-c", DEAF, str(waiting.pid), met]
    trainer = subprocess.run(command, env={**os.environ, parent.TOLD: str(tmp_path)}, stdout=subprocess.PIPE, text=True)
    assert trainer.returncode == -signal.SIGKILL
    assert trainer.stdout == f"{signal.SIGINT:d}\n" * requests


def test_a_trainer_that_hears_the_request_is_not_killed(waiting, monkeypatch, tmp_path):
    stop(waiting)
    killed = []
    monkeypatch.setenv(parent.TOLD, str(tmp_path))
    monkeypatch.setattr(parent.os, "getppid", lambda: waiting.pid)
    monkeypatch.setattr(parent, "kill", killed.append)
    with pytest.raises(KeyboardInterrupt), stopped_with_parent(0.05):
        signal.sigtimedwait([], 60)
    assert not killed


@pytest.fixture
def trainer():
    """`trainer(NAME=value)`: starts a process as torchrun does, with these variables, too."""
    started = []

    def start(**variables):
        about = {"env": {**os.environ, "LOCAL_RANK": "1", **variables}, "stdout": subprocess.PIPE}
        started.append(subprocess.Popen([sys.executable, "-S", "-c", WAITS], **about))
        started[-1].stdout.readline()
        return started[-1]

    yield start
    for each in started:
        each.kill()
        each.communicate()


def test_who_has_lost_a_node_kills_frozen_trainers_that_torchrun_has_started_beside_it(waiting, trainer, monkeypatch):
    monkeypatch.delenv(parent.PARENT, raising=False)
    monkeypatch.setattr(parent.os, "getppid", os.getpid)
    frozen, other, stranger = trainer(), trainer(), trainer(MASTER_PORT="1")
    for each in (waiting, frozen, stranger):
        stop(each)
    with pytest.raises(NodeLost), stopped_with_parent(60.0):
        raise NodeLost("b", "has not been heard of")
    assert frozen.wait(60) == -signal.SIGKILL
    other.terminate()
    assert other.wait(60) == -signal.SIGTERM, "it was not frozen"
    assert stranger.poll() is None, "it is of another run"
    assert waiting.poll() is None, "it is no trainer"


def test_of_an_agent_of_ours_that_is_left_to_the_agent(monkeypatch):
    looks = []
    monkeypatch.setattr(parent, "_siblings", lambda pid: looks.append(1) or [])
    monkeypatch.setenv(parent.PARENT, "1")
    with pytest.raises(NodeLost), stopped_with_parent(60.0):
        raise NodeLost("b", "has not been heard of")
    monkeypatch.delenv(parent.PARENT)
    with pytest.raises(KeyboardInterrupt), stopped_with_parent(60.0):
        raise KeyboardInterrupt
    assert not looks


def test_no_trainer_is_its_own_sibling(monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "0")
    code = "import os; from marius_oac.nodes.launch.parent import _siblings; print(_siblings(os.getppid()))"
    assert subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True).stdout == "[]\n"


def test_a_trainer_whose_torchrun_has_ended_has_no_siblings(trainer, monkeypatch):
    """Whoever is its parent then, such as init, has children of any other program."""
    child, torchrun = trainer(), os.getpid()
    monkeypatch.setattr(parent.os, "getppid", lambda: torchrun)
    assert parent._siblings(torchrun) == [child.pid]
    monkeypatch.setattr(parent.os, "getppid", lambda: 1)
    assert parent._siblings(torchrun) == []


def test_those_that_have_ended_are_not_looked_at(tmp_path):
    meeting = Meeting(dist.HashStore(), ["a"], 0, 60.0, count=2)
    agent = Agent(meeting, AgentSignals(), ["x"], "127.0.0.1", 0, 1, 60.0, str(tmp_path), max, max)
    assert agent.running() == []
    ended, there = (
        SimpleNamespace(proc=SimpleNamespace(pid=pid, returncode=code)) for pid, code in ((3, 0), (5, None))
    )
    agent._pcontext = SimpleNamespace(subprocess_handlers={0: ended, 1: there})
    assert agent.running() == [5]


@pytest.mark.slow
def test_a_guard_kills_what_is_frozen_and_is_killed_when_it_is():
    """The second by an agent, of which `frozen_end` is all that is needed here."""
    agent = (
        "import os, signal, sys; from marius_oac.nodes.launch.frozen import frozen_end\n"
        "from marius_oac.nodes.launch.parent import end_with_parent\n"
        "end_with_parent(); parent = os.getppid()\n"
        "with frozen_end(lambda: [parent], 0.2): print(os.getpid(), flush=True); signal.pause()"
    )
    command = [sys.executable, "-m", "marius_oac.nodes.launch.guard", "0.2", sys.executable, "-c", agent]
    for whom in ("agent", "guard"):
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as process:
            process.stdin.write(b"secret\n")
            pid = int(process.stdout.readline())
            below = os.pidfd_open(pid)
            os.kill(pid if whom == "agent" else process.pid, signal.SIGSTOP)
            assert process.wait(60) == (128 + signal.SIGKILL if whom == "agent" else -signal.SIGKILL)
            with selectors.DefaultSelector() as selector:
                selector.register(below, selectors.EVENT_READ)
                assert selector.select(60)
            os.close(below)
