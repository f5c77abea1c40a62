"""Whether a device's work is done by the kernels of this folder: the one place that decides.

They need CUDA and Triton. Where Triton is missing, or a model is none that they know, torch's operations do the same,
to rounding; the first is said once, in a note.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from marius_oac.errors import how_to_install
from marius_oac.runtime.console import logger
from marius_oac.runtime.files.owned import exchangeable

_forced: list[bool] = []


class Device(Protocol):
    """A device of torch's."""

    @property
    def type(self) -> str:
        """Its kind, such as `cuda`."""


def chosen(device: Device) -> bool:
    """Whether tensors of this device are computed by these kernels."""
    if _forced:
        return _forced[-1]
    return device.type == "cuda" and _is_there()


@contextmanager
def forced(use: bool) -> Iterator[None]:
    """Within it the answer is `use` for every device: for tests, which run the kernels by Triton's interpreter on CPU
    tensors, and for measurements, which compare both ways."""
    _forced.append(use)
    try:
        yield
    finally:
        _forced.pop()


@functools.cache
def _is_there() -> bool:
    try:
        importlib.import_module("triton")
    except ImportError:
        logger.warning(
            "Triton is missing: the GPU computes by torch's operations alone, with more memory and more launches; "
            f"{how_to_install('gpu')}"
        )
        return False
    cache = Path(importlib.import_module("triton.knobs").cache.dir)
    if place := exchangeable(cache):  # libraries are loaded from there
        logger.warning(f"Triton's cache {cache} is not used: {place}; the GPU computes by torch's operations alone")
        return False
    return True
