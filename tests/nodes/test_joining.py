"""Processes that join a run: who is ready, who has ended instead, and that none is left."""

import os
import signal
import sys

import pytest

from marius_oac.config.cluster import START_VARIABLE
from marius_oac.nodes.launch import joining
from marius_oac.nodes.launch.agent import PARENT
from marius_oac.nodes.launch.frozen import frozen_end
from marius_oac.nodes.launch.joining import Joining, say_ready
from tests.nodes.outliving import ASKS

SCRIPT = """#!/bin/sh
echo "$RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $START $PARENT $*" > "{folder}/$RANK"
. "{folder}/does"
"""
READY = 'echo 1 > "/proc/self/fd/$MARIUS_OAC_READY"\n'
PYTHON = sys.executable
STAY = "exec tail -f /dev/null\n"


@pytest.fixture
def does(tmp_path, monkeypatch):
    """Sets what a process does, in place of training."""
    script = tmp_path / "python"
    text = SCRIPT.replace("$START", f"${START_VARIABLE}").replace("$PARENT", f"${PARENT}")
    script.write_text(text.format(folder=tmp_path))
    script.chmod(0o755)
    monkeypatch.setattr(joining.sys, "executable", str(script))
    return (tmp_path / "does").write_text


def is_ready(made, rank):
    """Returns when this one is ready, and another one is not."""
    while not made._joiners[rank].ready:
        assert not made.wait(0.01)


def test_processes_are_ready_when_all_have_said_so_and_leave_one_by_one(tmp_path, does, monkeypatch):
    does('[ "$RANK" = 3 ] && until [ -e "$0.go" ]; do :; done\n' + READY)
    made = Joining(tmp_path / "run")
    made.start(range(2, 4), 4, "change-1")
    processes = [each.process for each in made._joiners.values()]
    is_ready(made, 2)
    (tmp_path / "python.go").touch()
    while not made.wait(0.01):
        pass
    expected = f"4 4 change-1 {os.getpid()} -P -m marius_oac resume {tmp_path / 'run'} --local-nodes 4\n"
    assert [(tmp_path / str(rank)).read_text() for rank in (2, 3)] == [f"{rank} {rank} {expected}" for rank in (2, 3)]
    made.left(3)
    assert list(made._joiners) == [2] and processes[1].returncode == 0
    made.close(4)
    assert processes[0].returncode == 0


def test_one_that_ends_instead_is_named_and_the_others_are_ended(tmp_path, does):
    """Also one that was ready before."""
    does(f'if [ "$RANK" = 2 ]; then {READY} {STAY} fi\nuntil [ -e "$0.go" ]; do :; done\necho no memory; exit 3\n')
    made = Joining(tmp_path)
    made.start(range(2, 4), 4, "change-1")
    stays = made._joiners[2].process
    is_ready(made, 2)
    (tmp_path / "python.go").touch()
    with pytest.raises(ChildProcessError, match="trainer 3 has not started: no memory"):
        while not made.wait(0.01):
            pass
    assert stays.returncode == -9 and not made._joiners and made.wait(0)


def test_those_that_never_joined_are_ended_and_what_failed_says_so(tmp_path, does, capsys, monkeypatch):
    monkeypatch.setattr(joining, "PATIENCE", 600.0)
    does(READY + f'[ "$RANK" = 2 ] && echo its disk is full && exit 2\n{STAY}')
    made = Joining(tmp_path)
    made.start(range(2, 4), 4, "change-1")
    while not made.wait(0.01):
        pass
    stays = made._joiners[3].process
    made.close(3)
    assert stays.returncode == -9
    assert "trainer 2: its disk is full" in capsys.readouterr().err


@pytest.mark.parametrize("reads", [False, True])
def test_a_process_says_once_that_it_is_ready_and_whether_it_reads_the_memory_of_its_parent(reads, monkeypatch):
    mine, theirs = os.pipe()
    monkeypatch.setenv("MARIUS_OAC_READY", str(theirs))
    monkeypatch.setenv(PARENT, "77")
    monkeypatch.setattr(joining, "may_read", lambda pid: reads and pid == 77)
    say_ready()
    say_ready()
    assert os.read(mine, 9) == (b"2" if reads else b"1") and os.read(mine, 9) == b""
    os.close(mine)


@pytest.mark.parametrize("word", ["1", "2"])
def test_those_that_have_started_last_read_or_one_of_them_does_not(word, tmp_path, does):
    does(READY.replace("1", f'"$([ "$RANK" = 3 ] && echo {word} || echo 2)"', 1) + STAY)
    made = Joining(tmp_path)
    made.start(range(4, 2), 2, "change-1")  # some leave, nobody starts
    assert made.wait(0) and made.reads
    made.start(range(2, 4), 4, "change-2")
    while not made.wait(0.01):
        assert not made.reads
    assert made.reads == (word == "2")
    made.start(range(4, 5), 5, "change-3")
    while not made.wait(0.01):
        pass
    assert made.reads
    made.close(0)


def test_the_kernel_ends_them_with_the_one_that_has_started_them(tmp_path, does):
    does(f'exec {PYTHON} -S -c "{ASKS}"\n')
    made = Joining(tmp_path)
    made.start(range(2, 3), 3, "change-1")
    joiner = made._joiners[2]
    assert joiner.process.wait(60) == 0 and joiner.said == [str(int(signal.SIGKILL))]
    made.close(0)


def test_one_that_is_stopped_before_it_is_ready_is_not_waited_for(tmp_path, does):
    does(f'if [ "$RANK" = 2 ]; then {READY} {STAY} fi\nkill -STOP $$\n')
    made = Joining(tmp_path)
    made.start(range(2, 4), 4, "change-1")
    stopped = made._joiners[3].process
    is_ready(made, 2)
    assert made.late() == [stopped.pid]
    with frozen_end(made.late, 0.2), pytest.raises(ChildProcessError, match="trainer 3 has not started: exit code -9"):
        while not made.wait(0.01):
            pass
    assert made.late() == []


def test_those_that_leave_may_take_a_moment(tmp_path, does):
    does(READY + "sleep 0.3; exit 3\n")
    made = Joining(tmp_path)
    made.start(range(2, 3), 3, "change-1")
    while not made.wait(0.01):
        pass
    leaves = made._joiners[2].process
    made.left(2)
    assert leaves.returncode == 3
