"""The rows of the batch that is with the user, as parameters."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch
from torch.autograd.graph import increment_version

from marius_oac.errors import DivergedError, InputError, shown
from marius_oac.kernels.cpu import leaves as kernels
from marius_oac.models.compute.soundness import is_sound
from marius_oac.storage.keys.distinct import DistinctKeys
from marius_oac.training.own_loop.key_forms import TEXTS, KeyArray
from marius_oac.types import present

Update = Callable[[np.ndarray, np.ndarray], None]
"""Changes rows, float32 [n, width], by gradients, float32 [n, dimension]."""

_GROWTH = 1.25


class Rule(Protocol):
    """How an optimizer updates rows.

    Attributes:
        only_used: rows that the model has not looked up stay as they are.
    """

    only_used: bool

    def updating(self, rate: float, number: int) -> Update:
        """The update of step `number` of a table, from 1, with a learning rate."""


class NotAnnounced(LookupError):
    """The batch at hand does not have the key at this place of those that were asked for."""

    def __init__(self, place: int):
        super().__init__(place)
        self.place = place


class _Lease:
    """Whether the user has a batch. Apart from its rows, whose leaf has a hook: tensors in circles stay until Python
    looks for circles."""

    def __init__(self, number: int, name: str):
        self.number, self.name, self.ended = number, name, False

    def check(self, gradient: torch.Tensor) -> None:
        """A hook of the leaf."""
        if self.ended:
            raise InputError(
                f"backward reached rows of batch {self.number} of table {self.name!r}, which was handed back when the "
                "loop asked for the next one: call backward before that"
            )


class Room:
    """Memory for the rows that an optimizer updates, used again by each batch of a table: new memory takes longer than
    an update."""

    def __init__(self) -> None:
        self._floats = np.empty(0, np.float32)

    def of(self, count: int, width: int) -> np.ndarray:
        """float32 [count, width]."""
        size = count * width
        if self._floats.size < size:
            self._floats = np.empty(int(_GROWTH * size), np.float32)
        return self._floats[:size].reshape(count, width)


class Rows:
    """The rows of one table in the batch at hand, in the order in which their keys first occur in it.

    This order, and with it the order of sums over a batch's rows, is the batch's own: the order of the store depends on
    the batches that were planned before, trained or not.

    Attributes:
        leaf: a parameter, float32 [m, dimension], private to the batch.
        local: of each of the batch's keys its place in `leaf`, int64 [n].
        stepped: whether an optimizer has changed the rows.

    Args:
        number: of the batch.
        name: of the table.
        rows: float32 [m, width], in the order of the store.
        order: the place of each key's row in `rows`, int64 [m].
        distinct: the m different keys, in the order of their first occurrence.
        room: for rows that are updated; no other batch may use it before this one is handed back.
    """

    def __init__(
        self, number: int, name: str, dimension: int, rows: np.ndarray, order: np.ndarray, distinct: DistinctKeys,
        local: np.ndarray, room: Room,
    ):  # fmt: skip
        self.number, self.name, self.local, self.stepped = number, name, torch.from_numpy(local), False
        self._rows, self._order, self._distinct, self._room = rows, order, distinct, room
        self._whole: np.ndarray | None = None  # rows with what the optimizer keeps of them, where it has updated them
        self._sorted: tuple[np.ndarray, np.ndarray] | None = None
        self._dimension, self._lease, self._used = dimension, _Lease(number, name), np.zeros(len(order), np.bool_)
        value = np.empty((len(order), dimension), np.float32)
        kernels.gather(rows, order, value)
        self.leaf = torch.from_numpy(value).requires_grad_()
        self.leaf.register_hook(self._lease.check)

    def places(self, asked: KeyArray) -> torch.Tensor:
        """The place of each key in `leaf`, int64 [k]. Raises InputError if the batch does not have a key."""
        known = self._distinct
        if self._sorted is None:
            order = np.lexsort((known.keys, known.vocabularies))
            texts = int(np.searchsorted(known.vocabularies[order], TEXTS))
            self._sorted = order[:texts], order[texts:]
        places, found = np.zeros(asked.keys.size, np.int64), np.zeros(asked.keys.size, np.bool_)
        for vocabulary, order in enumerate(self._sorted):
            own = np.flatnonzero(asked.vocabularies == vocabulary)
            at = np.searchsorted(known.keys[order], asked.keys[own])
            own, at = own[at < order.size], order[at[at < order.size]]
            same = (known.keys[at] == asked.keys[own]) & (known.checks[at] == asked.checks[own])
            places[own[same]], found[own[same]] = at[same], True
        if not found.all():
            raise NotAnnounced(int(np.flatnonzero(~found)[0]))
        return torch.from_numpy(places)

    def check_leaf(self) -> None:
        """Raises InputError if the leaf has another shape than the rows: kernels look at no bounds."""
        if self.leaf.shape != (len(self._order), self._dimension):
            raise InputError(f"the parameter of table {shown(self.name)} was {[len(self._order), self._dimension]} and "
                             f"has become {list(self.leaf.shape)}", f"batch {self.number}")  # fmt: skip

    def check_gradient(self) -> None:
        """Raises DivergedError if the gradient is not finite."""
        gradients = self._gradient()
        if gradients is not None and not is_sound(gradients, self._dimension, math.inf):
            found = f"the gradient of table {shown(self.name)} is not finite"
            raise DivergedError(self.number, found, outcome="no row was changed")

    def use(self, places: torch.Tensor) -> None:
        """Notes that the model has looked up the rows at these places of `leaf`, int64 of any shape."""
        self._used[places.numpy()] = True

    def _gradient(self) -> np.ndarray | None:
        """The gradient that the leaf has, float32 [m, dimension]; None: it has none.

        Raises InputError if the leaf or its gradient has another shape than the rows: kernels look at no bounds.
        """
        gradient = self.leaf.grad
        if gradient is None:
            return None
        self.check_leaf()
        if gradient.shape != self.leaf.shape:
            raise InputError(f"the gradient of table {shown(self.name)} is {list(gradient.shape)}, and its parameter "
                             f"{list(self.leaf.shape)}", f"batch {self.number}")  # fmt: skip
        return np.ascontiguousarray((gradient.to_dense() if gradient.is_sparse else gradient).numpy())

    def update(self, by: Rule, rate: float, number: int) -> bool:
        """Updates the rows by the gradient that the leaf has. Returns whether it has one.

        Args:
            by: the optimizer's rule.
            rate: the learning rate.
            number: of the table's step, from 1.
        """
        gradients = self._gradient()
        if gradients is None:
            return False
        update, whole = by.updating(rate, number), self._whole
        with torch.no_grad():
            if whole is None:
                whole = self._room.of(len(self._order), self._rows.shape[1])
                kernels.gather_whole(self.leaf.numpy(), self._rows, self._order, whole)
            else:  # it has been updated before in this batch
                whole[:, : self._dimension] = self.leaf.numpy()
            if by.only_used and not self._used.all():
                rows = whole[self._used]
                update(rows, gradients[self._used])
                whole[self._used] = rows
            else:
                update(whole, gradients)
            kernels.copy_values(whole, self.leaf.numpy())
            increment_version(self.leaf)  # which autograd looks at
        self._whole, self.stepped = whole, True
        return True

    def take_back(self, rows: np.ndarray) -> None:
        """Writes the rows, which an optimizer has changed, back to where they came from."""
        kernels.scatter(present(self._whole), self._order, rows)

    def close(self) -> None:
        """Called when the batch is handed back: from now on nothing may be done with the leaf."""
        self._lease.ended = True
