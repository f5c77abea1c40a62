"""Receives from several clients in one thread, which sleeps while none of them has anything.

With a thread for each client, a trainer with 1,000 peers would have 1,000 threads.

Guarantees:
- Messages of one client come in their order, and each client that has some gets its turn.
- A client that is over is reported once, with its error, after the messages that arrived before. The others go on.
- The thread wakes up when a client has something, or is due to be looked at (`Watcher.watch`); all clients that are
  due are looked at together. What it costs does not grow with clients that are silent.
"""

from __future__ import annotations

import math
import os
import select
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from marius_oac.nodes.transport.contract import Client
from marius_oac.types import present


class Arrival(NamedTuple):
    """What has come from the client of this number: a message, as `Client.receive` returns it, or its end."""

    number: int
    frames: list[memoryview] | None
    error: BaseException | None = None


class Receiver:
    """Receives from these clients. Made, used and closed by one thread; `close` leaves the clients open."""

    def __init__(self, clients: Sequence[Client]):
        self._clients = clients
        self._lock = threading.RLock()  # a signal handler that aborts a client may find it taken by its own thread
        self._waker: int | None = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll = select.epoll()
        self._epoll.register(self._waker, select.EPOLLIN)
        self._numbers: dict[int, int] = {}  # of clients, by descriptor
        self._woken: deque[int] = deque(range(len(clients)))  # what came before they were attached was told to nobody
        self._turns: deque[int] = deque()
        self._open = set(range(len(clients)))
        self._every = math.inf
        for number in self._open:
            clients[number].attach(_Watch(self, number))
        self._next_look = time.monotonic() + self._every

    def receive(self) -> Arrival | None:
        """Waits for the next arrival; None: all clients are over."""
        while self._open:
            if not self._turns:
                self._wait()
            for _ in range(len(self._turns)):
                number = self._turns.popleft()
                found = self._arrival(number) if number in self._open else None
                if found is not None:
                    return found
        return None

    def close(self) -> None:
        """Gives up the clients, which may be closed already."""
        for number in self._open:
            self._clients[number].detach()
        with self._lock:
            waker, self._waker = present(self._waker), None
            self._epoll.close()
        os.close(waker)

    def _arrival(self, number: int) -> Arrival | None:
        try:
            frames = self._clients[number].receive_nowait()
        except BaseException as error:  # noqa: BLE001 - reported
            self._open.discard(number)
            self._clients[number].detach()
            return Arrival(number, None, error)
        return None if frames is None else Arrival(number, frames)

    def _wait(self) -> None:
        """Finds out who has something, and waits until somebody has."""
        left = self._next_look - time.monotonic()
        ready = self._epoll.poll(0 if self._woken else None if left == math.inf else max(0.0, left))
        if any(descriptor == self._waker for descriptor, _ in ready):
            os.eventfd_read(present(self._waker))  # before what it tells is looked at
        told = [self._numbers.get(descriptor, -1) for descriptor, _ in ready]  # -1: the waker, or it is forgotten
        told += [self._woken.popleft() for _ in range(len(self._woken))]
        if time.monotonic() >= self._next_look:
            told, self._next_look = list(self._open), time.monotonic() + self._every
        self._turns.extend(dict.fromkeys(told))


class _Watch:
    """Tells a receiver of the client of this number."""

    def __init__(self, receiver: Receiver, number: int):
        self._receiver, self._number = receiver, number
        self._descriptor: int | None = None

    def watch(self, descriptor: int, seconds: float) -> None:
        """See `Watcher.watch`."""
        receiver, self._descriptor = self._receiver, descriptor
        receiver._numbers[descriptor] = self._number
        receiver._epoll.register(descriptor, select.EPOLLIN)
        receiver._every = min(receiver._every, seconds)

    def wake(self) -> None:
        """See `Watcher.wake`."""
        receiver = self._receiver
        receiver._woken.append(self._number)
        with receiver._lock:
            if receiver._waker is not None:
                os.eventfd_write(receiver._waker, 1)

    def forget(self) -> None:
        """See `Watcher.forget`."""
        receiver = self._receiver
        with receiver._lock:
            if receiver._waker is not None and self._descriptor is not None:
                receiver._epoll.unregister(self._descriptor)
                del receiver._numbers[self._descriptor]
