"""Threads that stop together: each guarantee at the head of `workers.py`."""

import threading

import pytest

from marius_oac.runtime.channel import Closed
from marius_oac.runtime.workers import Workers


def test_all_done_is_told_once_and_after_the_last():
    barrier, told = threading.Barrier(3), []
    with Workers(on_failure=lambda: told.append("failure")) as workers:
        workers.start("w", 3, lambda: barrier.wait(30), lambda: told.append("done"))
        workers.join()
    assert told == ["done"]


def test_the_first_error_stops_the_others_and_keeps_its_traceback():
    stop, failures, done = threading.Event(), [], []

    def wait():
        assert stop.wait(30)
        raise Closed("c")

    def fail():
        raise KeyError("first")

    def on_failure():
        failures.append(1)
        stop.set()

    before = threading.active_count()
    with pytest.raises(KeyError, match="first") as caught, Workers(on_failure) as workers:
        workers.start("waiting", 2, wait, lambda: done.append("waiting"))
        workers.start("failing", 1, fail, lambda: done.append("failing"))
        workers.join()
    assert failures and done == ["waiting"]
    assert any(entry.name == "fail" for entry in caught.traceback)
    assert threading.active_count() == before


def test_later_errors_do_not_replace_the_first():
    second = threading.Event()

    def late():
        assert second.wait(30)
        raise ValueError("second")

    def early():
        raise KeyError("first")

    with pytest.raises(KeyError, match="first"), Workers(second.set) as workers:
        workers.start("late", 1, late, lambda: None)
        workers.start("early", 1, early, lambda: None)
        workers.join()


def test_an_error_of_the_body_stops_and_joins_the_workers():
    stop, before = threading.Event(), threading.active_count()
    with pytest.raises(KeyboardInterrupt), Workers(stop.set) as workers:
        workers.start("w", 2, lambda: stop.wait(30), lambda: None)
        raise KeyboardInterrupt
    assert stop.is_set() and threading.active_count() == before


def test_closed_is_no_error():
    def closed():
        raise Closed("c")

    told = []
    with Workers(lambda: told.append("failure")) as workers:
        workers.start("w", 2, closed, lambda: told.append("done"))
        workers.join()
    assert told == ["done"]


def test_each_thread_binds_itself_before_its_work():
    barrier, seen = threading.Barrier(5), []

    def bind(name):
        seen.append((threading.current_thread().name, name))
        barrier.wait(30)

    def work():
        assert len(seen) == 5 and threading.current_thread().name in dict(seen)

    with Workers(lambda: None, bind) as workers:
        workers.start("read", 2, work, lambda: None)
        workers.start("write", 3, work, lambda: None)
        workers.join()
    assert sorted(seen) == [(f"{name}-{n}", name) for name, count in (("read", 2), ("write", 3)) for n in range(count)]


def test_a_binding_that_fails_is_an_error_like_any_other():
    def bind(name):
        raise ValueError(f"no role is named {name!r}")

    told = []
    with pytest.raises(ValueError, match="'reed'"), Workers(lambda: told.append("failure"), bind) as workers:
        workers.start("reed", 1, lambda: told.append("worked"), lambda: told.append("done"))
        workers.join()
    assert set(told) == {"failure"}


def test_a_thread_that_the_system_does_not_start_is_not_waited_for(monkeypatch):
    """The second of three: the first one ends, and the block is left with the error."""
    stop, before, real, started = threading.Event(), threading.active_count(), threading.Thread.start, []

    def start(thread):
        started.append(thread)
        if len(started) == 2:
            raise RuntimeError("can't start new thread")
        real(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(RuntimeError, match="can't start new thread"), Workers(stop.set) as workers:
        workers.start("waiting", 3, lambda: stop.wait(30), lambda: None)
    assert len(started) == 2 and threading.active_count() == before
