"""Flow control: the sender's and the receiver's side of the window of one connection and direction.

Both ends count messages. The receiver reports how many it has returned to its caller, with its own messages or in a
message of its own. The window holds the messages that are sent and not yet returned. Callers hold a lock.
"""

from __future__ import annotations

from collections import deque

from marius_oac.nodes.transport.contract import Limits
from marius_oac.nodes.transport.wire import Malformed


class SendWindow:
    """The sender's side: decides whether one more message may be sent.

    A sender never waits once the receiver has returned everything: the receiver reports when it has returned half of
    the messages or bytes of a window, and a window that is less than half full takes any message.
    """

    def __init__(self, limits: Limits):
        self._limits = limits
        self._sizes: deque[int] = deque()
        self._bytes = 0
        self.sent = 0

    def fits(self, size: int) -> bool:
        """Whether a message of `size` bytes may be sent."""
        most = self._limits.max_bytes
        return len(self._sizes) < self._limits.queue and (2 * self._bytes < most or self._bytes + size <= most)

    def add(self, size: int) -> int:
        """Counts a message of `size` bytes; returns its number, from 1."""
        self._sizes.append(size)
        self._bytes += size
        self.sent += 1
        return self.sent

    def taken(self, count: int) -> None:
        """Records that the other end has returned `count` messages so far.

        Raises:
            Malformed: these are more than were sent, or fewer than before; nothing is recorded.
        """
        gone = count - (self.sent - len(self._sizes))
        if not 0 <= gone <= len(self._sizes):
            raise Malformed("impossible count")
        for _ in range(gone):
            self.took_one()

    def took_one(self) -> None:
        """Records that the other end has returned one more."""
        self._bytes -= self._sizes.popleft()


class ReceiveWindow:
    """The receiver's side: checks that the sender keeps to the window, and decides when to report."""

    def __init__(self, limits: Limits):
        self._limits = limits
        self._waiting = SendWindow(limits)
        self._untold = self._untold_bytes = 0
        self.taken = 0

    def arrived(self, number: int, size: int) -> None:
        """Records the arrival of a message of that number and size.

        Raises:
            Malformed: it is not the next one, or the window was full; nothing is recorded.
        """
        if number != self._waiting.sent + 1:
            raise Malformed("out of order")
        if not self._waiting.fits(size):
            raise Malformed("more than the queue")
        self._waiting.add(size)

    def take(self, size: int) -> bool:
        """Records that the oldest message, of `size` bytes, is returned; returns whether to report to the sender now.

        A report after every message would double the number of messages.
        """
        self.taken += 1
        self._waiting.took_one()
        self._untold += 1
        self._untold_bytes += size
        return 2 * self._untold >= self._limits.queue or 2 * self._untold_bytes >= self._limits.max_bytes

    def tell(self) -> int:
        """Returns the count to report to the sender, which then counts as reported."""
        self._untold = self._untold_bytes = 0
        return self.taken
