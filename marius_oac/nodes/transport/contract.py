"""What carries requests from trainers to a shard server, and replies back.

Guarantees:
- A message is a list of frames of bytes. Messages of one connection arrive whole, once, in the order of their sends.
- `Request.peer` is a rank that has been proved with the run's secret, never just claimed.
- At most `limits.queue` messages of one connection and direction are sent and not yet received, wherever they are, and
  no further one where they have more than half of `limits.max_bytes` already and would have more than that: `send`
  blocks until the other end has called `receive`. Half as many always have room.
- Any number of threads may send; one thread receives. No call waits for ever on a peer that is gone: within `timeout`
  seconds it raises `NodeLost`, which names the node. What had arrived before is handed out first.
- A trainer or server that has proved that it is one of the run, and then says what none says, has a defect: it is lost.
  What anybody else says has no effect.
- `abort` makes every present and future call raise `Closed`; it never waits and may be called from a signal handler.
  `close` parts in peace: it waits until the other ends have got what was sent, for `timeout` seconds at most. Then it
  does the same, and lets go of everything: no thread, socket or file is left.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self, TypeAlias

import numpy as np

from marius_oac.errors import InputError

SECRET_BYTES = 32
TAKEN = "a rank that is connected already"
"""Why a trainer is refused: another one has its rank."""
_FAILED = "it can't go on: "
Buffer: TypeAlias = bytes | bytearray | memoryview | np.ndarray


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Both ends of a connection must have the same."""

    max_bytes: int = 256 << 20
    """Of one message; those of a connection and direction that are on their way have 1.5 times as many at most."""
    max_frames: int = 256
    """Of one message."""
    queue: int = 16
    """Messages of a connection and direction that are on their way: sent and not yet received."""


@dataclass(frozen=True, kw_only=True)
class Security:
    """Who may talk.

    Args:
        secret: `SECRET_BYTES` random bytes that all nodes of the run have, and nobody else.
        run: the run's name; a connection of another run is refused.
        encrypted: what is sent can be neither read nor changed on its way.
    """

    secret: bytes = field(repr=False)
    run: str
    encrypted: bool = False

    def __post_init__(self) -> None:
        if len(self.secret) != SECRET_BYTES:
            raise InputError(f"the run's secret must have {SECRET_BYTES} bytes, not {len(self.secret)}")


@dataclass(frozen=True)
class Request:
    """A message that a trainer sent: its rank and the frames; None: an elastic worker is gone, and has said nothing
    more."""

    peer: int
    frames: list[memoryview] | None


class Endpoint(ABC):
    """What a server and a client have in common."""

    @abstractmethod
    def abort(self) -> None:
        """Every call, present or future, raises `Closed`. `close` is still needed."""

    @abstractmethod
    def close(self) -> None:
        """Parts in peace (after `abort`: at once) and lets go of everything."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.abort()
        self.close()


class Server(Endpoint):
    """Takes requests of many trainers at one address.

    Raises:
        NodeLost: in `receive`, when any trainer is lost; in `send`, when this one is lost or has left. A trainer that
            closed its client has left and is not lost. An elastic worker may be lost or leave: `receive` tells of it,
            once for
        each time that it was here; then its rank may connect again.
        Closed: after `close`, `abort` or `fail`.
    """

    address: str
    """HOST:PORT where it listens; the port is the real one where 0 was asked for."""
    names: Mapping[int, str]
    """Rank -> name of its node, for all that may connect."""

    @abstractmethod
    def receive(self) -> Request:
        """The next message of any trainer. Frames as in `Client.receive`."""

    @abstractmethod
    def send(self, peer: int, frames: Sequence[Buffer]) -> None:
        """Sends frames as `Client.send` does, to the trainer of rank `peer`."""

    @abstractmethod
    def fail(self, why: str) -> None:
        """This server can't go on: every trainer's calls raise `NodeLost` that says why, what arrived before is handed
        out first. Never waits."""


class Client(Endpoint):
    """This trainer's connection to one server.

    Raises:
        NodeLost: the server is lost, has closed or failed; or refuses this trainer now: `passes`.
        NodeRefused: it refuses this trainer, or is none of this run.
        Closed: after `close` or `abort`.
    """

    @abstractmethod
    def send(self, frames: Sequence[Buffer]) -> None:
        """Sends one message.

        Args:
            frames: bytes, contiguous NumPy arrays, or other contiguous buffers, of 0 bytes or more. They are handed
                over, not copied where that can be avoided: nobody may change them afterwards.

        Raises:
            ValueError: more frames or bytes than the limits allow, or a buffer that is not contiguous.
        """

    @abstractmethod
    def receive(self) -> list[memoryview]:
        """The server's next message: read-only frames of bytes that `np.frombuffer` can view as any type.

        Each begins at an address that is a multiple of 8, and lives as long as a view of it does.
        """


def failed(why: str) -> str:
    """What is wrong with a server that has said why it can't go on, in one line."""
    return " ".join(f"{_FAILED}{why}".split())


def passes(reason: str) -> bool:
    """Whether who is refused for this reason may be let in later."""
    return reason == TAKEN or reason.startswith(_FAILED)


def nonsense(what: object) -> str:
    """What is wrong with an end that has said what none says, in one line."""
    return " ".join(f"it sent a message that can't be: {what}".split())


def views(frames: Sequence[Buffer], limits: Limits) -> tuple[list[memoryview], int]:
    """The frames as flat bytes, and how many bytes they have together.

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
