"""What a trainer asks of nodes beside pulls and pushes, and waits for: look-ups, and the exchanges of EASGD.

Guarantees: one thread asks at a time; the first error that `fail` is told is raised by every call that waits, then and
later.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import torch

from marius_oac.nodes.transport.messages import Kind, Message, Sync, array
from marius_oac.runtime.channel import Closed


class Lines(Protocol):
    """What is needed of `RemoteSource`."""

    connections: Any


class SyncConnections:
    """`sync_server.SyncServers` on other nodes. The parameters of a server are float32.

    Args:
        source: has the lines to the nodes.
    """

    def __init__(self, source: Lines):
        self._source, self.pending_requests, self._lock = source, PendingRequests(), threading.Lock()

    def write(self, server: int, values: torch.Tensor) -> None:
        """See `SyncServers`."""
        self._ask(server, Sync.WRITE, values)

    def read(self, server: int) -> torch.Tensor:
        """See `SyncServers`."""
        return self._ask(server, Sync.READ)

    def exchange(self, server: int, values: torch.Tensor) -> torch.Tensor:
        """See `SyncServers`."""
        return self._ask(server, Sync.EXCHANGE, values)

    def abort(self) -> None:
        """See `SyncServers`."""
        self.pending_requests.fail(Closed("sync servers"))

    def _ask(self, server: int, what: Sync, *values: torch.Tensor) -> torch.Tensor:
        with self._lock, self.pending_requests.asking(1) as number:
            arrays = [each.detach().cpu().numpy() for each in values]
            self._source.connections[server].send(Message(Kind.SYNC, number, arrays, table=what).frames())
            ((_, frames),) = self.pending_requests.answers()
        found = torch.tensor(array(frames[0], np.float32, -1))
        return found.to(values[0].device) if values else found


class PendingRequests:
    """Answers to what one thread at a time asks of some nodes."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._number, self._missing, self._error = 0, 0, None
        self._answers: list[tuple[int, Any]] = []

    @contextmanager
    def asking(self, nodes: int) -> Iterator[int]:
        """The number of a new question, to so many nodes."""
        with self._changed:
            if self._error is not None:
                raise self._error
            self._number, self._missing, self._answers = self._number + 1, nodes, []
        yield self._number

    def answers(self) -> Iterator[tuple[int, Any]]:
        """(node, frames) as they come."""
        while True:
            with self._changed:
                if not self._missing:
                    return
                self._changed.wait_for(lambda: self._error is not None or self._answers)
                if self._error is not None:
                    raise self._error
                self._missing -= 1
                found = self._answers.pop()
            yield found

    def answer(self, number: int, node: int, frames: Any) -> None:
        """What a node says; an answer to an older question is forgotten."""
        with self._changed:
            if number == self._number:
                self._answers.append((node, frames))
                self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """Every call that waits, now or later, raises this."""
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()
