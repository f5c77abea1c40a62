"""Errors that a user sees. Every one prints as one line that says what is wrong and where."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from datetime import date
from typing import Any, Self


class MariusOacError(Exception):
    """Base of all errors raised on purpose by this package. `exit_code` is what the command line returns."""

    exit_code = 1

    @property
    def lines(self) -> list[str]:
        """What a command says of the error."""
        return [str(self)]

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles as it is, for libraries that return the errors of other processes, such as Ray: `Exception` would
        call `__init__` with the message alone."""
        return _made_again, (type(self), self.args), self.__dict__


def _made_again(kind: type[MariusOacError], args: tuple[Any, ...]) -> MariusOacError:
    return kind.__new__(kind, *args)


class InputError(MariusOacError):
    """The user's input (file, config key, argument) is wrong; nothing was written.

    Args:
        message: what is wrong, in one line.
        where: file, `file:line` or config key that is to blame; printed before the message.
    """

    exit_code = 2

    def __init__(self, message: str, where: object = None):
        self.message = _printable(" ".join(str(message).split()))
        self.where = None if where is None else str(where)
        super().__init__(self.message if self.where is None else f"{_printable(self.where)}: {self.message}")


def _printable(text: str) -> str:
    """The text on one line; what it has of a file is no command to a terminal."""
    return text if text.isprintable() else "".join(ch if ch.isprintable() else ascii(ch)[1:-1] for ch in text)


def how_to_install(extra: str) -> str:
    """The command that installs an extra of this package: from its own folder, as it is on no registry of packages,
    where anybody may take its name."""
    return f"pip install '/path/to/marius_oac[{extra}]' (the folder with setup.cfg, or a wheel)"


_MOST_LINES = 10


class ConfigError(InputError):
    """A configuration is wrong; `where` is the key's path, after the file and line where they are known.

    Attributes:
        others: further mistakes of the same configuration.
    """

    others: tuple[ConfigError, ...] = ()

    def with_others(self, others: Iterable[ConfigError]) -> Self:
        """The same error, with these `others`."""
        self.others = tuple(others)
        return self

    @property
    def lines(self) -> list[str]:
        """A line for each mistake, ten at most."""
        told = [str(each) for each in (self, *self.others)]
        left = len(told) - _MOST_LINES
        return [*told[:_MOST_LINES], *([f"and {left:,} more"] if left > 0 else [])]


class CheckpointError(InputError):
    """A checkpoint or run folder is missing, damaged, or belongs to another run, graph or version."""


_OR = " (or a parameter of the network or a relation, or its gradient, is not finite or far too large)"


class DivergedError(MariusOacError):
    """A number became NaN, infinite or larger than any that is of use: training stopped before that batch, or that
    checkpoint, was kept.

    Args:
        batch_index: the batch.
        found: its loss, NaN also where dense parameters or their gradients are of no use; or what is, after it.
        kept: where training can go on from, with smaller steps.
        outcome: what became of that batch.
    """

    exit_code = 2

    def __init__(
        self, batch_index: int, found: float | str, kept: object = None,
        outcome: str = "training stopped, nothing of that batch was kept",
    ):  # fmt: skip
        self.batch_index, self.found, self.kept = batch_index, found, kept
        what = found if isinstance(found, str) else f"the loss is {found}{_OR}"
        left = f"; the last good checkpoint is {kept}" if kept else ""
        super().__init__(f"diverged: {what} at batch {batch_index}: {outcome}{left}; a smaller learning_rate may help")


class CallbackError(MariusOacError):
    """A function of the user's own has failed, which a run calls while it trains; the error is this one's cause.

    Args:
        name: of the callback.
        error: what it raised.
    """

    def __init__(self, name: str, error: Exception):
        self.name = name
        super().__init__(f"{name}, a callback of your own, has failed: {type(error).__name__}: {error}")


class NodeLost(MariusOacError):
    """Another node has ended, or has not been heard of for too long; training can't go on without it.

    Args:
        node: its name.
        why: what was seen of it, in one line.
    """

    def __init__(self, node: str, why: str):
        self.node, self.why = node, why
        super().__init__(f"node {node}: {why}")


class NodeRefused(NodeLost):
    """Another node does not let this one in, and will not as long as both are what they are."""

    exit_code = 2


class Interrupted(MariusOacError):
    """A signal asked training to stop; the batches in flight were finished and a checkpoint was written.

    Args:
        number: the signal.
    """

    def __init__(self, message: str, number: int = signal.SIGINT):
        self.exit_code = 128 + number
        super().__init__(message)


def shown(value: Any) -> str:
    """A value as it is quoted in a message: short, on one line."""
    if value is None:
        return "null"
    if isinstance(value, int) and value.bit_length() > 1000:  # Python makes no text of very long ones
        return "a number of many digits"
    text = str(value).lower() if isinstance(value, bool) else str(value) if isinstance(value, date) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def size_text(num_bytes: int) -> str:
    """A number of bytes as text, in MiB or GiB."""
    return f"{num_bytes / (1 << 30):.2f} GiB" if num_bytes >= 1 << 30 else f"{num_bytes / (1 << 20):.0f} MiB"
