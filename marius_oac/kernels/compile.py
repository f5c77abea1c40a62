"""The process that `ahead` starts: compiles the kernels of some groups into Numba's cache, in several processes.

They are forked after the imports, take lines of the record one after the other from a pipe, and write a byte to
standard output for each one that is finished. A line that can't be compiled is passed over.
"""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path

from marius_oac.kernels import ahead
from marius_oac.kernels.ahead import Line
from marius_oac.runtime.closing import end_with
from marius_oac.runtime.command import end_at_once

_PLACE_BYTES = 2


def main() -> None:
    """`PARENT DONE RECORD GROUP...`: the process that waits, the file to make at the end, and what to compile."""
    parent, done, groups = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[4:]
    ahead.RECORD = Path(sys.argv[3])
    end_with(parent)
    done.parent.mkdir(parents=True, exist_ok=True)
    with open(done.with_suffix(".lock"), "w") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX)  # another run's process is at it
        if done.exists():
            return
        if compile_lines(ahead.wanted(groups), ahead.processes()):
            done.touch()


def compile_lines(lines: Sequence[Line], processes: int) -> bool:
    """Compiles lines in some processes, of which this is one. Returns whether all of them have come to the end."""
    from numba.core.registry import cpu_target

    for module in dict.fromkeys(line.module for line in lines):
        with suppress(ImportError):
            import_module(f"marius_oac.{module}")
    cpu_target.typing_context.refresh()
    cpu_target.target_context.refresh()
    places, give = os.pipe()
    os.write(give, b"".join(place.to_bytes(_PLACE_BYTES) for place in range(len(lines))))
    os.close(give)
    me, children = os.getpid(), []
    for _ in range(processes - 1):
        child = os.fork()
        if child == 0:
            end_with(me)
            _work(lines, places)
            end_at_once(0)
        children.append(child)
    _work(lines, places)
    return not sum(os.waitpid(child, 0)[1] for child in children)


def _work(lines: Sequence[Line], places: int) -> None:
    from marius_oac.kernels.signatures import attribute, types_of

    while place := os.read(places, _PLACE_BYTES):
        call = lines[int.from_bytes(place)].call
        name, bracket, given = call.partition("(")
        with suppress(Exception):  # the run compiles it, or says what is wrong
            attribute(name).compile(types_of(bracket + given))
        os.write(1, b".")
