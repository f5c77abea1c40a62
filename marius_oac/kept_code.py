"""Numba's compiler, whose machine code is kept beside the package or in the user's cache; where neither can be written,
it is compiled anew in every process, which is said once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import njit

from marius_oac.console import say

_NO_PLACE = "no locator available"  # of Numba's RuntimeError
_told: list[str] = []


def kept(**options: Any) -> Callable[[Callable], Any]:
    """`njit` with these options, and with the cache where there is a place for it."""

    def compiler(function: Callable) -> Any:
        try:
            return njit(cache=True, **options)(function)
        except RuntimeError as error:
            if _NO_PLACE not in str(error):
                raise
        if not _told:
            _told.append(function.__module__)
            say(
                "note: compiled code can be kept neither beside the package nor in the user's cache: it is compiled "
                "anew each time; NUMBA_CACHE_DIR may name a folder"
            )
        return njit(**options)(function)

    return compiler
