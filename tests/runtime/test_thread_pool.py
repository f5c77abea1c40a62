"""The pool of threads."""

import threading
from contextlib import closing

import pytest

from marius_oac.runtime.thread_pool import ThreadPool


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("tasks", [0, 1, 2, 50])
def test_every_task_runs_once(count, tasks):
    thread_pool, done = ThreadPool(count), []
    try:
        thread_pool.run([lambda i=i: done.append(i) for i in range(tasks)])
    finally:
        thread_pool.close()
    assert sorted(done) == list(range(tasks))


def test_lanes_work_at_the_same_time():
    thread_pool, meeting = ThreadPool(3), threading.Barrier(3, timeout=30)
    try:
        thread_pool.run([meeting.wait] * 3)
    finally:
        thread_pool.close()


@pytest.mark.parametrize("count", [1, 3])
def test_the_caller_is_one_of_the_lanes(count):
    thread_pool, mine, begun, seen = ThreadPool(count), threading.get_ident(), threading.Event(), []
    before = threading.active_count()

    def task():
        if threading.get_ident() == mine:  # all lanes have been started
            seen.append(threading.active_count() - before)
            begun.set()
        assert begun.wait(30)

    try:
        thread_pool.run([task] * 8)
    finally:
        thread_pool.close()
    assert set(seen) == {count - 1}


@pytest.mark.parametrize("count", [1, 3])
def test_an_error_surfaces_and_the_lanes_can_go_on(count):
    thread_pool, done = ThreadPool(count), []

    def fail():
        raise ZeroDivisionError("planned")

    try:
        with pytest.raises(ZeroDivisionError, match="planned"):
            thread_pool.run([fail] * 4)
        thread_pool.run([lambda: done.append(1)] * 4)
    finally:
        thread_pool.close()
    assert len(done) == 4


def test_an_error_of_another_lane_surfaces():
    thread_pool, started = ThreadPool(2), threading.Event()
    mine = threading.get_ident()

    def task():
        if threading.get_ident() == mine:
            assert started.wait(30)
        else:
            started.set()
            raise ZeroDivisionError("planned")

    try:
        with pytest.raises(ZeroDivisionError):
            thread_pool.run([task] * 2)
    finally:
        thread_pool.close()


def test_close_leaves_no_thread_and_may_be_repeated():
    before = threading.active_count()
    thread_pool = ThreadPool(4)
    thread_pool.run([lambda: None] * 20)
    thread_pool.close()
    thread_pool.close()
    assert threading.active_count() == before


def test_no_lanes():
    with pytest.raises(ValueError, match="threads: 0"):
        ThreadPool(0)


def test_a_lane_that_the_system_does_not_start_ends_the_others_first(monkeypatch):
    thread_pool, meeting, real, done = ThreadPool(3), threading.Event(), threading.Thread.start, []

    def start(thread):
        if not done:
            done.append("first lane")
            return real(thread)
        meeting.set()
        raise RuntimeError("can't start new thread")

    def work():
        assert meeting.wait(30)
        done.append("task")

    monkeypatch.setattr(threading.Thread, "start", start)
    try:
        with pytest.raises(RuntimeError, match="can't start new thread"):
            thread_pool.run([work] * 4)
        assert done == ["first lane", *["task"] * 4], "the first lane was still at work"
    finally:
        thread_pool.close()


@pytest.mark.parametrize(
    ("count", "size", "least", "parts"),
    [(1, 10, 1, [10]), (3, 10, 1, [3, 3, 4]), (3, 10, 4, [5, 5]), (3, 10, 6, [10]), (4, 0, 1, [0]), (4, 2, 1, [1, 1])],
)
def test_parts_cover_everything_and_answer_in_order(count, size, least, parts):
    with closing(ThreadPool(count)) as pool:
        found = pool.over(size, least, lambda first, end: (first, end))
    assert [end - first for first, end in found] == parts
    assert [first for first, _ in found] + [size] == [0] + [end for _, end in found]
