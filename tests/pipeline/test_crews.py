"""Threads of a stage that are parked, woken and let go; races are forced."""

import threading

import pytest

from marius_oac.pipeline.crews import Crew
from tests.threads import Watched, in_thread, joined


def watched_crew(working):
    crew = Crew(working)
    crew._changed = Watched()
    return crew


def test_only_as_many_work_as_are_wanted():
    crew = watched_crew(1)
    numbers = [crew.enlist() for _ in range(3)]
    assert numbers == [0, 1, 2]
    crew.wait_for_work(0)
    waiting = {number: in_thread(lambda number=number: crew.wait_for_work(number) or number) for number in (1, 2)}
    crew._changed.parked()
    crew._changed.parked()  # 1. both are parked
    crew.resize(2)  # 2. one is woken for good, the other looks and parks again
    assert joined(*waiting[1]) == 1
    crew._changed.parked()
    assert not waiting[2][1]
    crew.resize(1)
    again = in_thread(lambda: crew.wait_for_work(1) or 1)
    crew._changed.parked()  # 3. no longer wanted
    crew.open()  # 4. the stage has ended
    assert joined(*again) == 1 and joined(*waiting[2]) == 2
    crew.wait_for_work(7)


def test_a_stage_has_a_thread():
    with pytest.raises(ValueError, match="at least one"):
        Crew(0)


def test_numbers_are_each_given_once():
    crew, numbers = Crew(1), []
    threads = [threading.Thread(target=lambda: numbers.append(crew.enlist())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(numbers) == list(range(8))
