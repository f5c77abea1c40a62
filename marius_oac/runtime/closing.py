"""Context managers that close themselves, one that is aborted before it is closed if its block raises, and processes
that end with their parent."""

from __future__ import annotations

import ctypes
import os
import signal
from abc import ABC, abstractmethod
from typing import Self


class Closable(ABC):
    """Closes itself at the end of a `with` block."""

    @abstractmethod
    def close(self) -> None:
        """Releases everything."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.close()


class Abortable(Closable):
    """Closes itself at the end of a `with` block; aborts first if the block raises."""

    @abstractmethod
    def abort(self) -> None:
        """Ends waiting calls, so that `close` does not wait for others."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self.abort()
        self.close()


_PR_SET_PDEATHSIG = 1  # of <sys/prctl.h>


def end_with(parent: int) -> None:
    """Ends this process when its parent, of this number, ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        raise SystemExit
