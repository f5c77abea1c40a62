"""What a loop trains: batches of the user's loader, drawn ahead, as batches of the pipeline."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from marius_oac.errors import InputError
from marius_oac.torch.drawing import Pass, Position
from marius_oac.torch.home import Home
from marius_oac.torch.planner import Fed

Keys = Callable[[int, int, Sequence[Any]], Fed]
"""Batches of the loader with their keys; by number, and by how many of the pass there are up to the last of them."""


class Supply:
    """The batches of one pass, by number.

    Args:
        home: where the rows are.
        first: number of the first batch.
        fed: finds the keys of some batches; its errors are raised when the first one's turn comes.
        accumulate: batches of the loader that are one of the pipeline, whose rows are handed back together.
        resumed: where the pass over the loader begins, if not at its first batch.
        pad: where other processes have more batches, this one's last one is there again as often.

    Attributes:
        next: the number after that of the last batch that was drawn.
        drawn: batches of the pass before the first one.
        error: raised after the last batch; None: none yet.
        over: no more batches come.
    """

    def __init__(
        self, home: Home, first: int, fed: Keys, loader: Iterable[Any], accumulate: int, resumed: Position | None,
        pad: bool,
    ):  # fmt: skip
        self._home, self._fed, self._accumulate, self._pad = home, fed, accumulate, pad
        self._pass = Pass(loader, resumed, pad)
        self._padding = home.most(self._pass.drawn) - self._pass.drawn if pad else 0  # batches of the pass
        self._padded = 0  # of those in `_waiting`, the last ones
        self._waiting: list[Any] = []  # too few for a batch of the pipeline
        self.next, self.drawn, self._until = first, self._pass.drawn, self._pass.drawn
        self.error: Exception | None = None
        self.over = self._ended = False

    def position(self, trained: int, untrained: int) -> Position:
        """Where the pass is after its first `trained` batches, where `untrained` is the number of the next one."""
        position = self._pass.position(trained)
        if self._pad:  # all processes' passes end together
            return replace(position, finished=self._ended and untrained == self.next)
        return position

    def done(self, trained: int) -> None:
        """See `Pass.done`."""
        self._pass.done(trained)

    def given(self, batch: Any) -> Fed:
        """A batch that no loader gave."""
        return self._numbered([self._fed(self.next, self._until + 1, [batch])])[0]

    def draw(self, count: int) -> list[Fed]:
        """The next batches, about `count`, or none."""
        try:
            batches = self._pass.draw(self._accumulate * count)
        except Exception as error:  # its turn comes after the batches before it
            batches, self.error = [], error
        self.error = self.error or self._pass.error
        self._waiting += batches
        padding = self._pad_waiting()
        units, ended = self._units(not (batches or padding) or self.error is not None)
        units, self.error = self._home.drawn(units, self._pass.drawn + self._padding, self.error)
        self._ended = ended and self.error is None
        self.over = ended or self.error is not None
        return self._numbered(units)

    def _numbered(self, units: list[Fed]) -> list[Fed]:
        for unit in units:
            self.next, self._until = unit.batch_index + 1, unit.until
        return units

    def _pad_waiting(self) -> int:
        """Repeats the last batch as often as other processes have drawn more. Returns how often."""
        if not self._pad:
            return 0
        drawn = self._pass.drawn + self._padding
        padding = self._home.most(drawn) - drawn
        if not padding or self.error is not None:
            return 0
        if not self._pass.last:
            self.error = InputError("there is no batch that could be there again as padding: the loader gave none",
                                    "Engine.batches")  # fmt: skip
            return 0
        self._waiting += self._pass.last * padding
        self._padding, self._padded = self._padding + padding, self._padded + padding
        return padding

    def _units(self, ended: bool) -> tuple[list[Fed], bool]:
        """What was drawn, as batches of the pipeline, without what is too little for one unless the loader is at its
        end; and whether that, or an error, is the end."""
        units: list[Fed] = []
        number, until = self.next, self._until
        while len(self._waiting) >= self._accumulate or (self._waiting and ended):
            unit, self._waiting = self._waiting[: self._accumulate], self._waiting[self._accumulate :]
            padding = max(0, self._padded - len(self._waiting))
            self._padded -= padding
            number, until = number + 1, until + len(unit) - padding
            try:
                fed = self._fed(number - 1, until, unit)
                units.append(replace(fed, padding=padding) if padding else fed)
            except Exception as error:
                self.error = error
                return units, True
        return units, ended
