"""One pass over a user's loader: its batches, and where it is, so that it can be gone on with from a checkpoint."""

from __future__ import annotations

import copy
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from marius_oac.errors import InputError
from marius_oac.torch.generators import (
    LoaderGenerators,
    States,
    from_saved,
    set_states,
    states,
    to_save,
    unchanged,
)


@dataclass(frozen=True)
class Position:
    """Where a pass over a loader is.

    Attributes:
        drawn: batches of the pass that came before `drawing` and `loader`; all were trained.
        trained: batches after these that were trained.
        finished: whether there are no others.
        begin: states of the generators when the pass began.
        drawing: those under which the loader draws the batch number `drawn`.
        loader: the loader's own state before that batch; None: it has none.
        over: the pass has been left at its end: the next one begins.
    """

    drawn: int
    trained: int
    finished: bool
    begin: States
    drawing: States
    loader: Any
    over: bool = False

    def ended(self) -> Position | None:
        """The position after the loop was left; None: what the next pass draws does not depend on it."""
        if not self.finished:
            return self
        return None if self.loader is None else replace(self, over=True)

    def to_save(self) -> dict[str, Any]:
        """As plain data and arrays."""
        generators = {"begin": to_save(self.begin), "drawing": to_save(self.drawing)}
        counts = {"drawn": self.drawn, "trained": self.trained, "finished": self.finished, "over": self.over}
        return {**counts, "loader": self.loader, **generators}

    @classmethod
    def from_saved(cls, saved: dict[str, Any]) -> Position:
        """What `to_save` returned."""
        return cls(**{**saved, "begin": from_saved(saved["begin"]), "drawing": from_saved(saved["drawing"])})


class Pass:
    """A pass over a loader. Its iterator is made at once, since that may fork processes.

    A loader with `state_dict` and `load_state_dict` goes on from its own state. Any other is drawn from anew, from the
    pass's begin, and what was trained is left out. One whose pass has ended is drawn from to its end, too, so that its
    next pass is the one after that.

    Args:
        resumed: begins there; None: a new pass.
        repeats: the last batch may be wanted again, also where the pass is gone on with.

    Attributes:
        last: the last batch that was drawn, in a list; empty: there was none.
    """

    def __init__(self, loader: Iterable[Any], resumed: Position | None = None, repeats: bool = False):
        self._loader, self._again = loader, int(repeats)
        self.last: list[Any] = []
        self._stateful = hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")
        self._starts: dict[int, tuple[Any, States]] = {}  # the loader's state and generators before some batches
        self.error: Exception | None = None
        self.finished = False
        self.drawn, self._generators = 0, LoaderGenerators()
        if resumed is not None:
            self._begin = resumed.begin
            with unchanged():
                if self._stateful or not resumed.finished:
                    self._go_on(loader, resumed)
                while self._stateful and resumed.finished and not self.finished:
                    self.draw(1)
            self.finished, self.drawn = resumed.finished, resumed.drawn + resumed.trained
        if resumed is None or resumed.over:
            self._starts, self._generators, self.last = {}, LoaderGenerators(), []
            self.finished, self.drawn, self._begin = False, 0, states()
            self._iterator = iter(loader)

    def _go_on(self, loader: Any, resumed: Position) -> None:
        trained = resumed.drawn + resumed.trained
        if self._stateful and resumed.loader is not None:
            loader.load_state_dict(copy.deepcopy(resumed.loader))
            self._iterator = iter(loader)
            self._generators = LoaderGenerators(resumed.drawing, first=not resumed.drawn)
            self.drawn = resumed.drawn
        else:
            set_states(self._begin)
            self._iterator = iter(loader)
            self._generators = LoaderGenerators(states())
        while self.drawn < trained:
            if not self.draw(trained - self.drawn):
                raise InputError(f"the loader has {self.drawn} batches, but {trained} of the pass were trained before "
                                 "the checkpoint", "Engine.batches")  # fmt: skip

    def draw(self, count: int) -> list[Any]:
        """The next batches, `count` or fewer; the first one of a pass alone. None are left: the pass is `finished`.

        Raises:
            Exception: what the loader raised; batches before that are given before.
        """
        if self.error is not None:
            raise self.error
        batches: list[Any] = []
        if not self.finished:
            self._starts[self.drawn] = self._now()
            try:
                with self._generators.active():
                    while len(batches) < (count if self.drawn else 1):
                        batches.append(next(self._iterator))
            except StopIteration:
                self.finished = True
            except Exception as error:
                if not batches:
                    raise
                self.error = error
        self.drawn += len(batches)
        self.last = batches[-1:] or self.last
        return batches

    def _now(self) -> tuple[Any, States]:
        loader = copy.deepcopy(self._loader.state_dict()) if self._stateful else None  # type: ignore[attr-defined]
        return loader, self._generators.next or states()

    def done(self, count: int) -> None:
        """Says that the first `count` batches are trained."""
        if len(self._starts) > 1:
            last = self._start_before(count)
            for start in [start for start in self._starts if start < last]:
                del self._starts[start]

    def _start_before(self, count: int) -> int:
        before = [start for start in self._starts if start <= max(0, count - self._again)]
        return max(before) if before else min(self._starts)

    def position(self, count: int) -> Position:
        """Where the pass is when its first `count` batches are trained, and no others."""
        start = self._start_before(count) if self._starts else count
        loader, drawing = self._starts.get(start) or self._now()
        return Position(start, count - start, self.finished and count == self.drawn, self._begin, drawing, loader)


class Batches(Iterator[Any]):
    """Iterates over a pass, and is as long as its loader.

    What shows a loop's progress needs the length. A framework such as Lightning asks for a batch ahead where there is
    none, to see which one is the last, and would so hand back each batch before it is trained.
    """

    def __init__(self, batches: Generator[Any, None, None], loader: Iterable[Any] | None):
        self._batches, self._loader = batches, loader

    def __next__(self) -> Any:
        return next(self._batches)

    def __len__(self) -> int:
        """That of the loader. Raises TypeError if it, or the pass, has none."""
        return len(self._loader)  # type: ignore[arg-type]

    def close(self) -> None:
        """Ends the loop like `break`."""
        self._batches.close()
