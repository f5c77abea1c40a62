"""Software prefetch, for kernels that know well before what they will read."""

from llvmlite import ir
from numba import config, types
from numba.core import cgutils
from numba.extending import intrinsic

from marius_oac.kernels.cpu.jit import pasted

if config.DISABLE_JIT:

    def prefetch(matrix, row, column):
        pass

else:

    @intrinsic
    def prefetch(typing_context, matrix, row, column):
        """Asks for the cache line of an element of a matrix, to be read."""

        def generate(context, builder, signature, arguments):
            array = context.make_array(matrix)(context, builder, arguments[0])
            indices = list(arguments[1:])
            pointer = cgutils.get_item_pointer(context, builder, matrix, array, indices, wraparound=False)
            byte_pointer, number = ir.IntType(8).as_pointer(), ir.IntType(32)
            kind = ir.FunctionType(ir.VoidType(), [byte_pointer, number, number, number])
            function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
            to_read, all_caches, data = number(0), number(3), number(1)
            builder.call(function, [builder.bitcast(pointer, byte_pointer), to_read, all_caches, data])
            return context.get_dummy_value()

        return types.void(matrix, types.intp, types.intp), generate


_LINE_FLOATS = 16  # a cache line


@pasted
def prefetch_row(matrix, row, width):
    """Prefetches the first `width` float32 of a row. Inlined in its caller's code and compiled as that is."""
    for j in range(0, width, _LINE_FLOATS):
        prefetch(matrix, row, j)
    prefetch(matrix, row, width - 1)  # rows begin anywhere in a line
