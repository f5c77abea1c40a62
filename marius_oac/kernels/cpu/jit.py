"""The compilation of kernels, and the cache of machine code: every kernel is made by a decorator of this module.

- `nogil`: a kernel lets other threads run. Where they work on shared rows, see `atomics`.
- `kept`: compiled once per machine, not once per process: machine code is kept beside the package or in the user's
  cache. Where neither can be written, or others could write there, too, every process compiles it again, and a note
  says so once. Cached code is valid
  for its sources: those of the kernel's module and of all modules in `kernels` that this one imports. Processes that
  want a kernel at once compile it once (`once`), and most are compiled before they are called (`ahead`).
- `no_cfunc_wrapper`, and `no_cpython_wrapper` where only kernels call: code that nobody would call took a tenth of all
  compilation.

Kernels on integers and copies of rows are `compiled`, and `inlined` or `pasted` in others. `fastmath` stays off: the
compiler may not reorder or contract operations, so the same inputs give the same bits.

Kernels on floats are `float_compiled`, and `float_inlined` in others:

- `error_model="numpy"`: a division by zero gives inf or NaN, as in IEEE 754, so loops with divisions vectorise.
- `_nrt=False` (Numba, "Extending"): kernels allocate nothing and count no references to arrays, so their callers bring
  all memory. Counting takes locked instructions for every slice, for which threads contend: it made loops over the 100
  floats of a row take 4 to 8 times as long.
- `forceinline`: a kernel contains all of its code. Otherwise a function that two kernels call is in the machine code of
  both, and which copy runs depends on what was compiled or loaded first.
- The compiler may neither reorder nor fuse: which product it fuses with a sum depends on the processor. `sums` adds up
  vectors in a written order, where a loop would not be vectorised, and `vector_math.fma` is written where it counts.
  NaN and infinity keep their meaning: a loss that diverged is seen.

With `NUMBA_DISABLE_JIT=1` kernels run as the Python functions that they are, and the atomics fall back to a lock.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from numba import config, njit

from marius_oac.kernels import once
from marius_oac.runtime.console import logger
from marius_oac.runtime.files.owned import exchangeable

_NO_PLACE = "no locator available"  # of Numba's RuntimeError
_told: list[str] = []
_KERNELS = Path(__file__).parents[1]
_IMPORT = re.compile(r"^ *from +marius_oac\.kernels\.([\w.]+) +import +(.*)$", re.MULTILINE)


def kept(**options: Any) -> Callable[[Callable], Any]:
    """`njit` with these options, and with the cache where there is a place for it."""

    def compiler(function: Callable) -> Any:
        try:
            kernel = njit(cache=True, **options)(function)
        except RuntimeError as error:
            if _NO_PLACE not in str(error):
                raise
            why = "compiled code can be kept neither beside the package nor in the user's cache"
        else:
            if config.DISABLE_JIT:
                return kernel
            source = Path(function.__code__.co_filename)
            why = _unsafe(Path(kernel._cache.cache_path), source)
            if not why:
                # Numba's own stamp is that of one file, but a kernel holds the code of what it calls.
                once.keep(kernel, fingerprint(source))
                kernel.compile = functools.partial(once.compiled, kernel)
                return kernel
        if not _told:
            _told.append(function.__module__)
            logger.warning(f"{why}: it is compiled anew each time; NUMBA_CACHE_DIR may name a folder")
        return njit(**options)(function)

    return compiler


def _unsafe(cache: Path, source: Path) -> str:
    """Why code is not kept in a folder: others than this user could have it unpickled. Who can write beside the source
    could as well change Python's own bytecode, which lies there."""
    place = None if cache == source.with_name("__pycache__") else exchangeable(cache)
    return "" if place is None else f"compiled code is not kept in {cache}: {place}"


def within(**options: Any) -> Callable[[Callable], Any]:
    """`kept` for functions that only kernels call, without what makes them callable from Python, which gets a
    TypeError."""
    compiler = kept(no_cpython_wrapper=True, **options)

    def refused(function: Callable) -> Any:
        kernel = compiler(function)
        if not config.DISABLE_JIT:
            # Numba would jump to what was not compiled.
            kernel._insert = lambda *_, **__: None
            kernel._compile_for_args = functools.partial(_refuse, function.__qualname__)
        return kernel

    return refused


def _refuse(name: str, *_: object, **__: object) -> NoReturn:
    raise TypeError(f"only kernels call {name}")


@functools.cache
def fingerprint(source: Path) -> str:
    """SHA-256 of a file's text and of those in `kernels` that it imports, directly or not."""
    found, waiting = set(), [source]
    while waiting:
        file = waiting.pop()
        found.add(file)
        for module, names in _IMPORT.findall(file.read_text("utf-8")):
            path = _KERNELS / module.replace(".", "/")
            files = [path.with_suffix(".py"), *(path / f"{name}.py" for name in re.findall(r"\w+", names))]
            waiting += [each for each in files if each not in found and each.exists()]
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in sorted(found))).hexdigest()


_OPTIONS = {"nogil": True, "fastmath": False, "no_cfunc_wrapper": True}

compiled = kept(**_OPTIONS)
"""For kernels: functions that Python calls."""

inlined = within(**_OPTIONS, forceinline=True)
"""For the few lines that are done for every row: LLVM would rather call them, at 30 % of a gather's speed."""

pasted = kept(**_OPTIONS, inline="always")
"""For a few lines with an array in a kernel's inner loop: a call would count references to it, with locks."""

_FLOAT_OPTIONS = {**_OPTIONS, "error_model": "numpy", "_nrt": False}

float_compiled = kept(**_FLOAT_OPTIONS)
"""For kernels: functions that Python calls and no kernel does."""

allocating = kept(**_OPTIONS, error_model="numpy")
"""As `float_compiled`, for kernels that allocate, or that kernels call which do."""

float_inlined = within(forceinline=True, **_FLOAT_OPTIONS)
"""For functions that kernels call."""
