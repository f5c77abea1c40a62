"""Where calls of kernels rely on integers that overflow, such as hashes."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import numpy as np
from numba import config

overflowing: Callable[[], AbstractContextManager[Any]] = (
    partial(np.errstate, over="ignore") if config.DISABLE_JIT else nullcontext
)
"""A context for such calls. Machine code says nothing about it, and the context of NumPy's takes a microsecond."""
