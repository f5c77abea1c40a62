"""The transport of requests from trainers to a shard server, and of its replies: the contract.

Guarantees:
- A message is a list of frames of bytes. Messages of one connection arrive whole, once, in the order of their sends.
- `Request.peer` is a rank that was proved with the run's secret, never only claimed.
- Each connection and direction has a window of messages that are sent and not yet received: at most `limits.queue`. A
  window with less than half of `limits.max_bytes` takes a message of any size, a fuller one only what keeps it within
  `limits.max_bytes`. `send` blocks until the other end has received enough.
- Any number of threads may send; one thread receives, from one client or from several (`receiver.py`). No call waits
  for ever on a peer that is gone: within `timeout` seconds it raises `NodeLost`, which names the node. Messages that
  arrived before are returned first.
- A peer that has proved that it belongs to the run, and then sends an invalid message, has a defect: it is lost.
  Messages of strangers have no effect.
- `abort` makes every present and future call raise `Closed`. It never waits and may be called from a signal handler.
  `close` waits until the other ends have received what was sent, for `timeout` seconds at most. Then it aborts and
  releases everything: no thread, socket or file is left.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import numpy as np

from marius_oac.errors import InputError
from marius_oac.runtime.closing import Abortable

SECRET_BYTES = 32
TAKEN = "a rank that is connected already"
"""Why a trainer is refused: another one has its rank."""
_FAILED = "it can't go on: "
Buffer: TypeAlias = bytes | bytearray | memoryview | np.ndarray
Frames: TypeAlias = Sequence[Buffer]
"""The frames of a message: bytes, contiguous NumPy arrays, or other contiguous buffers, of 0 bytes or more."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of messages; the same at both ends of a connection."""

    max_bytes: int = 256 << 20
    """Of one message; a window (see above) has 1.5 times as many at most."""
    max_frames: int = 256
    """Of one message."""
    queue: int = 16
    """Messages in a window."""


@dataclass(frozen=True, kw_only=True)
class Security:
    """Who may connect.

    Args:
        secret: `SECRET_BYTES` random bytes that only the nodes of the run have.
        run: the run's name; a connection of another run is refused.
        encrypted: whether messages are protected from being read or changed on the network.

    Raises:
        InputError: the secret has another length.
    """

    secret: bytes = field(repr=False)
    run: str
    encrypted: bool = False

    def __post_init__(self) -> None:
        if len(self.secret) != SECRET_BYTES:
            raise InputError(f"the run's secret must have {SECRET_BYTES} bytes, not {len(self.secret)}")


@dataclass(frozen=True)
class Request:
    """A trainer's message.

    Attributes:
        peer: the trainer's rank.
        frames: of the message; None: an elastic worker is gone, and this is the last request of it.
    """

    peer: int
    frames: list[memoryview] | None


class Endpoint(Abortable):
    """The base of a server and a client.

    `abort` makes every present and future call raise `Closed`; `close` is still needed. `close` waits until sent
    messages have arrived, but not after `abort`, and releases everything.
    """


class Server(Endpoint):
    """Receives requests of many trainers at one address.

    Raises:
        NodeLost: in `receive`, when any trainer is lost; in `send`, when that trainer is lost or has left. A trainer
            that closed its client has left and is not lost. An elastic worker may be lost or leave: `receive` reports
            it once for each of its connections, and its rank may connect again.
        Closed: after `close`, `abort` or `fail`.
    """

    address: str
    """HOST:PORT where it listens; where port 0 was asked for, the real port."""
    names: Mapping[int, str]
    """Rank -> name of its node, for all that may connect."""

    @abstractmethod
    def receive(self) -> Request:
        """Returns the next message of any trainer. Frames are as in `Client.receive`."""

    @abstractmethod
    def send(self, peer: int, frames: Frames) -> None:
        """Sends a message to the trainer of rank `peer`, as `Client.send` does."""

    @abstractmethod
    def fail(self, why: str) -> None:
        """Makes every trainer's calls raise `NodeLost` with this reason, after the messages that arrived before. Never
        waits."""


class Watcher(Protocol):
    """What is told about a client that is attached to it. Its methods never wait, and do not call the client."""

    def watch(self, descriptor: int, seconds: float) -> None:
        """Something may have arrived when this descriptor is readable, and is to be looked for every so many seconds,
        whatever is told. Without this, `wake` tells everything."""

    def wake(self) -> None:
        """`receive_nowait` may return something that the descriptor does not tell; called by any thread."""

    def forget(self) -> None:
        """The descriptor must not be used any more when this returns, since the client is closed."""


class Client(Endpoint):
    """This trainer's connection to one server.

    Raises:
        NodeLost: the server is lost, has closed or failed; or refuses this trainer for now, see `passes`.
        NodeRefused: the server refuses this trainer, or does not belong to the run.
        Closed: after `close` or `abort`.
    """

    name: str
    """The server's node."""

    @abstractmethod
    def send(self, frames: Frames) -> None:
        """Sends one message.

        Args:
            frames: of the message. They are not copied where that can be avoided, so they must not be changed
                afterwards.

        Raises:
            ValueError: more frames or bytes than the limits allow, or a buffer that is not contiguous.
        """

    @abstractmethod
    def receive(self) -> list[memoryview]:
        """Returns the server's next message: read-only frames of bytes that `np.frombuffer` can view as any type.

        Each begins at an address that is a multiple of 8, and lives as long as a view of it does.
        """

    @abstractmethod
    def attach(self, watcher: Watcher) -> None:
        """From now on this thread receives, by `receive_nowait`, and `watcher` is told when to. Raises nothing."""

    @abstractmethod
    def receive_nowait(self) -> list[memoryview] | None:
        """Returns what `receive` would return without waiting, and wakes the watcher if there is more; None: it would
        wait."""

    @abstractmethod
    def detach(self) -> None:
        """Ends what `attach` began; does nothing where the client is closed."""


def failed(why: str) -> str:
    """Returns the reason of a `NodeLost`, in one line, for a server that has failed with this reason."""
    return " ".join(f"{_FAILED}{why}".split())


def passes(reason: str) -> bool:
    """Whether a trainer that is refused for this reason may be admitted later."""
    return reason == TAKEN or reason.startswith(_FAILED)


def nonsense(what: object) -> str:
    """Returns the reason of a `NodeLost`, in one line, for a peer that has sent an invalid message."""
    return " ".join(f"it sent an invalid message: {what}".split())


def views(frames: Frames, limits: Limits) -> tuple[list[memoryview], int]:
    """Returns the frames as flat bytes, and the number of bytes of all.

    Raises:
        ValueError: see `Client.send`.
    """
    if len(frames) > limits.max_frames:
        raise ValueError(f"a message may have {limits.max_frames} frames, not {len(frames)}")
    flat = []
    for number, frame in enumerate(frames):
        view = memoryview(frame)
        if not view.c_contiguous:
            raise ValueError(f"frame {number} is not contiguous")
        flat.append(view.cast("B") if view.nbytes else memoryview(b""))
    size = sum(map(len, flat))
    if size > limits.max_bytes:
        raise ValueError(f"a message may have {limits.max_bytes} bytes, not {size}")
    return flat, size
