"""The compilation of kernels on floats, and conversions between a float and its bits.

- `nogil`: a kernel lets other threads run. `kept`: compiled once per machine, not once per process.
- `error_model="numpy"`: a division by zero gives inf or NaN, as in IEEE 754, so loops with divisions vectorise.
- `_nrt=False` (Numba, "Extending"): kernels allocate nothing and count no references to arrays, so their callers bring
  all memory. Counting takes locked instructions for every slice, for which threads contend: it made loops over the 100
  floats of a row take 4 to 8 times as long.
- `forceinline`: a kernel contains all of its code. Otherwise a function that two kernels call is in the machine code of
  both, and which copy runs depends on what was compiled or loaded first. As sums may be reordered, the two copies need
  not give the same bits: a run that compiled its kernels differed from the next one, which found them cached.
- Two floating-point policies. `compiled` and `inlined` may reorder sums (`reassoc`), without which no sum would
  vectorise; `exact` keeps the order that is written, which the splitting of an argument in `vector_math` rests on. All
  may fuse a product and a sum (`contract`). The compiler decides once: the same machine code on the same inputs gives
  the same bits. NaN and infinity keep their meaning (`nnan`, `ninf` are off): a diverged loss must be seen.

With `NUMBA_DISABLE_JIT=1` the kernels run as the Python functions they are.
"""

import numpy as np
from llvmlite import ir
from numba import config, types
from numba.extending import intrinsic

from marius_oac.kernels.cpu.jit import kept
from marius_oac.kernels.cpu.prefetch import prefetch as prefetch
from marius_oac.kernels.cpu.prefetch import prefetch_row as prefetch_row

_OPTIONS = {"nogil": True, "error_model": "numpy", "_nrt": False}

_REORDERING = {"contract", "nsz", "reassoc"}

compiled = kept(fastmath=_REORDERING, **_OPTIONS)
"""For kernels: functions that Python calls and no kernel does."""

inlined = kept(fastmath=_REORDERING, forceinline=True, **_OPTIONS)
"""For functions that kernels call."""

exact = kept(fastmath={"contract", "nsz"}, forceinline=True, **_OPTIONS)
"""For functions that kernels call and whose order of operations is part of their meaning."""

if config.DISABLE_JIT:

    def bits_of(value):
        return np.float32(value).view(np.int32)

    def float_of(bits):
        return np.int32(bits).view(np.float32)

else:

    @intrinsic
    def bits_of(typing_context, value):
        """The bits of a float32 as an int32."""

        def generate(context, builder, signature, arguments):
            return builder.bitcast(arguments[0], ir.IntType(32))

        return types.int32(types.float32), generate

    @intrinsic
    def float_of(typing_context, bits):
        """The float32 that has these bits, an int32."""

        def generate(context, builder, signature, arguments):
            return builder.bitcast(arguments[0], ir.FloatType())

        return types.float32(types.int32), generate
