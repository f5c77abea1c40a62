"""Nodes are started, watched and ended: on this machine, and by commands that stand in for ssh and srun."""

import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.nodes.outliving import STOPS, ends_with
from tests.ports import free_ports

pytestmark = pytest.mark.usefixtures("forked_programs")
ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "tests" / "nodes" / "launched.py"
PATIENCE = 180

SSH = """#!/bin/sh
while [ "$1" = -o ]; do shift 2; done
shift
exec env -i HOME="$HOME" PATH="$PATH" PYTHONPATH="$PYTHONPATH" TMPDIR="$TMPDIR" sh -c "$*"
"""
AGENT = """
import sys
from marius_oac.nodes.launch.agent import LocalProcesses, run
run(LocalProcesses(sys.argv[1:], ["a"], "secret"))
"""
SRUN = """#!/bin/sh
while :; do case "$1" in -*) shift;; *) break;; esac; done
exec "$@"
"""


def alive(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class Launched:
    """A launcher that runs, and what its processes have said of themselves."""

    def __init__(self, folder, way, behaviour, restarts=0, timeout=60):
        self.folder, self.way = folder, way
        tools, self.temporary = folder / "tools", folder / "tmp"
        tools.mkdir()
        self.temporary.mkdir()
        for name, text in (("ssh", SSH), ("srun", SRUN)):
            (tools / name).write_text(text)
            (tools / name).chmod(0o755)
        os.mkfifo(folder / "ready")
        # Opened for writing, too, so that it does not end between two writers.
        self.ready = os.fdopen(os.open(folder / "ready", os.O_RDWR), "r")
        environment = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")} | {
            "PATH": f"{tools}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT), "TMPDIR": str(self.temporary),
        }  # fmt: skip
        if way == "srun":
            environment["SLURM_JOB_ID"] = "7"
        options = ["--local-nodes", "2"]
        if way != "local":
            port, first, second = free_ports(3)
            (folder / "nodes.yaml").write_text(
                f"port: {port}\nrestarts: {restarts}\ntimeout: {timeout}\nnodes:\n"
                f"- {{name: node0, address: 127.0.0.1, port: {first}}}\n"
                f"- {{name: node1, address: 127.0.0.1, port: {second}}}\n"
            )
            options = ["--nodes", str(folder / "nodes.yaml")]
        self.process = subprocess.Popen(
            [sys.executable, str(PROGRAM), str(folder), behaviour, *options], cwd=folder, env=environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip

    def both_ready(self):
        """Waits until both nodes have said so."""
        for _ in range(2):
            with selectors.DefaultSelector() as selector:
                selector.register(self.ready, selectors.EVENT_READ)
                assert selector.select(PATIENCE), "nobody is ready"
            os.read(self.ready.fileno(), len("ready\n"))

    def told(self):
        """What each rank has written of itself."""
        return [json.loads(path.read_text()) for path in sorted(self.folder.glob("*.json"))]

    def family(self):
        """All processes below the launcher, as pidfds."""
        return [os.pidfd_open(one.pid) for one in psutil.Process(self.process.pid).children(recursive=True)]

    def kill(self, node, what):
        """Kills the process of a node whose command begins with the interpreter and that."""
        for one in psutil.Process(self.process.pid).children(recursive=True):
            words = one.cmdline()
            if node == words[-1] and what in words[1] + words[2]:
                return one.kill()
        raise AssertionError("it is not there")

    def end(self, family=()):
        """Exit code, output and errors, once the launcher and all processes it started have ended."""
        out, err = self.process.communicate(timeout=PATIENCE)
        deadline = time.monotonic() + PATIENCE
        for one in family:
            with selectors.DefaultSelector() as selector:
                selector.register(one, selectors.EVENT_READ)
                assert selector.select(max(0.0, deadline - time.monotonic())), "a process has outlived the launcher"
            os.close(one)
        assert not any(alive(one["pid"]) for one in self.told())
        sys.stderr.write(err)
        return self.process.returncode, out, err

    def close(self):
        self.ready.close()
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.communicate()


WAYS = pytest.mark.parametrize("way", ["local", pytest.param("ssh", marks=pytest.mark.slow)])


@pytest.fixture
def launch(tmp_path):
    started = []

    def start(way, behaviour, **keys):
        started.append(Launched(tmp_path, way, behaviour, **keys))
        return started[-1]

    yield start
    for one in started:
        one.close()


@pytest.mark.parametrize("way", ["local", *(pytest.param(each, marks=pytest.mark.slow) for each in ("ssh", "srun"))])
def test_every_node_trains_and_the_first_is_heard(started_anew, launch, way):
    run = launch(way, "ok")
    code, out, err = run.end()
    assert (code, out) == (0, "the result\n")
    heard = ["rank 0 says something"] + (["node1: rank 1 says something"] if way != "local" else [])
    assert sorted(err.splitlines()) == sorted(heard)
    told = run.told()
    assert [(one["node"], one["rank"]) for one in told] == [("node0", "0"), ("node1", "1")]
    assert len({one["secret"] for one in told}) == 1 and len(told[0]["secret"]) == 64
    assert not any(told[0]["secret"] in word for one in told for command in one["commands"] for word in command)
    assert {address for one in told for address in one["listening"]} <= {"127.0.0.1"} and told[0]["listening"]
    assert not list(run.temporary.glob("marius-oac-*"))


@WAYS
def test_a_defect_on_one_node_ends_all_and_is_shown_behind_its_name(launch, way):
    run = launch(way, "fail")
    code, _, err = run.end()
    assert code == 1
    lines = err.splitlines()
    assert "node1: ZeroDivisionError: a defect" in lines
    assert not any(line.startswith("Traceback") for line in lines), "the launcher itself has nothing to confess"
    assert not list(run.temporary.glob("marius-oac-*"))


def test_what_all_nodes_refuse_is_said_once(launch):
    code, out, err = launch("local", "refuse").end()
    assert (code, out) == (2, "")
    assert err.splitlines()[-1].endswith("marius-oac: config: all nodes find the same")
    assert err.count("all nodes find the same") == 1


def test_a_refusal_of_one_node_ends_all_at_once(launch):
    """The other node loses it, and could start again: it would only wait for it."""
    code, _, err = launch("local", "full disk", restarts=3).end()
    assert code == 2 and "node1: marius-oac: a file: no space left on device" in err.splitlines()
    assert "started again" not in err


@WAYS
def test_a_node_that_is_killed_ends_all_and_is_named(launch, way):
    code, _, err = launch(way, "killed").end()
    lines = err.splitlines()
    assert code == 1 and any("node node1: process" in line and "was ended by SIGKILL" in line for line in lines)
    assert any(line.startswith("marius-oac: node node1: ") for line in lines)


@pytest.mark.slow
def test_a_node_that_is_killed_is_started_again(launch):
    code, out, err = launch("ssh", "killed once", restarts=1).end()
    assert (code, out) == (0, "the result\n")
    assert {"node node0: started again (1)", "node1: node node1: started again (1)"} <= set(err.splitlines())


@pytest.mark.parametrize(
    ("way", "number"), [("local", signal.SIGINT), pytest.param("ssh", signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_a_signal_stops_all_after_what_is_in_flight(launch, way, number):
    run = launch(way, "wait")
    run.both_ready()
    family = run.family()
    run.process.send_signal(number)
    code, _, err = run.end(family)
    assert code == 128 + number and "Traceback" not in err
    assert sorted(path.name for path in run.folder.glob("*.stopped")) == ["0.stopped", "1.stopped"]


@WAYS
def test_ctrl_c_of_a_terminal_reaches_each_process_once(launch, way):
    """A terminal signals the whole foreground group; "slow" processes end at the second signal only."""
    run = launch(way, "slow")
    run.both_ready()
    family = run.family()
    os.killpg(run.process.pid, signal.SIGINT)
    with selectors.DefaultSelector() as selector:
        for one in family:
            selector.register(one, selectors.EVENT_READ)
        assert not selector.select(2), "a process has ended at the first Ctrl-C"
    os.killpg(run.process.pid, signal.SIGINT)
    assert run.end(family)[0] == 130


@WAYS
def test_nothing_outlives_a_launcher_that_is_killed(launch, way):
    run = launch(way, "wait" if way != "local" else "stubborn")
    run.both_ready()
    family = run.family()
    run.process.kill()
    assert run.end(family)[0] == -signal.SIGKILL


def test_what_an_agent_has_started_ends_with_it():
    command = [sys.executable, "-c", AGENT, "-S", "-c", STOPS]
    assert ends_with(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))


@pytest.mark.slow
def test_a_launcher_that_is_stopped_ends_all_in_an_orderly_way(launch):
    run = launch("ssh", "wait", timeout=4)
    run.both_ready()
    family, trainers = run.family(), [os.pidfd_open(one["pid"]) for one in run.told()]
    run.process.send_signal(signal.SIGSTOP)
    for one in trainers:
        with selectors.DefaultSelector() as selector:
            selector.register(one, selectors.EVENT_READ)
            assert selector.select(PATIENCE), "it goes on"
        os.close(one)
    assert sorted(path.name for path in run.folder.glob("*.stopped")) == ["0.stopped", "1.stopped"]
    run.process.send_signal(signal.SIGCONT)
    assert run.end(family)[0] == 128 + signal.SIGTERM  # what guards ask with


@pytest.mark.slow
def test_a_trainer_that_is_stopped_is_started_again(launch):
    code, out, err = launch("ssh", "stopped once", restarts=1, timeout=4).end()
    assert (code, out) == (0, "the result\n")
    assert {"node node0: started again (1)", "node1: node node1: started again (1)"} <= set(err.splitlines())


@pytest.mark.slow
@pytest.mark.parametrize("who", ["guard", "agent"])
def test_a_guard_or_an_agent_that_is_killed_ends_all(launch, who):
    run = launch("ssh", "wait", restarts=1)
    run.both_ready()
    family = run.family()
    run.kill("node1", "guard" if who == "guard" else "launched.py")
    code, _, err = run.end(family)
    assert code == 1 and "marius-oac: node node1: was ended by SIGKILL" in err.splitlines()
    assert "started again" not in err


def test_a_port_that_is_taken_is_named(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        (tmp_path / "taken.yaml").write_text(
            f"port: {port}\nnodes: [{{address: 127.0.0.1}}, {{name: b, address: '::1'}}]"
        )
        done = subprocess.run(
            [sys.executable, str(PROGRAM), str(tmp_path), "ok", "--nodes", "taken.yaml", "--node", "127.0.0.1"],
            cwd=tmp_path, capture_output=True, text=True,
            env=os.environ | {"PYTHONPATH": str(ROOT), "MARIUS_OAC_SECRET": "s" * 64},
        )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr == f"marius-oac: node 127.0.0.1: can't listen at 127.0.0.1:{port}: Address already in use\n"
