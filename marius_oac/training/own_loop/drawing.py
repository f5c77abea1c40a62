"""One pass over a user's loader: its batches, and where it is, so that it can be gone on with from a checkpoint."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from marius_oac.errors import InputError
from marius_oac.training.own_loop.generators import (
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
        done: batches of the pass that were trained.
        finished: whether there are no others.
        begin: states of the generators when the pass began.
        drawing: those under which the loader draws the next batch.
        loader: the loader's own state before the next batch; None: it says of none.
    """

    done: int
    finished: bool
    begin: States
    drawing: States
    loader: Any

    def to_save(self) -> dict[str, Any]:
        """As plain data and arrays."""
        generators = {"begin": to_save(self.begin), "drawing": to_save(self.drawing)}
        return {"done": self.done, "finished": self.finished, "loader": self.loader, **generators}

    @classmethod
    def from_saved(cls, saved: dict[str, Any]) -> Position:
        """What `to_save` returned."""
        return cls(**{**saved, "begin": from_saved(saved["begin"]), "drawing": from_saved(saved["drawing"])})


class Pass:
    """A pass over a loader. Its iterator is made at once, since that may fork processes.

    A loader with `state_dict` and `load_state_dict` goes on from its own state. Any other is drawn from anew, from the
    pass's begin, and what was trained is left out.

    Args:
        resumed: begins there; None: a new pass.
    """

    def __init__(self, loader: Iterable[Any], resumed: Position | None = None):
        self._loader = loader
        self._stateful = hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")
        self._finished = resumed is not None and resumed.finished
        self._before: dict[int, tuple[Any, States]] = {}
        if resumed is None:
            self._begin, self.drawn, self._generators = states(), 0, LoaderGenerators()
            self._iterator = iter(loader)
        elif resumed.finished:
            self._begin, self.drawn, self._generators = resumed.begin, resumed.done, LoaderGenerators()
        else:
            self._begin, self.drawn = resumed.begin, resumed.done
            with unchanged():
                self._go_on(loader, resumed)

    def _go_on(self, loader: Any, resumed: Position) -> None:
        if self._stateful and resumed.loader is not None:
            loader.load_state_dict(copy.deepcopy(resumed.loader))
            self._iterator = iter(loader)
            self._generators = LoaderGenerators(resumed.drawing, first=not resumed.done)
            return
        set_states(self._begin)
        self._iterator, self._generators = iter(loader), LoaderGenerators()
        for number in range(resumed.done):
            with self._generators.active():
                if next(self._iterator, self) is self:
                    raise InputError(f"the loader has {number} batches, but {resumed.done} of the pass were trained "
                                     "before the checkpoint", "Engine.batches")  # fmt: skip
        if not resumed.done:
            self._generators = LoaderGenerators(states())

    def draw(self) -> Any:
        """The next batch. Raises what the loader raises: StopIteration at its end."""
        if self._finished:
            raise StopIteration
        before = self._now()
        try:
            with self._generators.active():
                batch = next(self._iterator)
        except StopIteration:
            self._finished = True
            raise
        except Exception:
            self._stateful = False  # what it would say of itself now is worth nothing
            raise
        self._before[self.drawn] = before
        self.drawn += 1
        return batch

    def _now(self) -> tuple[Any, States]:
        loader = copy.deepcopy(self._loader.state_dict()) if self._stateful else None  # type: ignore[attr-defined]
        return loader, self._generators.next or states()

    def done(self, count: int) -> None:
        """Says that the first `count` batches are trained."""
        self._before.pop(count - 1, None)

    def position(self, count: int) -> Position:
        """Where the pass is when its first `count` batches are trained, and no others."""
        loader, drawing = self._before[count] if count < self.drawn else self._now()
        return Position(count, self._finished and count == self.drawn, self._begin, drawing, loader)
