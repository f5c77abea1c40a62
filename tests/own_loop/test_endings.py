"""Every way in which a loop ends leaves the rows that its trained batches gave, and no thread."""

import contextlib
import linecache
import signal
import subprocess
import sys
import threading

import pytest
import torch

import marius_oac.torch as mt
from marius_oac.errors import DivergedError, InputError, NodeLost
from marius_oac.pipeline.rows import LocalRows
from marius_oac.torch import exits
from marius_oac.torch.hand_over import HandOver
from marius_oac.torch.pipeline import GrowingDevice, LoopStep
from marius_oac.torch.planner import LoopPlanner
from tests.house.test_house import ROOT
from tests.layers import PACKAGE
from tests.own_loop.loops import Loop, after, key_batches
from tests.threads import PATIENCE, in_thread, joined


@pytest.mark.parametrize("in_flight", [1, 8])
@pytest.mark.parametrize("last", [0, 1, 17, 29])
def test_break_leaves_what_was_trained(in_flight, last):
    loop = Loop(in_flight=in_flight)
    with loop.engine as engine:
        for number, batch in enumerate(engine.batches(key_batches(30))):
            loop.train(batch)
            if number == last:
                break
        assert torch.equal(loop.table(), after(last + 1))


def test_a_loop_after_a_break_goes_on_with_the_bits_of_one_that_saw_no_other_batches():
    batches, loop, plain = key_batches(30), Loop(in_flight=8), Loop(mode="sync")
    with loop.engine as engine:
        for number, batch in enumerate(engine.batches(batches)):
            loop.train(batch)
            if number == 9:
                break
        for batch in engine.batches(batches[10:]):
            loop.train(batch)
    with plain.engine as engine:
        for batch in engine.batches(batches):
            plain.train(batch)
    assert torch.equal(loop.table(), plain.table())


def test_an_error_of_the_loop_leaves_what_was_trained():
    loop = Loop()
    with pytest.raises(ZeroDivisionError), loop.engine as engine:
        for number, batch in enumerate(engine.batches(key_batches(30))):
            if number == 7:
                raise ZeroDivisionError
            loop.train(batch)
    assert torch.equal(loop.table(), after(7))


@pytest.mark.parametrize("fails", [True, False])
def test_a_process_that_has_ended_hides_no_error_of_the_loader(monkeypatch, fails):
    """Where all are told of it, others may leave before this one."""
    batches = key_batches(3)

    def loader():
        yield from batches
        if fails:
            raise OSError("no more")

    def ended(way):
        whole(way)
        raise NodeLost("rank 1", "gone")

    with (loop := Loop()).engine as engine:
        kind, text = (OSError, "no more") if fails else (NodeLost, "rank 1: gone")
        with pytest.raises(kind, match=text), monkeypatch.context() as patch:
            for batch in engine.batches(loader()):
                loop.train(batch)
                if batch is batches[-1]:
                    way = type(engine._loop._way)
                    whole = way.end
                    patch.setattr(way, "end", ended)


def test_an_error_of_the_loader_comes_in_its_turn():
    def loader():
        yield from key_batches(11)
        raise OSError("no more")

    loop, seen = Loop(in_flight=4), 0
    with loop.engine as engine:
        with pytest.raises(OSError, match="no more"):
            for batch in engine.batches(loader()):
                loop.train(batch)
                seen += 1
        assert seen == 11 and torch.equal(loop.table(), after(11))
        assert len(list(engine.batches(key_batches(2)))) == 2


def test_an_unfinished_loop_ends_with_the_engine_or_by_another_one():
    loop = Loop()
    with loop.engine as engine:
        first = engine.batches(key_batches(30))
        loop.train(next(first))
        second = engine.batches(key_batches(30)[1:])
        loop.train(next(second))
        with pytest.raises(InputError, match="ended by another one"):
            next(first)
    assert torch.equal(loop.table(), after(2))


def test_ctrl_c_ends_a_loop_like_an_error():
    loop = Loop()
    with pytest.raises(KeyboardInterrupt), loop.engine as engine:
        for number, batch in enumerate(engine.batches(key_batches(30))):
            loop.train(batch)
            if number == 7:
                signal.raise_signal(signal.SIGINT)
    assert torch.equal(loop.table(), after(8))


def test_a_gradient_that_is_not_finite_changes_no_row_and_ends_the_loop_like_an_error():
    loop, batches = Loop(), key_batches(30)
    with loop.engine as engine:
        with pytest.raises(DivergedError, match="gradient of table .* at batch 5"):
            for number, batch in enumerate(engine.batches(batches)):
                if number == 5:
                    (loop.items(batch["item"]).sum() * float("inf")).backward()
                    loop.rows.step()
                loop.train(batch)
        assert torch.equal(loop.table(), after(5))
        loop.rows.zero_grad()
        for batch in engine.batches(batches[5:]):
            loop.train(batch)
    assert torch.equal(loop.table(), after(30))


def test_rows_that_are_too_large_stop_the_loop():
    loop = Loop()
    with pytest.raises(DivergedError, match="rows of table"), loop.engine as engine:
        for batch in engine.batches(key_batches(30)):
            loop.items(batch["item"]).sum().backward()
            loop.rows.param_groups[0]["lr"] = 1e30
            loop.rows.step()


STAGES = {
    "plan": (LoopPlanner, "plan"),
    "settle": (LoopPlanner, "assign_rows"),
    "borrow": (GrowingDevice, "borrow"),
    "read": (LocalRows, "read"),
    "upload": (GrowingDevice, "upload"),
    "validate": (LocalRows, "validate"),
    "compute": (LoopStep, "compute"),
    "download": (GrowingDevice, "download"),
    "write": (LocalRows, "write"),
}


@pytest.mark.parametrize("stage", STAGES)
def test_an_error_of_a_stage_ends_the_loop_and_is_told(monkeypatch, stage):
    where, name = STAGES[stage]
    original, calls = getattr(where, name), iter(range(100))

    def fails(*given):
        if next(calls) == 5:
            raise OSError("the disk is full")
        return original(*given)

    monkeypatch.setattr(where, name, fails)
    loop, seen = Loop(in_flight=4), 0
    with loop.engine as engine:
        with pytest.raises(OSError, match="the disk is full"):
            for batch in engine.batches(key_batches(30)):
                loop.train(batch)
                seen += 1
        assert seen <= 5 + 4
        with pytest.raises(InputError, match="the engine has failed and can't be used again: the disk is full"):
            engine.batches([])
        with pytest.raises(InputError, match="the engine has failed"):
            loop.table()
    with pytest.raises(InputError, match="rows of '0' may be lost: an engine has failed: the disk is full"):
        mt.Engine(loop.model, keys={loop.items: "item"}, optimizers=[loop.rows])


@pytest.mark.parametrize("taken", [0, 1, 2])
def test_an_engine_is_left_with_a_batch_that_is_not_handed_back(taken):
    loop = Loop()
    with loop.engine as engine:
        batches = engine.batches(key_batches(30))
        for _ in range(taken):
            loop.train(next(batches))
    assert torch.equal(loop.table(), after(taken))
    with pytest.raises(InputError, match="ended by another one" if taken else "is closed"):
        next(batches)


def test_ctrl_c_while_the_engine_waits_for_a_batch(monkeypatch):
    """Twice: once while the loop waits for the pipeline, and once while it waits for the threads' end."""
    gate, waiting, ending = threading.Event(), threading.Event(), threading.Event()
    read, take, drain = LocalRows.read, HandOver.take, HandOver.drain

    def late(self, batch):
        assert batch.batch_index < 3 or gate.wait(PATIENCE)
        read(self, batch)

    def taken(self):
        if loop.steps == 3:
            waiting.set()
        return take(self)

    def drained(self):
        drain(self)
        ending.set()

    monkeypatch.setattr(LocalRows, "read", late)
    monkeypatch.setattr(HandOver, "take", taken)
    monkeypatch.setattr(HandOver, "drain", drained)

    def interrupt():
        assert waiting.wait(PATIENCE)
        press()
        while not ending.wait(0.1):  # Python overlooks a signal that comes just before it begins to wait for a lock
            press()
        press()
        gate.set()

    def press():
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    loop = Loop(in_flight=4)
    loop.steps, interrupting = 0, in_thread(interrupt)
    with pytest.raises(KeyboardInterrupt), loop.engine as engine:
        for batch in engine.batches(key_batches(30)):
            loop.train(batch)
            loop.steps += 1
    joined(*interrupting)
    assert torch.equal(loop.table(), after(3))


@contextlib.contextmanager
def interrupted_at(line):
    """Ctrl-C before so many lines of the package's loop have run in this thread; at none where a `with` block is left,
    where Python looks for no signal."""
    left, folder = [line], str(PACKAGE / "torch")

    def trace(frame, event, _):
        if not frame.f_code.co_filename.startswith(folder):
            return None
        if event == "line" and not linecache.getline(frame.f_code.co_filename, frame.f_lineno).lstrip().startswith(
            "with"
        ):
            left[0] -= 1
            if left[0] == 0:
                signal.raise_signal(signal.SIGINT)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield left
    finally:
        sys.settrace(before)


def lines_of_a_loop(line, expected):
    """Runs a loop with Ctrl-C at a line; returns what is left of `line` after it, and checks what it leaves."""
    loop, steps = Loop(in_flight=2), 0
    with interrupted_at(line) as left, contextlib.suppress(KeyboardInterrupt), loop.engine as engine:
        for batch in engine.batches(key_batches(4)):
            loop.train(batch)
            steps += 1
    loop.engine.close()  # where it was the end of the block that was interrupted
    for each in list(exits._LOOPS):
        each.end_quietly()  # and where it was `close`: what the interpreter's exit does
    assert any(torch.equal(loop.table(), rows) for rows in expected[steps : steps + 2])
    return left[0]


EVERY_LINE = [pytest.param(first, 5, marks=pytest.mark.slow) for first in range(1, 6)]


@pytest.mark.parametrize("first, step", [*EVERY_LINE, (3, 23)])
def test_ctrl_c_at_any_line_of_the_engine_leaves_whole_batches_and_no_thread(first, step):
    expected = [after(count) for count in range(5)]
    lines = 100_000 - lines_of_a_loop(100_000, expected)
    assert lines > 300
    for line in range(first, lines, step):
        assert lines_of_a_loop(line, expected) <= 0


PROGRAM = """
import os, signal, sys, threading, warnings
warnings.simplefilter("ignore")  # of forks beside threads
signal.alarm(20)  # not faulthandler, whose own thread a forked child waits for
from tests.own_loop.loops import Loop, key_batches
loop = Loop()
batches = loop.engine.batches(key_batches(30))
loop.train(next(batches))
"""
ENDS = {
    "unfinished": "",
    "an error": "raise SystemExit(3)",
    "forked": "\n".join(
        [
            "child = os.fork()",
            "if not child: signal.alarm(15), batches.close(), sys.exit(0)",
            "assert os.waitpid(child, 0)[1] == 0",
            "next(batches)",
        ]
    ),
    "a loop of a forked child": "\n".join(
        [
            "if not os.fork(): next(Loop().engine.batches(key_batches(9))), sys.exit(0)",
            "assert os.wait()[1] == 0",
            "next(batches)",
        ]
    ),
    "another thread": "\n".join(
        [
            "begun = threading.Event()",
            "def goes_on():",
            "    print(sum(1 for each in batches if not begun.set()))",
            "threading.Thread(target=goes_on).start()",
            "begun.wait()",
        ]
    ),
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.usefixtures("forked_programs")
def test_the_interpreter_exits_with_a_loop_unfinished(end):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM + ENDS[end]], capture_output=True, text=True, timeout=60, cwd=ROOT
    )
    assert done.returncode == (3 if end == "an error" else 0), done.stderr
    assert done.stderr == "" and done.stdout == ("29\n" if end == "another thread" else "")


def test_a_loader_that_is_a_loop_of_the_same_engine_is_told():
    with (loop := Loop()).engine as engine, pytest.raises(InputError, match="this loop was ended by another one"):
        for batch in engine.batches(engine.batches(key_batches(5))):
            loop.train(batch)
