"""What the stores of a run share: what brings their rows to where they are used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from marius_oac.errors import ConfigError, InputError


class TooSmallError(ConfigError):
    """There is less room than a batch needs. `what` says so, and how much it takes."""

    def __init__(self, what: str):
        super().__init__(f"{what}, or a smaller training.batch_size", "storage.memory")
        self.what = what


class Backing:
    """Where rows lie while no batch uses them. This class is for rows that are always at hand, as in memory.

    Otherwise `look_ahead` isn't 0, and a batch passes through these calls before it may use rows by
    `ParameterStore.held`:

        announce   in plan order, batches ahead: declares the rows that the batch will use  -> a claim
        fetch      in plan order: starts to bring them
        wait       before its rows are read: waits until they are there, where they stay
        release    after its rows are written

    Any number of threads may call any method.
    """

    look_ahead: int = 0
    """The number of batches that may be announced but not fetched yet; 0: batches need no claim."""

    def announce(self, batch_index: int, rows: Sequence[np.ndarray]) -> Any:
        """Declares that batch `batch_index` will use these rows of each table, int64 [n], ascending; returns its claim.

        Waits while too many batches are announced.

        Raises:
            TooSmallError: the rows of the batch can never be at hand at once.
        """

    def fetch(self, claim: Any) -> None:
        """Starts to bring the rows of a claim. Waits while other claims leave too little room."""

    def wait(self, claim: Any) -> None:
        """Waits until the rows of a fetched claim are at hand."""

    def release(self, claim: Any) -> None:
        """Ends a claim."""

    def keep(self, references: np.ndarray) -> None:
        """Keeps what a checkpoint refers to, as it is: `SavedTable.references`, int64 [n].

        Raises:
            InputError: there is no such thing to refer to, or the checkpoint refers to it twice.
        """

    def let_go(self, references: np.ndarray) -> None:
        """Ends a `keep`."""

    def forget(self) -> None:
        """Drops all rows and references, as if nothing had ever been written. Nothing else may use the stores."""

    def abort(self) -> None:
        """Makes every call that waits, now or later, raise `Closed`."""

    def metrics(self) -> dict[str, float]:
        """Traffic so far, by the names of a run's metrics."""
        return {}


IN_MEMORY = Backing()


class Several(Backing):
    """The backings of several stores as one: a batch has a claim of each.

    `fetch` is called in plan order, and takes what a batch needs of all before a later batch gets anything of one. So
    of two batches the earlier one never waits for the later one.

    Args:
        of_stores: the backing of each store.
    """

    def __init__(self, of_stores: Sequence[Backing]):
        found = {id(backing): backing for backing in of_stores if backing is not IN_MEMORY}
        self._parts = [
            (backing, [place for place, each in enumerate(of_stores) if each is backing]) for backing in found.values()
        ]
        self.look_ahead = max(backing.look_ahead for backing in found.values())

    def announce(self, batch_index: int, rows: Sequence[np.ndarray]) -> Any:
        """See `Backing.announce`."""
        return [
            (backing, backing.announce(batch_index, [rows[place] for place in places]))
            for backing, places in self._parts
        ]

    def fetch(self, claim: Any) -> None:
        """See `Backing.fetch`."""
        for backing, each in claim:
            backing.fetch(each)

    def wait(self, claim: Any) -> None:
        """See `Backing.wait`."""
        for backing, each in claim:
            backing.wait(each)

    def release(self, claim: Any) -> None:
        """See `Backing.release`."""
        for backing, each in claim:
            backing.release(each)

    def keep(self, references: np.ndarray) -> None:
        """Raises InputError: it is unknown whose they are."""
        raise InputError("a checkpoint refers to pages, of which no table is known")

    def forget(self) -> None:
        """See `Backing.forget`."""
        for backing, _ in self._parts:
            backing.forget()

    def abort(self) -> None:
        """See `Backing.abort`."""
        for backing, _ in self._parts:
            backing.abort()

    def metrics(self) -> dict[str, float]:
        """Sums of all."""
        found: dict[str, float] = {}
        for backing, _ in self._parts:
            for name, value in backing.metrics().items():
                found[name] = found.get(name, 0.0) + value
        return found
