"""Two sets of random number generators in one process: the user's, and those under which the loader runs ahead.

A loader that runs ahead would otherwise draw from the generators between two draws of the model, at a moment that
depends on the number of batches in flight.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

States = tuple[Any, Any, Any]
"""Of Python's, NumPy's and torch's global generators."""


def states() -> States:
    """The states as they are."""
    return random.getstate(), np.random.get_state(), torch.get_rng_state()


def set_states(given: States) -> None:
    """Sets the global generators to states that were."""
    random.setstate(given[0])
    np.random.set_state(given[1])
    torch.set_rng_state(given[2])


def to_save(given: States) -> Any:
    """The states with Python's many numbers in one array."""
    (version, numbers, gauss), numpy, torchs = given
    return [version, np.array(numbers, np.int64), gauss, tuple(numpy), torchs]


def from_saved(saved: Any) -> States:
    """What `to_save` was given."""
    version, numbers, gauss, numpy, torchs = saved
    return (version, tuple(numbers.tolist()), gauss), numpy, torchs


@contextmanager
def unchanged() -> Iterator[None]:
    """Within it the generators draw as they like; afterwards they go on as if they had not."""
    users = states()
    try:
        yield
    finally:
        set_states(users)


class LoaderGenerators:
    """The states of Python's, NumPy's and torch's global generators under which a loader draws its batches.

    The first batch is drawn under the user's states, as in a loop without an engine. Those of the second one follow
    from them; the user's own go on as if the loader drew nothing more.

    Args:
        resumed: states under which the next batch is drawn, of a loader that begins amid a pass.
        first: whether that is the first one.

    Attributes:
        next: states under which the next batch is drawn; None: the user's.
    """

    def __init__(self, resumed: States | None = None, first: bool = True) -> None:
        self.next, self._first = resumed, first

    @contextmanager
    def active(self) -> Iterator[None]:
        """Within it the loader draws a batch."""
        users = None if self.next is None else states()
        try:
            if self.next is not None:
                set_states(self.next)
            yield
        finally:
            after = states()
            if self._first:
                self._first = False
                _seed(after)
                self.next = states()
            else:
                self.next = after
            set_states(users or after)


def _seed(given: States) -> None:
    """Seeds the generators by a number that follows from torch's state."""
    seed = int.from_bytes(hashlib.sha256(given[2].numpy().tobytes()).digest()[:4], "little")
    random.seed(seed)
    np.random.seed(seed)
    torch.default_generator.manual_seed(seed)
