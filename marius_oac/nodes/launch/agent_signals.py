"""Signals at a node's agent, which passes them on to the node's processes.

Guarantees:
- While processes run, the first request raises torch's `SignalException`: torch's agent stops the processes with that
  signal and waits for them. The second is passed on to them, and interrupts nothing. So is the first one while the
  agent starts or stops them; it is raised afterwards (`raise_late`). The third kills them.
- The same signal within `signals.SAME_SECONDS` is the same request, as in the processes: it comes to the agent from its
  guard, the launcher and the terminal.
- A SIGHUP that was ignored stays so (`nohup`), also for the processes, which inherit that.
- Until processes are started, a signal does what it did before. Once they have ended, the first one does nothing: the
  run is over, and what is still to be closed takes `timeout` at most.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from torch.distributed.elastic.multiprocessing.api import SignalException

from marius_oac.runtime.signals import STOPPING, Requests, StopSignal, handled

LEFT_TO_US = {"TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGQUIT"}
"""Environment variables with which torch's agent leaves `STOPPING` alone."""


class AgentSignals:
    """Handles the signals of the main thread within `handled`."""

    def __init__(self) -> None:
        self._requests = Requests()
        self._before = {number: signal.getsignal(number) for number in STOPPING}
        self._groups: Callable[[], Sequence[int]] | None = None
        self._holding = self._over = False
        self._late = 0

    @contextmanager
    def handled(self) -> Iterator[AgentSignals]:
        """Within the block signals do what the head of this module says."""
        with handled(STOPPING, self._handle):
            yield self

    def started(self, groups: Callable[[], Sequence[int]]) -> None:
        """Called before processes are started. `groups` returns the process groups of those that run."""
        self._groups = groups

    @contextmanager
    def held_back(self) -> Iterator[None]:
        """Within the block, in which processes are started or stopped, no signal interrupts."""
        before, self._holding = self._holding, True
        try:
            yield
        finally:
            self._holding = before

    def raise_late(self) -> None:
        """Raises SignalException if the first request was held back."""
        if self._late:
            self._raise(self._late)

    def ended(self) -> None:
        """Called when all processes have ended for good."""
        self._over, self._requests = True, Requests()

    def _handle(self, number: int, frame: object) -> None:
        if self._groups is None:
            self._as_before(number, frame)
            return
        count = self._requests.add(number)
        if count == 1 and not self._holding and not self._over:
            self._raise(number)
        elif count > 1 and self._over:
            self._as_before(number, frame)
        elif count:
            self._late = self._late or (number if count == 1 else 0)
            for group in self._groups():
                with suppress(ProcessLookupError):
                    os.killpg(group, number if count < 3 else signal.SIGKILL)

    def _raise(self, number: int) -> None:
        raise SignalException(f"stopped by {signal.Signals(number).name}", signal.Signals(number))

    def _as_before(self, number: int, frame: object) -> None:
        before = self._before[signal.Signals(number)]
        if not callable(before):
            raise StopSignal(number)
        before(number, frame)  # type: ignore[arg-type]  # a frame
