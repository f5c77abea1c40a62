"""What a function of initial values must do.

from marius_oac.testing.initial import check_initial

def test_my_values():
    check_initial(my_values)
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from marius_oac.errors import ConfigError
from marius_oac.models.compute.own_initial import Give, check
from marius_oac.storage.initial import RowInitial


def check_initial(give: Give, dimension: int = 8, ids: Sequence[int] = range(100)) -> None:
    """Checks shape and type, that values are finite, that ids stay as they are, and that a row has the same values
    whichever rows stand beside it.

    Args:
        give: called with ids, int64 [n], and random numbers, float32 [n, dimension].
        dimension: floats of a row.
        ids: some of the rows that there are, if the function looks them up.

    Raises:
        AssertionError: something is wrong.
    """
    rows = np.array(ids, np.int64)
    numbers = np.empty((rows.size, dimension), np.float32)
    RowInitial("uniform", 1.0, 0, "entities").fill(rows, numbers, dimension)

    def watched(some: np.ndarray, random: np.ndarray) -> np.ndarray:
        before = some.copy()
        values = give(some, random)
        assert np.array_equal(some, before), "the function changes the ids"
        return values

    try:
        check(getattr(give, "__name__", "the function"), watched, rows, numbers)
    except ConfigError as error:
        raise AssertionError(error.message) from None
