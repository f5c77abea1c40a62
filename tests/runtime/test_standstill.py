"""Work that stands still is named, and nothing else is; what a request to stop waits for is said."""

import ctypes
import os
import signal
import subprocess
import sys
import threading
from contextlib import ExitStack, suppress
from types import SimpleNamespace

import pytest

from marius_oac.runtime import console, standstill
from marius_oac.runtime.progress import Progress
from marius_oac.runtime.signals import StopSignal, stop_on_interrupt, stopped_by_signals
from marius_oac.runtime.standstill import Activity, Waiting, Watch, waits_for, watched
from marius_oac.runtime.telemetry import NoTelemetry, Telemetry
from tests.moments import Moments
from tests.threads import PATIENCE, in_thread, joined


class Clock:
    """In place of the module's `time`."""

    def __init__(self):
        self.now = 100.0

    def perf_counter(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(standstill, "time", made)
    return made


@pytest.fixture
def lines(monkeypatch):
    """What is told."""
    told = []
    monkeypatch.setattr(standstill, "tell", told.append)
    return told


@pytest.fixture
def watch():
    return Watch(60.0, None, whole=False)


def pass_time(clock, watch, seconds):
    watch.look(0.0)
    for _ in range(seconds):
        clock.now += 1.0
        watch.look(1.0)


def test_nothing_is_said_while_anything_gets_on(clock, watch, lines):
    with Activity("slow work goes on"), Activity("steps are made") as steps:
        for _ in range(3):
            pass_time(clock, watch, 59)
            steps.moved()
        pass_time(clock, watch, 59)
    pass_time(clock, watch, 1)
    with Activity("slow work goes on"):
        for _ in range(3):
            pass_time(clock, watch, 59)
            with Activity("work is begun and ended"):
                pass_time(clock, watch, 59)
        pass_time(clock, watch, 59)
    pass_time(clock, watch, 500)  # nobody works
    assert not lines


def test_a_standstill_is_told_once_and_again_after_twice_the_time_and_that_it_has_ended(clock, watch, lines):
    with Activity("the table is being read"):
        pass_time(clock, watch, 59)
        assert not lines
        pass_time(clock, watch, 1)
        assert lines[0] == "no progress for 60 s: the table is being read for 60 s"
        assert "the innermost call first" in lines[1] and "pass_time" in lines[1]
        pass_time(clock, watch, 59)
        assert len(lines) == 2
        pass_time(clock, watch, 361)
    assert lines[2:] == [f"no progress for {at} s: the table is being read for {at} s" for at in (120, 240, 480)]
    pass_time(clock, watch, 1)
    assert lines[5:] == ["there is progress again, after 480 s"]


def test_what_often_takes_long_is_told_more_seldom(clock, watch, lines):
    for told, seconds in ((True, 70), (False, 119), (True, 130), (False, 239), (True, 5000), (False, 599), (True, 600)):
        lines.clear()
        with Activity("a tile is being ranked"):
            pass_time(clock, watch, seconds)
        assert bool(lines) == told, seconds
        pass_time(clock, watch, 1)


def test_time_in_which_the_process_was_stopped_does_not_count(clock, watch, lines):
    with Activity("the table is being read"):
        for _ in range(20):
            clock.now += 1000.0
            watch.look(1000.0)
        assert not lines
        pass_time(clock, watch, 22)
    assert lines[0].startswith("no progress for 60 s")


def test_a_command_that_did_not_run_at_all_says_so(clock, lines):
    watch = Watch(60.0, None, whole=True)
    watch.look(59.0)
    assert not lines
    watch.look(93.0)
    assert len(lines) == 1 and lines[0].startswith("for 93 s this process was stopped, or a thread held")


def test_the_innermost_work_of_each_thread_is_named_and_first_what_is_within_other_work(clock):
    entered, leave = threading.Semaphore(0), threading.Event()

    def hold(before, *whats):
        def work():
            with ExitStack() as stack:
                for what in whats:
                    stack.enter_context(Activity(what))
                entered.release()
                leave.wait(PATIENCE)

        clock.now = 100.0 - before
        thread = in_thread(work)
        assert entered.acquire(timeout=PATIENCE)
        return thread

    threads = [
        hold(30, "stage write holds batch 0"),
        hold(50, "stage read holds batch 2"),
        hold(20, "stage compute holds batch 1", "a kernel is compiled"),
    ]
    clock.now = 100.0
    with Waiting("nobody holds a batch"):
        assert waits_for() == (
            "a kernel is compiled for 20 s; stage read holds batch 2 for 50 s; stage write holds batch 0 for 30 s"
        )
        assert waits_for(31.0) == "stage read holds batch 2 for 50 s"
        assert waits_for(51.0) == ""
        leave.set()
        for thread in threads:
            joined(*thread)
        assert waits_for() == "nobody holds a batch"
    assert waits_for() == ""


def test_activities_may_end_in_any_order():
    first, second = Activity("first"), Activity("second")
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert waits_for() == "second for 0 s"
    second.__exit__(None, None, None)
    assert waits_for() == ""


def test_a_stage_is_told_with_its_batch_and_progress_with_its_count():
    with Telemetry() as telemetry, telemetry.stage("compute", 1234):
        assert waits_for() == "stage compute holds batch 1,234 for 0 s"
    with NoTelemetry().stage("compute", 5):
        assert waits_for() == ""
    with Progress("ranking", "scores", 4000) as progress:
        progress.add(1500)
        assert waits_for() == "ranking stands at 1,500 of 4,000 scores for 0 s"
    with Progress("reading", "B"):
        assert waits_for() == "reading stands at 0 B for 0 s"
    assert waits_for() == ""


def test_each_step_of_progress_is_seen(clock, watch, lines):
    with Progress("ranking", "scores") as progress:
        for _ in range(4):
            pass_time(clock, watch, 59)
            progress.add(1)
        assert not lines
        pass_time(clock, watch, 60)
    assert lines[0] == "no progress for 60 s: ranking stands at 4 scores for 60 s"


def test_a_request_to_stop_is_told_what_it_waits_for(clock, watch, lines):
    watch.answer(b"")
    watch.answer(bytes([signal.SIGUSR1]))
    clock.now += 100
    watch.answer(b"")
    with Activity("the disk is being written"):
        watch.answer(b"")
        assert not lines
        watch.answer(bytes([signal.SIGUSR1, signal.SIGTERM]))
        clock.now += 1.9
        watch.answer(b"")
        assert not lines
        for passed in (0.2, 1.0, 1.2, 0.1, 4.5):
            clock.now += passed
            watch.answer(b"")
    clock.now += 100
    watch.answer(b"")
    assert lines == [f"stopping: the disk is being written for {seconds} s" for seconds in (2, 4, 9)]


def test_a_polite_request_names_what_is_held_for_long(capfd):
    def interrupted(waits_for):
        with stop_on_interrupt(lambda: None, waits_for):
            os.kill(os.getpid(), signal.SIGINT)
        return capfd.readouterr().err.strip()

    assert interrupted(lambda: "stage compute holds batch 17 for 50 s") == (
        "stopping after the batches in flight (stage compute holds batch 17 for 50 s); again to stop at once"
    )
    assert interrupted(lambda: "") == "stopping after the batches in flight; again to stop at once"


def test_a_signal_that_the_main_thread_does_not_hear_is_answered_beside_it(monkeypatch):
    """The main thread waits in C for a lock, which no signal ends."""
    libc, mutex, told = ctypes.CDLL(None), ctypes.create_string_buffer(64), []

    def tell(text):
        told.append(text)
        libc.pthread_mutex_unlock(mutex)

    monkeypatch.setattr(standstill, "tell", tell)
    monkeypatch.setattr(standstill, "in_command", lambda: True)  # tests are none
    monkeypatch.setattr(standstill, "STOPPING_SECONDS", 0.01)
    with pytest.raises(StopSignal), stopped_by_signals(), watched(5.0), Activity("a lock is being waited for"):
        libc.pthread_mutex_lock(mutex)
        timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGTERM))
        timer.start()
        try:
            libc.pthread_mutex_lock(mutex)
        finally:
            timer.join()
    assert signal.set_wakeup_fd(-1) == -1
    assert told[0].startswith("stopping: a lock is being waited for for ")


HEARS_NOTHING = """
import os, signal
from marius_oac.runtime.standstill import is_pending
for number in (signal.SIGUSR1, signal.SIGTERM):
    signal.pthread_sigmask(signal.SIG_BLOCK, [number])
    os.kill(os.getpid(), number)
    print(is_pending())
"""


def test_a_request_that_no_thread_takes_is_seen():
    assert ran(HEARS_NOTHING).stdout.split() == ["False", "True"]


def test_it_is_taken_for_one_where_the_work_stands_still(clock, lines, monkeypatch):
    monkeypatch.setattr(standstill, "is_pending", lambda: True)
    watch = Watch(60.0, None, whole=True)
    with Activity("the disk is being read"):
        watch.answer(b"")  # somebody may be about to hear it
        clock.now += 3
        watch.answer(b"")
        assert not lines
        pass_time(clock, watch, 2)
        watch.answer(b"")
        clock.now += 2
        watch.answer(b"")
    assert lines == ["stopping: the disk is being read for 7 s"]


HOLDS_THE_LOCK = """
import ctypes, faulthandler, threading
from marius_oac.runtime.signals import stopped_by_signals
from marius_oac.runtime.standstill import Activity, watched

armed, arm = threading.Event(), faulthandler.dump_traceback_later

def armed_now(*args, **kwargs):
    arm(*args, **kwargs)
    armed.set()

def holding():
    ctypes.PyDLL(None).usleep(700_000)

faulthandler.dump_traceback_later = armed_now
with stopped_by_signals(), watched(0.2), Activity("the disk is being read"):
    armed.wait()
    holding()
    armed.clear()
    armed.wait()
holding()  # nobody watches any more
print(threading.active_count())
"""


def ran(script):
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE, check=True)


def test_stacks_are_shown_where_a_thread_holds_the_interpreters_lock():
    done = ran(HOLDS_THE_LOCK)
    at = [done.stderr.find(text) for text in ("Timeout (", "in holding", "a thread held the interpreter's lock")]
    assert at == sorted(at) and at[0] >= 0, done.stderr
    assert done.stdout == "1\n" and done.stderr.count("Timeout (") == 1


def test_faulthandlers_timer_is_left_to_whoever_is_no_command(monkeypatch):
    monkeypatch.setattr(standstill, "faulthandler", SimpleNamespace())
    with watched(0.1), Activity("work is done"):
        pass


def test_the_stacks_have_the_names_of_threads():
    leave, entered = threading.Event(), threading.Event()

    def stands():
        entered.set()
        leave.wait(PATIENCE)

    thread = threading.Thread(target=stands, name="frozen-3")
    thread.start()
    entered.wait(PATIENCE)
    text = standstill.stacks()
    leave.set()
    thread.join()
    assert "in stands\n" in text.partition("Thread frozen-3 (most recent call first)")[2]
    assert "Current thread MainThread (most recent call first)" in text


def test_what_is_told_begins_a_line_of_its_own_and_gives_a_terminal_no_commands(monkeypatch, capfd):
    standstill.tell("reading \x1b[2J stands")
    assert capfd.readouterr().err == "reading \x1b[2J stands\n"
    for module in (standstill, console):
        monkeypatch.setattr(module, "is_terminal", lambda: True)
    standstill.tell("reading \x1b[2J stands")
    assert capfd.readouterr().err == "\nreading \\x1b[2J stands\n"


def test_it_takes_a_thread_which_ends_with_the_block_however_it_ends():
    count = threading.active_count()
    with watched(0.0):
        assert threading.active_count() == count
    for error in (None, ValueError, KeyboardInterrupt):
        with pytest.raises(error or ZeroDivisionError), watched():
            assert threading.active_count() == count + 1
            with watched(1.0):
                assert threading.active_count() == count + 1
            assert "standstill" in {each.name for each in threading.enumerate()}
            raise error or ZeroDivisionError
        assert threading.active_count() == count


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a socket just made has no owner yet
def test_a_signal_at_any_moment_breaks_neither_the_thread_nor_the_next_block(capfd):
    """What is on its way out when the signal comes may be lost: not the end of what the thread reads from."""
    at, where = 0, ""
    while where is not None:
        at += 1
        with suppress(StopSignal), stopped_by_signals(), Moments(at) as moment, watched():
            pass
        where = moment.where
        for each in threading.enumerate():
            if each.name == "standstill":
                joined(each, [None])
        assert signal.set_wakeup_fd(-1) == -1, where
    assert at > 5 and capfd.readouterr().err == ""


def test_without_a_thread_nothing_is_watched(monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with watched():
        pass
    monkeypatch.undo()
    with watched():
        assert "standstill" in {each.name for each in threading.enumerate()}


def test_the_thread_looks_by_its_own_clock(monkeypatch):
    lines, said = [], threading.Event()
    monkeypatch.setattr(standstill, "tell", lambda text: (lines.append(text), said.set()))
    with watched(0.05), Activity("the table is being read"):
        assert said.wait(PATIENCE)
    assert lines[0] == "no progress for 0 s: the table is being read for 0 s"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of a fork beside threads
def test_a_forked_process_that_outlives_the_block_does_not_hold_it():
    read, write = os.pipe()

    def watches():
        with watched(60.0):
            child = os.fork()
            if not child:
                os.close(write)
                os.read(read, 1)
                os._exit(0)
            return child

    running = in_thread(watches)
    try:
        pid = joined(*running)
    finally:
        os.close(write)
        os.close(read)
    os.waitpid(pid, 0)
