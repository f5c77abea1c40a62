"""Gradients of rows that batches have left behind when they were handed back, as a parameter of torch's keeps its own.

Those that no step has used are added up: the next batch has their rows, too, with these gradients in its leaf. So
`step`, clipping and scalers treat them as torch does those of a parameter, and `zero_grad` drops them. Until then one
batch at a time is planned, since a batch that is planned ahead would not have these rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from marius_oac.errors import InputError
from marius_oac.torch.key_forms import joined
from marius_oac.torch.left import Left
from marius_oac.torch.planner import Fed
from marius_oac.torch.served import Served

MOST = 256
"""Batches whose gradients may wait for a step: each batch has the rows of all that wait."""


class Unstepped:
    """What is left of the tables of an engine."""

    def __init__(self, served: Sequence[Served]):
        self._served = served

    def _waiting(self) -> Iterable[tuple[int, Left]]:
        for table, each in enumerate(self._served):
            if each.left is not None and each.left.reason is None:
                yield table, each.left

    @property
    def waits(self) -> bool:
        """Whether the next batch must have rows of others."""
        return any(True for _ in self._waiting())

    @property
    def oldest(self) -> int | None:
        """Number of the first batch with gradients that wait for a step, those of the batch at hand left out."""
        lefts = [left for _, left in self._waiting()]
        taken = [each.rows.taken for each in self._served if each.rows is not None]
        lefts += [left for left in taken if left is not None and left.reason is None]
        return min((left.first for left in lefts), default=None)

    def with_rows(self, fed: Fed) -> Fed:
        """A batch that has the rows, too; their keys follow its own.

        Raises:
            InputError: too many batches wait for a step.
        """
        keys = list(fed.keys)
        for table, left in self._waiting():
            if left.batches >= MOST:
                raise InputError(
                    f"rows have the gradients of {left.batches} batches, and no step has used them: call the row "
                    "optimizer's step, or zero_grad; engine.batches(loader, accumulate=N) adds up more",
                    f"table {self._name(table)!r}"
                )  # fmt: skip
            keys[table] = joined([keys[table], left.keys])
        return replace(fed, keys=keys)

    def _name(self, table: int) -> str:
        known = self._served[table].table
        return "" if known is None else known.name

    def forget(self) -> None:
        """Drops them."""
        for each in self._served:
            each.left = None
