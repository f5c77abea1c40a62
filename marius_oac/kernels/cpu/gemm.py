"""NumPy's own matrix product, for use inside kernels: its BLAS is called by address, without Python.

Guarantees:
- A product has the bits of `np.matmul` on the same arrays, in C order or transposed, unless one of them is a vector,
  or both are the same array, for which NumPy calls other functions.
- It runs on the calling thread within `runtime.blas.one_thread_per_product`.
"""

import ctypes
from typing import Any

from llvmlite import ir
from numba import config, types
from numba.extending import intrinsic

_ROW_MAJOR, _PLAIN, _TRANSPOSED = 101, 111, 112  # CBLAS's numbers

_C_INTS, _C_SIZE = [ctypes.c_int] * 3, ctypes.c_int64
_C_ARGUMENTS: list[Any] = [
    *_C_INTS, _C_SIZE, _C_SIZE, _C_SIZE, ctypes.c_float, ctypes.c_void_p, _C_SIZE, ctypes.c_void_p, _C_SIZE,
    ctypes.c_float, ctypes.c_void_p, _C_SIZE,
]  # fmt: skip

if config.DISABLE_JIT:

    def multiply(function, transposed, rows, columns, inner, left, right, into):
        called = ctypes.CFUNCTYPE(None, *_C_ARGUMENTS)(int(function))
        first, second = (_TRANSPOSED if transposed >> bit & 1 else _PLAIN for bit in (0, 1))
        sizes = (int(size) for size in (rows, columns, inner))
        (left, left_width), (right, right_width), (into, width) = left, right, into
        called(
            _ROW_MAJOR, first, second, *sizes, 1.0, int(left), int(left_width), int(right), int(right_width), 0.0,
            int(into), int(width),
        )  # fmt: skip

else:
    _INT, _SIZE, _FLOAT = ir.IntType(32), ir.IntType(64), ir.FloatType()
    _FLOATS = _FLOAT.as_pointer()
    _ARGUMENTS = [
        _INT, _INT, _INT, _SIZE, _SIZE, _SIZE, _FLOAT, _FLOATS, _SIZE, _FLOATS, _SIZE, _FLOAT, _FLOATS, _SIZE,
    ]  # fmt: skip
    _PLACE = types.UniTuple(types.int64, 2)

    @intrinsic
    def multiply(typingctx, function, transposed, rows, columns, inner, left, right, into):
        """Writes a product of float32 matrices, [rows, inner] times [inner, columns].

        Args:
            function: the address of `cblas_sgemm` with integers of 64 bits (`runtime.blas.sgemm`).
            transposed: 1 if `left` is stored as [inner, rows], plus 2 if `right` is stored as [columns, inner].
            left, right, into: (address of the first float, floats from a row to the next) of matrices in C order.
        """

        def codegen(context, builder, signature, args):
            kind = ir.FunctionType(ir.VoidType(), _ARGUMENTS)
            called = builder.inttoptr(args[0], kind.as_pointer())
            flags = []
            for bit in (1, 2):
                is_set = builder.icmp_signed("!=", builder.and_(args[1], _SIZE(bit)), _SIZE(0))
                flags.append(builder.select(is_set, _INT(_TRANSPOSED), _INT(_PLAIN)))
            places = []
            for place in args[5:]:
                places += [
                    builder.inttoptr(builder.extract_value(place, 0), _FLOATS),
                    builder.extract_value(place, 1),
                ]
            builder.call(called, [_INT(_ROW_MAJOR), *flags, *args[2:5], _FLOAT(1), *places[:4], _FLOAT(0), *places[4:]])
            return context.get_dummy_value()

        return types.void(*[types.int64] * 5, _PLACE, _PLACE, _PLACE), codegen
