"""How the kernels of the data room are compiled: the one place for Numba's options.

- `nogil`: a kernel lets other threads run; none of them shares memory that it writes.
- `cache`: compiled once per machine, not once per process.
- `fastmath` stays off: the same inputs must give the same bits whatever the compiler would like to reorder.

With `NUMBA_DISABLE_JIT=1` the kernels run as the Python functions they are.
"""

from numba import njit

compiled = njit(nogil=True, cache=True, fastmath=False)
