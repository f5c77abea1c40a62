"""What signals ask for, and how often; a signal ends a wait, whichever thread it comes to."""

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress

import pytest

from marius_oac.runtime import signals
from marius_oac.runtime.signals import (
    STOPPING,
    StopSignal,
    put_off,
    signal_behind,
    signal_heard,
    stop_asked,
    stop_on_interrupt,
    stopped_at_once,
    stopped_by_signals,
    uninterrupted,
    wait_for,
)
from tests.threads import in_thread, joined

WAITS = """if True:
    import selectors, signal, sys, threading, time
    from contextlib import nullcontext
    from marius_oac.runtime.signals import woken_by_signals

    heard, release = [], threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: heard.append("heard"))
    other = threading.Thread(target=release.wait)
    other.start()
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # in this thread: the other one gets it
    seconds = float(sys.argv[1])
    with selectors.DefaultSelector() as selector, woken_by_signals(selector) if seconds > 5 else nullcontext() as bell:
        print("waits", flush=True)
        ready = [key.fileobj for key, _ in selector.select(seconds)]
        assert ready == [bell] * (seconds > 5)
        assert not ready or bell.recv(99)
    assert signal.set_wakeup_fd(-1) == -1
    release.set()
    while not heard:  # the other thread may have been late
        time.sleep(0)
    other.join()
    print(*heard)
"""


@pytest.mark.parametrize("seconds", [60, 0.3])
def test_a_signal_that_another_thread_gets_ends_the_wait(seconds):
    """After a while nobody has been woken but by time: the trap is there where the bell is not."""
    command = [sys.executable, "-c", WAITS, str(seconds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "waits\n"
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=30)
    assert (process.returncode, out) == (0, "heard\n")


HEARS = """
import signal, threading

heard, release = [], threading.Event()


def hear(handle):  # has another thread get the signal, and say so when this one waits
    signal.signal(signal.SIGTERM, lambda number, frame: handle())
    other.start()
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])


def run():
    release.wait(0.3)
    print("waits", flush=True)
    release.wait()


other = threading.Thread(target=run)
{waits}
release.set()
"""
HEARING = {
    "a condition": """
from marius_oac.runtime.signals import wait_for
changed = threading.Condition()
with changed:
    hear(lambda: heard.append(1))
    wait_for(changed, lambda: heard)""",
    "workers": """
from marius_oac.runtime.workers import Workers
with Workers(release.set) as workers:
    workers.start("waits", 1, release.wait, lambda: None)
    hear(release.set)
    workers.join()""",
    "requests to nodes": """
from marius_oac.nodes.shards.pending_requests import Waiter
hear(lambda: heard.append(1))
Waiter()._wait(lambda: heard)""",
    "a batch for a loop": """
from marius_oac.torch.hand_over import HandOver
hand_over = HandOver()
hear(lambda: threading.Thread(target=hand_over.abort).start())
hand_over.take()""",
}
WHAT = [pytest.param(each, marks=[pytest.mark.slow] if each == "requests to nodes" else []) for each in HEARING]
"""One imports torch."""


@pytest.mark.parametrize("what", WHAT)
def test_a_signal_that_another_thread_gets_is_heard_by_who_waits_for_a_thread(what):
    """Any thread may get one that came while the process was stopped (SIGSTOP), and the main thread sleeps on."""
    code = HEARS.replace("{waits}", HEARING[what])
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "waits\n"
        process.send_signal(signal.SIGTERM)
        try:
            assert process.wait(30) == 0
        finally:
            process.kill()


def test_what_is_waited_for_is_waited_for_as_long_as_given():
    changed = threading.Condition()
    with changed:
        assert not wait_for(changed, lambda: False, 0.01)
        assert wait_for(changed, lambda: True)


def send(number):
    os.kill(os.getpid(), number)


@pytest.fixture
def untouched():
    """Whatever the test did, handlers, hook and threads are as they were."""
    before = [signal.getsignal(number) for number in STOPPING], sys.unraisablehook, threading.active_count()
    yield
    assert before == ([signal.getsignal(number) for number in STOPPING], sys.unraisablehook, threading.active_count())


@pytest.mark.parametrize("number", STOPPING)
def test_a_command_is_stopped_by_each_signal(untouched, number):
    with pytest.raises(StopSignal) as caught, stopped_by_signals():
        send(number)
        pytest.fail("went on")
    assert (caught.value.number, signal_behind(caught.value), str(caught.value)) == (number, number, number.name)
    assert signal_behind(RuntimeError()) is None and signal_behind(KeyboardInterrupt()) == signal.SIGINT


def test_a_request_is_polite_once_and_a_signal_that_comes_twice_at_once_is_one(untouched, monkeypatch, capfd):
    asked, clock = [], iter((10.0, 10.4, 10.6))
    monkeypatch.setattr(signals.time, "monotonic", lambda: next(clock))
    with pytest.raises(StopSignal) as caught, stop_on_interrupt(lambda: asked.append("asked")) as requests:
        assert requests.first == signal.SIGINT
        send(signal.SIGTERM)
        send(signal.SIGTERM)
        asked.append(requests.first)
        send(signal.SIGTERM)
        pytest.fail("went on")
    assert asked == ["asked", signal.SIGTERM] and caught.value.number == signal.SIGTERM
    assert capfd.readouterr().err.count("stopping after the batches in flight") == 1


def test_the_first_request_stops_at_once_where_there_is_nothing_to_lose(untouched):
    with pytest.raises(StopSignal), stop_on_interrupt(lambda: pytest.fail("asked politely")), stopped_at_once():
        send(signal.SIGHUP)
    with stop_on_interrupt(lambda: None), pytest.raises(StopSignal) as caught:
        with stopped_at_once():
            with stopped_at_once():
                pass
            pytest.raises(StopSignal, send, signal.SIGTERM)
        with stopped_at_once():
            pytest.fail("asked before")
    assert caught.value.number == signal.SIGTERM
    with stopped_at_once():
        pass


def test_a_request_may_be_put_off_for_a_moment(untouched):
    asked = []
    with stop_on_interrupt(lambda: asked.append(stop_asked())), pytest.raises(StopSignal) as caught:
        with put_off():
            assert stop_asked() is None
        with stopped_at_once():
            with put_off():
                send(signal.SIGHUP)
                asked.append("done")
            pytest.fail("went on")
    assert asked == [signal.SIGHUP, "done"] and caught.value.number == signal.SIGHUP
    with put_off():
        assert stop_asked() is None


def test_a_signal_that_was_heard_does_not_come_again(untouched, monkeypatch):
    monkeypatch.setattr(signals, "REMIND_SECONDS", 0.02)
    with stopped_by_signals():
        try:
            send(signal.SIGTERM)
        except StopSignal as error:
            assert signal_heard(error) == signal.SIGTERM
        threading.Event().wait(0.2)
    assert signal_heard(RuntimeError()) is None


def test_within_a_command_the_second_request_raises_too(untouched):
    """And is counted across both: the loop's is the command's."""
    asked = []
    with pytest.raises(StopSignal) as caught, stopped_by_signals(), stop_on_interrupt(lambda: asked.append(1)):
        send(signal.SIGINT)
        send(signal.SIGTERM)
    assert asked == [1] and caught.value.number == signal.SIGTERM


def test_a_hangup_that_is_ignored_stays_ignored(untouched):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stopped_by_signals(), stop_on_interrupt(lambda: pytest.fail("asked")):
            send(signal.SIGHUP)
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_standard_error_that_is_gone_does_not_break_the_handler(untouched, monkeypatch):
    def gone(descriptor, content):
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))

    monkeypatch.setattr(os, "write", gone)
    asked = []
    with stop_on_interrupt(lambda: asked.append("asked")):
        send(signal.SIGTERM)
    assert asked == ["asked"]


def swallowed_in_a_destructor():
    class Dying:
        def __del__(self):
            send(signal.SIGTERM)

    Dying()


def swallowed_by_a_library():
    with suppress(StopSignal):
        send(signal.SIGTERM)


@pytest.mark.parametrize("swallowed", [swallowed_in_a_destructor, swallowed_by_a_library])
def test_a_signal_that_somebody_has_swallowed_comes_again(untouched, swallowed, capfd):
    with pytest.raises(StopSignal), stopped_by_signals():
        swallowed()
        threading.Event().wait(30)
        pytest.fail("went on")
    assert capfd.readouterr() == ("", "")


def test_a_reminder_that_comes_while_its_thread_is_waited_for_is_not_waited_for_again(untouched):
    """A handler that interrupts `join` and calls it for the same thread waits for ever."""
    requests, joined_now = signals.Requests(forced=True), []

    class Firing(threading.Timer):
        """Has just sent the reminder."""

        def join(self, timeout=None):
            assert not joined_now, "a handler waits for the thread that it has interrupted the wait for"
            joined_now.append(self)
            requests._reminds = True
            with suppress(StopSignal):
                requests.add(signal.SIGTERM)
            super().join(timeout)
            joined_now.remove(self)

    before = threading.active_count()
    with suppress(StopSignal):
        requests.stop(requests.add(signal.SIGTERM))
    (reminder,) = requests._timers
    reminder.cancel()
    reminder.join()
    requests._timers[:] = [Firing(60, lambda: None)]
    requests._timers[0].start()
    requests.settle()
    assert threading.active_count() == before and not requests._timers, "one that the handler has started is left"


def test_it_does_not_come_again_while_what_it_stopped_is_cleaned_up(untouched, monkeypatch):
    monkeypatch.setattr(signals, "REMIND_SECONDS", 0.02)
    real, reminded = signals.Requests.add, []

    def add(requests, number):
        reminded.append(requests._reminds)
        return real(requests, number)

    monkeypatch.setattr(signals.Requests, "add", add)
    with pytest.raises(StopSignal), stopped_by_signals():
        try:
            send(signal.SIGTERM)
        finally:
            while reminded != [False, True, True]:
                threading.Event().wait(0.01)


STUBBORN = """if True:
    import ctypes, os, signal, sys, threading, time
    from marius_oac.runtime.signals import stopped_by_signals

    with stopped_by_signals():
        try:
            try:
                os.kill(os.getpid(), signal.SIGINT)
            finally:
                os.kill(os.getpid(), signal.SIGTERM)
                print("cleans up", flush=True)
                if sys.argv[1] == "quick":
                    print("done", flush=True)
                else:  # compiled code that looks at no signals
                    print(time.monotonic(), flush=True)
                    until = time.monotonic() + 60
                    while (left := until - time.monotonic()) > 0:
                        ctypes.CDLL(None).usleep(min(900_000, int(left * 1e6)))
        except KeyboardInterrupt as stop:
            print(stop.number, flush=True)
"""


@pytest.mark.parametrize("how", ["quick", "stuck"])
def test_a_second_signal_lets_clean_up_but_not_for_long(how):
    done = subprocess.run([sys.executable, "-c", STUBBORN, how], capture_output=True, text=True, timeout=30)
    said = done.stdout.splitlines()
    assert said[0] == "cleans up" and not done.stderr
    if how == "quick":
        assert (done.returncode, said[1:]) == (0, ["done", str(int(signal.SIGINT))])
    else:
        assert done.returncode == -signal.SIGTERM and time.monotonic() - float(said[1]) < 10


def test_ctrl_c_waits_for_the_end_of_what_is_not_interrupted():
    before, done = signal.getsignal(signal.SIGINT), []
    with pytest.raises(KeyboardInterrupt):
        with uninterrupted():
            with uninterrupted():
                signal.raise_signal(signal.SIGINT)
                done.append(1)
            done.append(2)
        done.append("never")
    assert done == [1, 2] and signal.getsignal(signal.SIGINT) is before
    with uninterrupted():
        pass
    with pytest.raises(ZeroDivisionError), uninterrupted():
        raise ZeroDivisionError
    assert signal.getsignal(signal.SIGINT) is before


def test_in_other_threads_nothing_is_put_off():
    def work():
        with uninterrupted():
            assert signal.getsignal(signal.SIGINT) is before
        return True

    before = signal.getsignal(signal.SIGINT)
    assert joined(*in_thread(work)) is True
