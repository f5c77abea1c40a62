"""Gives the rows of batches to modules and optimizers, and takes them back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from marius_oac.torch.announced import Announced
from marius_oac.torch.dense import Dense
from marius_oac.torch.feeding import Feeding
from marius_oac.torch.key_forms import joined
from marius_oac.torch.left import Left
from marius_oac.torch.optimizers import RowsOptimizer
from marius_oac.torch.pipeline import OpenBatch
from marius_oac.torch.planner import Fed
from marius_oac.torch.served import Peeked

_OVER_SEVERAL = (
    "rows have gradients of a batch that no step has used: over several processes engine.batches(loader, accumulate=N) "
    "adds up those of N batches, and the row optimizer's zero_grad drops them"
)
_CHANGED = "values of rows were changed beside a step: over several processes only a step changes them"


class Placing:
    """The modules and optimizers of an engine.

    Args:
        feedings: of its tables.
        optimizers: all of the loop.
        dense: told when backward reaches rows.

    Attributes:
        served: of each table.
    """

    def __init__(self, feedings: Sequence[Feeding], optimizers: Sequence[torch.optim.Optimizer], dense: Dense):
        self._feedings, self._dense, self.served = feedings, dense, [each.served for each in feedings]
        self._optimizers = [each for each in optimizers if isinstance(each, RowsOptimizer)]

    @property
    def stepped(self) -> bool:
        """Whether an optimizer has changed rows of the batch at hand."""
        return any(served.rows is not None and served.rows.stepped for served in self.served)

    def place(self, opened: OpenBatch) -> None:
        """Makes modules and optimizers have the batch's rows."""
        self._dense.begin()
        for served, rows in zip(self.served, opened.rows, strict=True):
            if served.left is not None:
                rows.take_over(served.left)
            served.announced.at_hand, served.rows, served.left = opened.fed.batch_index, rows, None
            if not (dist.is_available() and dist.is_initialized()):  # which changes gradients after backward itself
                rows.leaf.register_hook(self._dense.reached)
        for optimizer in self._optimizers:
            optimizer.place()

    def displace(self) -> None:
        """Takes the batch's rows back, if they have any; keeps the gradients that they leave."""
        for served in self.served:
            rows = served.rows
            if rows is not None:
                served.left = rows.left()
                if rows.settle() and rows.shared:
                    served.left = Left.refused(_CHANGED)
                elif rows.shared and served.left is not None and served.left.reason is None:
                    served.left = Left.refused(_OVER_SEVERAL)
                rows.close()
                served.rows = None
        for optimizer in self._optimizers:
            optimizer.place()

    def fed(self, number: int, until: int, batches: Sequence[Any]) -> Fed:
        """Some batches of the loader with their keys, which are known again; see `supply.Keys`."""
        given, arrays = [], []
        for each in self._feedings:
            where = f"batch {number}, table {each.table.name!r}"
            given.append(each.keys(batches, where))
            arrays.append(joined([keys.array(where) for keys in given[-1]]))
        for served, keys in zip(self.served, given, strict=True):
            served.announced.add(keys, number)
        return Fed(number, until, batches, arrays)

    @contextmanager
    def peeked(self, batch: Any) -> Iterator[None]:
        """Within it modules give a batch's rows without gradients. Raises InputError if it has no such keys."""
        peeked = []
        for each in self._feedings:
            where = f"the batch to peek at, table {each.table.name!r}"
            keys, announced = each.keys([batch], where, train=False), Announced()
            announced.add(keys, 0)
            values, local = each.served.read(joined([part.array(where) for part in keys]))
            peeked.append(Peeked(torch.from_numpy(values), torch.from_numpy(local), announced))
        before = [served.peeked for served in self.served]
        try:
            for served, rows in zip(self.served, peeked, strict=True):
                served.peeked = rows
            yield
        finally:
            for served, rows_before in zip(self.served, before, strict=True):
                served.peeked = rows_before
