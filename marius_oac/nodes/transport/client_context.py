"""One ZeroMQ context for all clients of this process: ZeroMQ's threads, which carry their bytes.

A context for each client would have two threads and five descriptors for each peer. Servers have contexts of their own,
since ZeroMQ asks one gate per context which connections to admit.

Guarantees: the context lives from the first `acquire` to the last `release`, which waits until what its closed sockets
have to send is sent or given up. An `acquire` meanwhile waits for nothing: it gets a new context.
"""

from __future__ import annotations

import os
import threading

import zmq

from marius_oac.types import present

_MOST_SOCKETS = 1 << 14  # ZeroMQ's own limit, 1023, is less than the clients of a large run
_MOST_THREADS = 4  # that carry bytes: one carries 1.5 to 3 GB/s


class ClientContext:
    """A context that is there while it has users."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._users = 0

    def acquire(self) -> zmq.Context[zmq.Socket[bytes]]:
        """Returns the context, for one more user."""
        with self._lock:
            if self._context is None:
                self._context = zmq.Context(min(_MOST_THREADS, len(os.sched_getaffinity(0))))
                self._context.set(zmq.MAX_SOCKETS, _MOST_SOCKETS)
            self._users += 1
            return self._context

    def release(self) -> None:
        """Ends one use; called when the user's sockets are closed."""
        with self._lock:
            self._users -= 1
            if self._users:
                return
            context, self._context = present(self._context), None
        context.term()

    def forget(self) -> None:
        """Leaves the context to the process that this one was forked from."""
        self._lock = threading.Lock()
        self._context, self._users = None, 0


CLIENT_CONTEXT = ClientContext()
"""That of this process."""
os.register_at_fork(after_in_child=CLIENT_CONTEXT.forget)
