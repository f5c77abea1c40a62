"""Counts what was refused, and says so now and then.

Guarantees: `count` is safe under any lock of its caller, for it calls nobody; `say` must be called without locks. One
line a reason in `PAUSE` seconds at most, however many are refused.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable

PAUSE = 10.0


class Refusals:
    """What a server turned away, by reason.

    Args:
        log: gets one line.
        clock: seconds, for the pauses.
    """

    def __init__(self, log: Callable[[str], None], clock: Callable[[], float] = time.monotonic):
        self._log, self._clock = log, clock
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._said: dict[str, tuple[float, int]] = {}
        self._unsaid: dict[str, str] = {}

    @property
    def counts(self) -> Counter[str]:
        with self._lock:
            return Counter(self._counts)

    def count(self, reason: str, whom: str) -> None:
        with self._lock:
            self._counts[reason] += 1
            self._unsaid[reason] = whom

    def say(self) -> None:
        """Logs what is due."""
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
