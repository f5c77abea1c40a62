"""How many messages may be on their way: the sender's and the receiver's side of a count.

Both ends count the messages of one direction of one connection. The receiver tells how many it has handed out, with its
own messages or in one of their own; sent - handed out is what is on its way. Callers hold a lock.
"""

from __future__ import annotations

from collections import deque

from marius_oac.nodes.transport.contract import Limits
from marius_oac.nodes.transport.wire import Malformed


class SendWindow:
    """The sender's side: whether one more message may go.

    Where the receiver has handed out everything, there is room: it tells as soon as it has handed out half of the
    messages, or bytes, that may be on their way, and with less than half of them there is room for any message.
    """

    def __init__(self, limits: Limits):
        self._limits = limits
        self._sizes: deque[int] = deque()
        self._bytes = 0
        self.sent = 0

    def has_room(self, size: int) -> bool:
        most = self._limits.max_bytes
        return len(self._sizes) < self._limits.queue and (2 * self._bytes < most or self._bytes + size <= most)

    def add(self, size: int) -> int:
        """Counts a message of `size` bytes; returns its number, from 1."""
        self._sizes.append(size)
        self._bytes += size
        self.sent += 1
        return self.sent

    def taken(self, count: int) -> None:
        """The other end has handed out `count` messages so far.

        Raises:
            Malformed: more than were sent, or fewer than before; no effect.
        """
        gone = count - (self.sent - len(self._sizes))
        if not 0 <= gone <= len(self._sizes):
            raise Malformed("impossible count")
        for _ in range(gone):
            self.took_one()

    def took_one(self) -> None:
        """The other end has handed out one more."""
        self._bytes -= self._sizes.popleft()


class ReceiveWindow:
    """The receiver's side: whether the sender keeps to it, and when to tell it."""

    def __init__(self, limits: Limits):
        self._limits = limits
        self._waiting = SendWindow(limits)
        self._untold = self._untold_bytes = 0
        self.taken = 0

    def arrived(self, number: int, size: int) -> None:
        """A message of that number and size came.

        Raises:
            Malformed: it is not the next one, or there was no room for it; no effect.
        """
        if number != self._waiting.sent + 1:
            raise Malformed("out of order")
        if not self._waiting.has_room(size):
            raise Malformed("more than the queue")
        self._waiting.add(size)

    def take(self, size: int) -> bool:
        """The oldest message, of `size` bytes, is handed out; returns whether the sender should be told now.

        Told at every message, small ones would be doubled.
        """
        self.taken += 1
        self._waiting.took_one()
        self._untold += 1
        self._untold_bytes += size
        return 2 * self._untold >= self._limits.queue or 2 * self._untold_bytes >= self._limits.max_bytes

    def tell(self) -> int:
        """What to tell the sender; it counts as told."""
        self._untold = self._untold_bytes = 0
        return self.taken
