"""Channels between pipeline stages.

Guarantees:
- At most `capacity` items wait in a channel; `put` waits for room, `get` for an item. Nobody polls.
- `close` means "no more items": waiting ones are still handed out, then `get` raises `Closed`.
- `abort` means "everything stops": every present and future `put` and `get` raises `Closed` at once.
- An `OrderedChannel` hands items out in the order of their `batch_index`, whatever the order of arrival, and cannot
  deadlock: the item that is due always has room, because capacity counts from the number that is due.
- An `ArrivalChannel` hands them out as they arrive, except that none is overtaken more than `limit` times.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Generic, Protocol, TypeVar


class Sequenced(Protocol):
    """An item that knows which batch it belongs to."""

    @property
    def batch_index(self) -> int:
        """The number of its batch."""


Item = TypeVar("Item", bound=Sequenced)


class Closed(Exception):
    """The channel hands out and accepts no more items."""


class Channel(Generic[Item]):
    """First in, first out. `name` is for metrics; `capacity` counts items."""

    def __init__(self, name: str, capacity: int):
        if capacity < 1:
            raise ValueError(f"channel {name}: capacity must be at least 1, not {capacity}")
        self.name, self.capacity = name, capacity
        self._changed = threading.Condition()
        self._closed = self._aborted = False
        self._waiting: deque[Item] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, item: Item) -> None:
        """Adds an item, once there is room for it. Raises Closed after `close` or `abort`."""
        with self._changed:
            self._changed.wait_for(lambda: self._aborted or self._closed or self._has_room(item))
            if self._aborted or self._closed:
                raise Closed(self.name)
            self._add(item)
            self._changed.notify_all()

    def get(self) -> Item:
        """Removes the next item and returns it, once there is one. Raises Closed where none can come, or on `abort`."""
        with self._changed:
            self._changed.wait_for(lambda: self._aborted or self._ready() or (self._closed and not len(self)))
            if self._aborted or not self._ready():
                raise Closed(self.name)
            item = self._take()
            self._changed.notify_all()
            return item

    def resize(self, capacity: int) -> None:
        """Sets how many items may wait, at least one; those beyond it stay."""
        with self._changed:
            self.capacity = capacity
            self._changed.notify_all()

    def close(self) -> None:
        """Says that no more items come; those that wait are still handed out."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def abort(self) -> None:
        """Ends every present and future `put` and `get` with Closed."""
        with self._changed:
            self._aborted = True
            self._changed.notify_all()

    def _has_room(self, item: Item) -> bool:
        return len(self._waiting) < self.capacity

    def _add(self, item: Item) -> None:
        self._waiting.append(item)

    def _ready(self) -> bool:
        return bool(self._waiting)

    def _take(self) -> Item:
        return self._waiting.popleft()


class OrderedChannel(Channel[Item]):
    """Hands out items `first`, `first + 1`, ... by their `batch_index`; each number must be put once."""

    def __init__(self, name: str, capacity: int, first: int):
        super().__init__(name, capacity)
        self._due = first
        self._early: dict[int, Item] = {}

    def __len__(self) -> int:
        return len(self._early)

    def _has_room(self, item: Item) -> bool:
        return item.batch_index < self._due + self.capacity

    def _add(self, item: Item) -> None:
        if item.batch_index < self._due or item.batch_index in self._early:
            raise ValueError(f"channel {self.name}: item {item.batch_index} was put twice")
        self._early[item.batch_index] = item

    def _ready(self) -> bool:
        return self._due in self._early

    def _take(self) -> Item:
        item = self._early.pop(self._due)
        self._due += 1
        return item


class ArrivalChannel(Channel[Item]):
    """First come, first served, but the oldest item not yet handed out is overtaken at most `limit` times.

    Items are numbered from `first` without gaps. The oldest missing number has been overtaken by all items handed out
    beyond those below it, and any other item by fewer, so watching the oldest one bounds them all.
    """

    def __init__(self, name: str, capacity: int, first: int, limit: int):
        super().__init__(name, capacity)
        self.limit = limit
        self._oldest = self._handed_out = first
        self._gone: set[int] = set()

    def _starved(self) -> bool:
        return self._handed_out - self._oldest >= self.limit

    def _ready(self) -> bool:
        if self._starved() and not self._closed:
            return any(item.batch_index == self._oldest for item in self._waiting)
        return bool(self._waiting)

    def _take(self) -> Item:
        item = self._waiting[0]
        if self._starved():
            item = min(self._waiting, key=lambda waiting: waiting.batch_index)
        self._waiting.remove(item)
        self._handed_out += 1
        self._gone.add(item.batch_index)
        while self._oldest in self._gone:
            self._gone.remove(self._oldest)
            self._oldest += 1
        return item
