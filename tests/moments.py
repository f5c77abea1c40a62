"""Signals at every moment at which Python looks for them: after a call of C code."""

import contextlib
import functools
import os
import pathlib
import shutil
import signal
import sys
import tempfile

import marius_oac

_PACKAGE = os.path.dirname(marius_oac.__file__)
_LIBRARY = {module.__file__ for module in (contextlib, os, pathlib, shutil, tempfile)}
_NOT_OURS = ("runtime/signals.py", "command.py", "console.py")


@functools.cache
def _counts(filename: str) -> bool:
    return filename in _LIBRARY or (filename.startswith(_PACKAGE) and not filename.endswith(_NOT_OURS))


def _of_pytest(frame) -> bool:
    """Whether pytest's import hook is called: pyarrow asks it for a package, and drops what that raises."""
    while frame is not None and not frame.f_code.co_filename.endswith("_pytest/assertion/rewrite.py"):
        frame = frame.f_back
    return frame is not None


class Moments:
    """While it is entered, the calls of C code that are made in this thread are counted, by the package and by what it
    handles files with; after number `at` (from 1) the process gets a signal. `seen` is how many there were, `where` the
    moment.
    """

    def __init__(self, at: int = 0, number: int = signal.SIGTERM):
        self.at, self.number, self.seen, self.where = at, number, 0, None

    def _profile(self, frame, event, function) -> None:
        if event != "c_return" or not _counts(frame.f_code.co_filename):
            return
        self.seen += 1
        if self.seen == self.at:
            if _of_pytest(frame):
                self.at += 1
                return
            self.where = f"{frame.f_code.co_filename}:{frame.f_lineno} ({function.__name__})"
            sys.setprofile(None)
            assert callable(signal.getsignal(self.number)), "nobody would catch it"
            signal.raise_signal(self.number)

    def __enter__(self):
        sys.setprofile(self._profile)
        return self

    def __exit__(self, *_):
        sys.setprofile(None)
