"""How the kernels of the models are compiled: the one place for Numba's options.

- `nogil`: a kernel lets other threads run. `cache`: compiled once per machine, not once per process.
- `error_model="numpy"`: a division by zero gives inf or NaN, as in IEEE 754, so loops with divisions vectorise.
- Two floating-point policies. `compiled` may reorder sums (`reassoc`), without which no sum would vectorise; `exact`
  keeps the order that is written, which the splitting of an argument in `vector_math` rests on. Both may fuse a product
  and a sum (`contract`). The compiler decides once, when it compiles: the same machine code on the same inputs gives
  the same bits. NaN and infinity keep their meaning (`nnan`, `ninf` are off): a diverged loss must be seen.

With `NUMBA_DISABLE_JIT=1` the kernels run as the Python functions they are.
"""

import numpy as np
from llvmlite import ir
from numba import config, njit, types
from numba.extending import intrinsic

exact = njit(nogil=True, cache=True, error_model="numpy", fastmath={"contract", "nsz"})
"""For functions whose order of operations is part of their meaning."""

_REORDERING = {"contract", "nsz", "reassoc"}
compiled = njit(nogil=True, cache=True, error_model="numpy", fastmath=_REORDERING)
"""For everything else."""

inlined = njit(nogil=True, cache=True, error_model="numpy", fastmath=_REORDERING, inline="always")
"""For short functions that branch over the loops of one row: inlined by Numba, before LLVM sees them. Inlined by LLVM
they ran 2 to 8 times as long, their loops no longer vectors."""

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
