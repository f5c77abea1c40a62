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


def _states() -> States:
    return random.getstate(), np.random.get_state(), torch.get_rng_state()


def _set(states: States) -> None:
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])


class LoaderGenerators:
    """The states of Python's, NumPy's and torch's global generators under which a loader draws its batches.

    The first batch is drawn under the user's states, as in a loop without an engine. Those of the second one follow
    from them; the user's own go on as if the loader drew nothing more.
    """

    def __init__(self) -> None:
        self._states: States | None = None
        self._first = True

    @contextmanager
    def active(self) -> Iterator[None]:
        """Within it the loader draws a batch."""
        if self._first:
            self._first = False
            yield
            return
        users = _states()
        try:
            if self._states is None:
                seed = int.from_bytes(hashlib.sha256(users[2].numpy().tobytes()).digest()[:4], "little")
                random.seed(seed)
                np.random.seed(seed)
                torch.default_generator.manual_seed(seed)
            else:
                _set(self._states)
            yield
        finally:
            self._states = _states()
            _set(users)
