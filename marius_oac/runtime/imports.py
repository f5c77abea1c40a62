"""Imports of large libraries, without Python's garbage collector meanwhile.

Libraries such as torch make hundreds of thousands of objects and hardly any garbage. The collector looks through all of
them again and again, which is a fifth of the time that their import takes.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def imports() -> Iterator[None]:
    """For a block of import statements in a command's process: nothing is collected meanwhile, and what there is at its
    end is left out of later collections."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if collects:
            gc.enable()
