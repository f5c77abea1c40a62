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
from marius_oac.torch.key_forms import TEXTS, KeyArray
from marius_oac.torch.left import Left
from marius_oac.types import present

Update = Callable[[np.ndarray, np.ndarray], None]
"""Changes rows, float32 [n, width], by gradients, float32 [n, dimension]."""

_GROWTH = 1.25


class Rule(Protocol):
    """How an optimizer updates rows.

    Attributes:
        only_used: rows that the model has not looked up stay as they are. So they do with a weight decay.
    """

    only_used: bool

    def updating(self, rate: float, number: int, decay: float) -> Update:
        """The update of step `number` of a table, from 1, with a learning rate and a weight decay."""


class NotAnnounced(LookupError):
    """The batch at hand does not have the key at this place of those that were asked for."""

    def __init__(self, place: int):
        super().__init__(place)
        self.place = place


class _Lease:
    """Whether the user has a batch, and may compute gradients of it. Apart from its rows, whose leaf has a hook:
    tensors in circles stay until Python looks for circles.

    Attributes:
        reason: why there may be no gradients; None: there may.
    """

    def __init__(self, number: int, name: str):
        self.number, self.name, self.ended, self.reason = number, name, False, None  # type: int, str, bool, str | None

    def check_reason(self) -> None:
        """Raises InputError if there may be no gradients."""
        if self.reason is not None:
            raise InputError(self.reason, f"table {self.name!r}")

    def check(self, gradient: torch.Tensor) -> None:
        """A hook of the leaf."""
        self.check_reason()
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
        taken: gradients of batches before, which the leaf began with; None: it did not, or they were dropped.
        added_up: whether a step has used such gradients.
        shared: several processes update them together.

    Args:
        number: of the batch.
        name: of the table.
        rows: float32 [m, width], in the order of the store.
        order: the place of each key's row in `rows`, int64 [m].
        distinct: the m different keys, in the order of their first occurrence.
        room: for rows that are updated; no other batch may use it before this one is handed back.
    """

    shared = False

    def __init__(
        self, number: int, name: str, dimension: int, rows: np.ndarray, order: np.ndarray, distinct: DistinctKeys,
        local: np.ndarray, room: Room,
    ):  # fmt: skip
        self.number, self.name, self.local, self.stepped = number, name, torch.from_numpy(local), False
        self._rows, self._order, self._distinct, self._room = rows, order, distinct, room
        self._whole: np.ndarray | None = None  # rows with what the optimizer keeps of them, where it has updated them
        self._sorted: tuple[np.ndarray, np.ndarray] | None = None
        self._dimension, self._lease, self._used = dimension, _Lease(number, name), np.zeros(len(order), np.bool_)
        self.taken, self.added_up, self._spent = None, False, (None, 0)  # type: Left | None, bool, tuple[object, int]
        self._zeroed: torch.Tensor | None = None  # gradients that were set to 0
        value = np.empty((len(order), dimension), np.float32)
        kernels.gather(rows, order, value)
        self.leaf = torch.from_numpy(value).requires_grad_()
        self.leaf.register_hook(self._lease.check)

    def places(self, asked: KeyArray) -> torch.Tensor:
        """The place of each key in `leaf`, int64 [k]. Raises NotAnnounced if the batch does not have a key."""
        places, found = self._find(asked)
        if not found.all():
            raise NotAnnounced(int(np.flatnonzero(~found)[0]))
        return torch.from_numpy(places)

    def put_newest(self, keys: KeyArray, values: np.ndarray, local: np.ndarray) -> None:
        """Puts the rows that the batch has of k keys into values, float32 [m, dimension], at `local`, int64 [k]."""
        places, found = self._find(keys)
        values[local[found]] = self.leaf.detach().numpy()[places[found]]

    def _find(self, asked: KeyArray) -> tuple[np.ndarray, np.ndarray]:
        """The place of each key in `leaf`, int64 [k], and whether it is there, bool [k]."""
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
        return places, found

    def check_leaf(self) -> None:
        """Raises InputError if the leaf has another shape than the rows: kernels look at no bounds."""
        if self.leaf.shape != (len(self._order), self._dimension):
            raise InputError(f"the parameter of table {shown(self.name)} was {[len(self._order), self._dimension]} and "
                             f"has become {list(self.leaf.shape)}", f"batch {self.number}")  # fmt: skip

    def check_gradient(self) -> None:
        """Raises DivergedError if the gradient is not finite, and InputError if there may be none."""
        self._lease.check_reason()
        gradients = self._gradient()
        if gradients is not None and not is_sound(gradients, self._dimension, math.inf):
            found = f"the gradient of table {shown(self.name)} is not finite"
            raise DivergedError(self.number, found, outcome="no row was changed")

    def use(self, places: torch.Tensor) -> None:
        """Notes that the model has looked up the rows at these places of `leaf`, int64 of any shape."""
        self._used[places.numpy()] = True

    def take_over(self, left: Left) -> None:
        """Begins with the gradients of batches before, whose keys are the last ones of the batch's."""
        self._lease.reason = left.reason
        if left.reason is None:
            gradients = torch.zeros_like(self.leaf)
            gradients[self._places_of(left)] = torch.from_numpy(left.gradients)
            self.leaf.grad = gradients
        self.taken = left

    def _places_of(self, left: Left) -> torch.Tensor:
        return self.local[len(self.local) - left.used.size :]

    def spend(self) -> None:
        """Says that a step has used the gradients that the leaf has."""
        self._spent = self.leaf.grad, 0 if self.leaf.grad is None else self.leaf.grad._version
        self.added_up = self.added_up or self.taken is not None

    def clear(self, set_to_none: bool) -> None:
        """Drops the gradients, also those of batches before, as `zero_grad` does."""
        self._lease.reason = self.taken = None
        if set_to_none or self.leaf.grad is None:
            self.leaf.grad = None
        else:
            self.leaf.grad = self._zeroed = torch.zeros_like(self.leaf)

    def left(self) -> Left | None:
        """The gradients that the batch leaves when it is handed back; None: it has none."""
        gradient, taken, known, number = self.leaf.grad, self.taken, self._distinct, self.number
        if taken is not None and taken.reason is not None:
            return taken
        shape = len(self._order), self._dimension
        if gradient is None or not shape == self.leaf.shape == gradient.shape:
            return None
        if gradient is self._zeroed and not gradient._version:
            return None
        if gradient is self._spent[0] and gradient._version == self._spent[1]:
            return Left.refused(f"rows still have the gradients of batch {number}, which a step has used: call the row "
                                "optimizer's zero_grad after it (model.zero_grad() does not reach rows)")  # fmt: skip
        values, used = present(self._gradient()), self._used_rows()
        if not is_sound(values, self._dimension, math.inf):
            return Left.refused(f"rows have gradients of batch {number} that are not finite, and no step has used "
                                "them: call the row optimizer's zero_grad")  # fmt: skip
        rows = used | values.any(1)
        keys = KeyArray(known.vocabularies[rows], known.keys[rows], known.checks[rows])
        first, batches = (number, 0) if taken is None else (taken.first, taken.batches)
        return Left(first, batches + 1, keys, values[rows], used[rows])

    def _used_rows(self) -> np.ndarray:
        """Whether the model has looked up each row, in this batch or in one whose gradients the leaf has, bool [m]."""
        if self.taken is None:
            return self._used
        used = self._used.copy()
        used[self._places_of(self.taken).numpy()[self.taken.used]] = True
        return used

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
        return np.ascontiguousarray((gradient.to_dense() if gradient.is_sparse else gradient).detach().numpy())

    def update(self, by: Rule, rate: float, number: int, decay: float) -> bool:
        """Updates the rows by the gradient that the leaf has. Returns whether it has one.

        Args:
            by: the optimizer's rule.
            rate: the learning rate.
            number: of the table's step, from 1.
            decay: times a row, added to its gradient.
        """
        gradients = self._gradient()
        if gradients is None:
            return False
        update, whole = by.updating(rate, number, decay), self._whole
        with torch.no_grad():
            if whole is None:
                whole = self._room.of(len(self._order), self._rows.shape[1])
                kernels.gather_whole(self.leaf.numpy(), self._rows, self._order, whole)
            else:  # it has been updated before in this batch
                whole[:, : self._dimension] = self.leaf.numpy()
            used = self._used_rows()
            if (by.only_used or decay) and not used.all():
                rows = whole[used]
                update(rows, gradients[used])
                whole[used] = rows
            else:
                update(whole, gradients)
            kernels.copy_values(whole, self.leaf.numpy())
            increment_version(self.leaf)  # which autograd looks at
        self._whole, self.stepped = whole, True
        return True

    def settle(self) -> bool:
        """Takes the values that the leaf has now: a user may have changed them beside a step. Returns whether they were
        changed without one."""
        if self.leaf.shape != (len(self._order), self._dimension):
            return False
        leaf = np.ascontiguousarray(self.leaf.detach().numpy())
        if self._whole is not None:
            self._whole[:, : self._dimension] = leaf
            return False
        before = self._room.of(len(self._order), self._dimension)
        kernels.gather(self._rows, self._order, before)
        if np.array_equal(leaf.view(np.int32), before.view(np.int32)):  # not all numbers equal themselves
            return False
        self._whole = self._room.of(len(self._order), self._rows.shape[1])
        kernels.gather_whole(leaf, self._rows, self._order, self._whole)
        self.stepped = True
        return True

    def take_back(self, rows: np.ndarray) -> None:
        """Writes the rows, which an optimizer or the user has changed, back to where they came from."""
        kernels.scatter(present(self._whole), self._order, rows)

    def close(self) -> None:
        """Called when the batch is handed back: from now on nothing may be done with the leaf."""
        self._lease.ended = True
