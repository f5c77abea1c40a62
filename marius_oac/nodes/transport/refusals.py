"""Counts refusals, and logs them from time to time.

Guarantees: `count` may be called under any lock, since it does not log; `say` must be called without locks. At most one
line per reason is logged in `PAUSE` seconds, however many are refused.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable

PAUSE = 10.0


class Refusals:
    """Counts what a server refuses, by reason.

    Args:
        log: called with one line at a time.
        clock: returns seconds.
    """

    def __init__(self, log: Callable[[str], None], clock: Callable[[], float] = time.monotonic):
        self._log, self._clock = log, clock
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._said: dict[str, tuple[float, int]] = {}
        self._unsaid: dict[str, str] = {}

    @property
    def counts(self) -> Counter[str]:
        """The number of refusals by reason; a copy."""
        with self._lock:
            return Counter(self._counts)

    def count(self, reason: str, whom: str) -> None:
        """Counts one refusal; `whom` names the refused in the log."""
        with self._lock:
            self._counts[reason] += 1
            self._unsaid[reason] = whom

    def say(self) -> None:
        """Logs the lines that are due."""
        for line in self._due():
            self._log(line)

    def _due(self) -> list[str]:
        if not self._unsaid:
            return []
        lines, now = [], self._clock()
        with self._lock:
            for reason, whom in list(self._unsaid.items()):
                said, before = self._said.get(reason, (-PAUSE, 0))
                if now - said < PAUSE:
                    continue
                total = self._counts[reason]
                times = "" if total == 1 else f" ({total - before} times, {total} in all)"
                lines.append(f"refused {whom}: {reason}{times}")
                self._said[reason] = now, total
                del self._unsaid[reason]
        return lines
