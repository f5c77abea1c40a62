"""Requests of a trainer to nodes, beside pulls and pushes, whose answers it awaits: look-ups and EASGD's exchanges.

Guarantees: one thread asks at a time. The first error that is given to `fail` is raised by every waiting and later
call.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

import torch

from marius_oac.nodes.transport import messages
from marius_oac.nodes.transport.contract import Client
from marius_oac.runtime.channel import Closed
from marius_oac.runtime.signals import wait_for

Reply = TypeVar("Reply", bound=messages.OfRequest)


class Waiter:
    """The base of what lets threads wait: keeps the first error, which ends every wait."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._error: BaseException | None = None

    def fail(self, error: BaseException) -> None:
        """Makes every waiting and later call raise this error."""
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()

    def _wait(self, ready: Callable[[], Any], seconds: float | None = None) -> bool:
        """Waits, for so many seconds at most; returns whether it is ready."""
        with self._changed:
            found = wait_for(self._changed, lambda: self._error is not None or ready(), seconds)
            if self._error is not None:
                raise self._error
            return found


class SyncConnections:
    """Implements `sync_server.SyncServers` on other nodes. The parameters of a server are float32.

    Args:
        connections: to each node.
    """

    def __init__(self, connections: Sequence[Client]):
        self._connections, self._lock = connections, threading.Lock()
        self.pending_requests = PendingRequests[messages.Synced]()

    def write(self, server: int, values: torch.Tensor) -> None:
        """See `SyncServers`."""
        self._ask(server, messages.Operation.WRITE, values)

    def read(self, server: int) -> torch.Tensor:
        """See `SyncServers`."""
        return self._ask(server, messages.Operation.READ)

    def exchange(self, server: int, values: torch.Tensor) -> torch.Tensor:
        """See `SyncServers`."""
        return self._ask(server, messages.Operation.EXCHANGE, values)

    def abort(self) -> None:
        """See `SyncServers`."""
        self.pending_requests.fail(Closed("sync servers"))

    def _ask(self, server: int, what: messages.Operation, values: torch.Tensor | None = None) -> torch.Tensor:
        with self._lock, self.pending_requests.asking(1) as number:
            sent = None if values is None else values.detach().cpu().numpy()
            self._connections[server].send(messages.Sync(number, what, sent).frames())
            ((_, answer),) = self.pending_requests.answers()
        found = torch.tensor(answer.values)
        return found if values is None else found.to(values.device)


class PendingRequests(Waiter, Generic[Reply]):
    """Matches answers to the requests that one thread at a time sends to some nodes."""

    def __init__(self) -> None:
        super().__init__()
        self._number = self._missing = 0
        self._answers: list[tuple[int, Reply]] = []

    @contextmanager
    def asking(self, nodes: int) -> Iterator[int]:
        """Yields the number of a new request, to so many nodes."""
        with self._changed:
            if self._error is not None:
                raise self._error
            self._number, self._missing, self._answers = self._number + 1, nodes, []
        yield self._number

    def answers(self) -> Iterator[tuple[int, Reply]]:
        """Yields (node, answer) as answers arrive."""
        while self._missing:
            self._wait(lambda: self._answers)
            self._missing -= 1
            yield self._answers.pop()

    def answer(self, node: int, answer: Reply) -> None:
        """Adds a node's answer; answers to older requests are ignored."""
        with self._changed:
            if answer.number == self._number:
                self._answers.append((node, answer))
                self._changed.notify_all()
