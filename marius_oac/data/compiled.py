"""How the kernels of the data room are compiled: the one place for Numba's options.

- `nogil`: a kernel lets other threads run; none of them shares memory that it writes.
- `kept`: compiled once per machine, not once per process.
- `fastmath` stays off: the same inputs must give the same bits whatever the compiler would like to reorder.

With `NUMBA_DISABLE_JIT=1` the kernels run as the Python functions they are.
"""

from marius_oac.kept_code import kept

_OPTIONS = {"nogil": True, "fastmath": False}

compiled = kept(**_OPTIONS)
pasted = kept(**_OPTIONS, inline="always")
"""For a few lines with an array in a kernel's inner loop: a call would count references to it, with locks."""
