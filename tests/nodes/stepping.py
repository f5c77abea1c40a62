"""Replicas whose training and synchronising a test steps: every interleaving is forced, none is waited for."""

import threading

from tests.threads import PATIENCE


class Gate:
    """Holds a synchronising thread at each point until the test lets it go on."""

    def __init__(self):
        self._changed = threading.Condition()
        self._at, self._passes, self._open = [], 0, False

    def __call__(self, point):
        with self._changed:
            self._at.append(point)
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: self._passes or self._open, PATIENCE), "the test has forgotten it"
            self._passes -= not self._open

    def arrived(self, point):
        """Returns once the thread stands at its next point, which must be this one."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._at, PATIENCE), f"nobody comes to {point}"
            assert self._at.pop(0) == point

    def let_go(self):
        with self._changed:
            self._passes += 1
            self._changed.notify_all()

    def open(self):
        """From now on it holds nobody."""
        with self._changed:
            self._open = True
            self._changed.notify_all()
