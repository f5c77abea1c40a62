"""Initial values by a function of the user's, `model.init: FILE.py:NAME`.

It is called with ids of rows and a row of random numbers for each, so that a row's values are the same whichever rows
stand beside it: in memory, on disk, and on any node.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from marius_oac.config.parts import own_file
from marius_oac.errors import ConfigError
from marius_oac.models.compute.user_code import blaming, load_own
from marius_oac.types import present

KEY = "model.init"

Give = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""Takes ids, int64 [n], and random numbers, float32 [n, dimension], evenly in (-1, 1) and of each row's own, which it
may overwrite; returns values, float32 [n, dimension]."""


def load(name: str) -> Give:
    """The function of a FILE.py:NAME.

    Raises:
        ConfigError: it can't be loaded; also when it is called, if it fails or returns no finite float32 [n,
            dimension].
    """
    path, attribute = present(own_file(name))
    found = load_own(path, attribute, KEY)
    if not callable(found):
        raise ConfigError(f"{path} has no function {attribute!r}", KEY)

    def give(ids: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        fixed = ids.view()
        fixed.flags.writeable = False
        with blaming(path, KEY):
            values = found(fixed, numbers)
        return _checked(name, values, numbers.shape)

    return give


def check(name: str, give: Give, ids: np.ndarray, numbers: np.ndarray) -> None:
    """Checks that rows have the same values in every call that asks for them.

    Args:
        name: of the function, for messages.
        give: called with parts of ids, int64 [n], and of their random numbers, float32 [n, dimension].

    Raises:
        ConfigError: they have not, or `give` raises it.
    """
    count = ids.size
    whole = _checked(name, give(ids.copy(), numbers.copy()), numbers.shape).copy()
    again = np.arange(count)
    for which in (again, again[::-1], again[: count // 2], again[count // 2 :], again[-1:]):
        part = numbers[which].copy()
        if not np.array_equal(_checked(name, give(ids[which].copy(), part), numbers[which].shape), whole[which]):
            what = "in the same call, made again" if which is again else "where other rows stand beside it"
            raise ConfigError(f"{name}: a row has other values {what}", KEY)


def _checked(name: str, values: Any, shape: tuple[int, ...]) -> np.ndarray:
    found = type(values).__name__
    if isinstance(values, np.ndarray):
        found = f"{values.dtype} {list(values.shape)}"
        if values.dtype == np.float32 and values.shape == shape:
            if np.isfinite(values).all():
                return values
            found = "values that are not finite"
    raise ConfigError(f"{name} returns {found}, not float32 {list(shape)}", KEY)
