"""Threads beside a test, and conditions that tell when somebody waits on them: races are forced, not hoped for."""

import threading

from marius_oac.runtime.channel import Closed

PATIENCE = 30


class Watched(threading.Condition):
    """A condition whose `parked` returns when one more thread has begun to wait.

    It begins with the lock held and lets go of it by waiting, so whoever takes the lock after `parked` finds it asleep.
    """

    def __init__(self):
        super().__init__()
        self._waits = threading.Semaphore(0)

    def wait(self, timeout=None):
        self._waits.release()
        return super().wait(timeout)

    def parked(self):
        assert self._waits.acquire(timeout=PATIENCE), "nobody waits"


def watched(thing):
    """A channel or ledger whose condition is `Watched`."""
    thing._changed = Watched()
    return thing


def in_thread(work):
    """Runs `work` beside the test; returns (thread, list that gets the outcome)."""
    outcome = []

    def run():
        try:
            outcome.append(work())
        except (Closed, RuntimeError, ValueError) as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, outcome


def joined(thread, outcome):
    thread.join(PATIENCE)
    assert not thread.is_alive()
    return outcome[0]
