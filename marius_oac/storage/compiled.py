"""How the storage kernels are compiled: the one place for Numba's options.

- `nogil`: a kernel lets other threads run; all of them work on shared rows, see `atomics`.
- `kept`: compiled once per machine, not once per process.
- `fastmath` stays off: the same inputs must give the same bits whatever the compiler would like to reorder or contract.

With `NUMBA_DISABLE_JIT=1` the kernels run as the Python functions they are, and the atomics fall back to a lock.
"""

from marius_oac.kept_code import kept

_OPTIONS = {"nogil": True, "fastmath": False}

compiled = kept(**_OPTIONS)
inlined = kept(**_OPTIONS, forceinline=True)
"""For the few lines that are done for every row: LLVM would rather call them, at 30 % of a gather's speed."""
