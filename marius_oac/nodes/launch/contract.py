"""What every launcher of a run's commands agrees to, whether ssh, srun or Ray starts them.

A launcher starts a command on each node (`Started`) and reports their ends to a `Watch`, which decides alike for all:
- A node that fails stops all. The first one that failed is named and its exit code is passed on, unless another node
  ends with that of a mistake (2).
- SIGINT, SIGTERM or SIGHUP stops trainers after the batches in flight, a second one at once. After a third one nobody
  waits for them.
- Who was asked to stop has `PATIENCE` seconds.
"""

from __future__ import annotations

import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence

from marius_oac.nodes.launch.guard import PATIENCE
from marius_oac.runtime.console import say
from marius_oac.runtime.signals import Requests

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
REFUSED = 2  # exit code of a user's mistake or a full disk; other nodes may report that node's loss before it


class Started(ABC):
    """A node's command that this process has started. `name` is the node's."""

    name: str

    @abstractmethod
    def ask(self, again: bool) -> None:
        """Asks the command to stop after the batches in flight; `again`: at once. One that has ended gets nothing."""


class Watch:
    """Decides when commands stop, and which exit code the run has.

    Attributes:
        asked: how often the commands were asked to stop.
        signal: the first signal that came, or 0.
        failed: the exit code of the first failure, or 0.
        deadline: when they must have ended (`time.monotonic`); None: they were not asked to.
    """

    def __init__(self, started: Sequence[Started]) -> None:
        self.started = started
        self._requests = Requests()
        self.asked = 0
        self.signal = self.failed = 0
        self.deadline: float | None = None

    @property
    def left(self) -> float | None:
        """Seconds until the deadline; None: there is none."""
        return None if self.deadline is None else max(0.0, self.deadline - time.monotonic())

    @property
    def code(self) -> int:
        """The run's exit code."""
        return 128 + self.signal if self.signal else self.failed

    def ended(self, one: Started, code: int, how: str) -> None:
        """Takes note of the end of a command: the exit code to report for it, and how it has ended, in words."""
        if code and not self.signal:
            if not self.failed:
                say(f"marius-oac: node {one.name}: {how}")
                self.ask()
            self.failed = REFUSED if REFUSED in (code, self.failed) else self.failed or code

    def interrupted(self, number: int, frame: object) -> None:
        """Handles a signal; one that comes twice within `signals.SAME_SECONDS` is one request."""
        if self._requests.add(number):
            self.signal = self.signal or number
            self.ask()

    def ask(self) -> None:
        """Asks all to stop: the first time after the batches in flight, then at once."""
        self.asked += 1
        self.deadline = self.deadline or time.monotonic() + PATIENCE
        for one in self.started:
            one.ask(again=self.asked > 1)
