"""`preadv` and `pwritev` for use inside kernels: without the GIL, so that a thread can do many in a row.

A Python call of `os.preadv` holds the GIL for some microseconds, which at 60,000 pages a second is a large part of a
core that training needs too (`benchmarks/disk/page_io.py`).

With `NUMBA_DISABLE_JIT=1` the same names are Python functions.
"""

import ctypes
import errno
import os

import numpy as np
from llvmlite import ir
from numba import config, types
from numba.core import cgutils
from numba.extending import intrinsic

if config.DISABLE_JIT:

    def _views(vectors, count):
        pairs = np.ctypeslib.as_array((ctypes.c_int64 * (2 * int(count))).from_address(int(vectors))).reshape(-1, 2)
        return [memoryview((ctypes.c_char * int(size)).from_address(int(at))).cast("B") for at, size in pairs]

    def preadv(descriptor, vectors, count, offset):
        try:
            return os.preadv(int(descriptor), _views(vectors, count), int(offset))
        except OSError as error:
            return -(error.errno or 0)

    def pwritev(descriptor, vectors, count, offset):
        try:
            return os.pwritev(int(descriptor), _views(vectors, count), int(offset))
        except OSError as error:
            return -(error.errno or 0)

    def system_call(number, a, b, c, d, e):
        return -errno.ENOSYS  # as a system that has no such call: its callers then do without

else:
    _LONG, _INT = ir.IntType(64), ir.IntType(32)
    _BYTES = ir.IntType(8).as_pointer()

    def _make(name):
        """The C function `name(descriptor, vectors, count, offset)`; returns the bytes moved, or minus errno.

        `vectors` is the address of `count` pairs (address, bytes) of int64, which is C's `struct iovec`.
        """

        @intrinsic
        def call(typingctx, descriptor, vectors, count, offset):
            def codegen(context, builder, signature, args):
                module = builder.module
                kind = ir.FunctionType(_LONG, [_INT, _BYTES, _INT, _LONG])
                function = cgutils.get_or_insert_function(module, kind, name)
                errno_kind = ir.FunctionType(_INT.as_pointer(), [])
                errno = cgutils.get_or_insert_function(module, errno_kind, "__errno_location")
                pointer = builder.inttoptr(args[1], _BYTES)
                moved = builder.call(
                    function, [builder.trunc(args[0], _INT), pointer, builder.trunc(args[2], _INT), args[3]]
                )
                number = builder.sext(builder.load(builder.call(errno, [])), _LONG)
                return builder.select(builder.icmp_signed("<", moved, _LONG(0)), builder.neg(number), moved)

            return types.int64(types.int64, types.int64, types.int64, types.int64), codegen

        return call

    preadv, pwritev = _make("preadv"), _make("pwritev")

    @intrinsic
    def system_call(typingctx, number, a, b, c, d, e):
        """`syscall(2)` with five numbers; returns its result, or minus errno."""

        def codegen(context, builder, signature, args):
            module = builder.module
            function = cgutils.get_or_insert_function(module, ir.FunctionType(_LONG, [_LONG] * 6), "syscall")
            errno_kind = ir.FunctionType(_INT.as_pointer(), [])
            errno = cgutils.get_or_insert_function(module, errno_kind, "__errno_location")
            found = builder.call(function, args)
            number = builder.sext(builder.load(builder.call(errno, [])), _LONG)
            return builder.select(builder.icmp_signed("<", found, _LONG(0)), builder.neg(number), found)

        return types.int64(*[types.int64] * 6), codegen
