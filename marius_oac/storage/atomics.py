"""Atomic operations on the elements of one-dimensional int64 (or uint64) arrays, for use inside kernels.

Numba has none for the CPU, so these are LLVM's own instructions. The array must be C-contiguous and its elements
aligned to 8 bytes, and the index must be in range: nothing is checked.

Guarantees:
- `load` acquires, `store` releases, `compare_exchange` and `fetch_add` do both, and each is indivisible.
- `acquire_fence` keeps every load before it ahead of everything after it; `release_fence` keeps everything before it
  ahead of every store after it.
- With `NUMBA_DISABLE_JIT=1` the same names are Python functions under one lock: slower, with the same guarantees.
"""

import threading
import time

from llvmlite import ir
from numba import config, types
from numba.core import cgutils
from numba.extending import intrinsic

_WORD = ir.IntType(64)
_VOID_POINTER = ir.IntType(8).as_pointer()


def _pointer(context, builder, array_type, array, index_type, index):
    """Address of `array[index]`."""
    index = context.cast(builder, index, index_type, types.intp)
    data = context.make_array(array_type)(context, builder, array).data
    return builder.gep(data, [index])


def _is_words(array) -> bool:
    return isinstance(array, types.Array) and array.dtype in (types.int64, types.uint64) and array.layout == "C"


if config.DISABLE_JIT:
    _LOCK = threading.Lock()

    def load(words, index):
        with _LOCK:
            return words[index]

    def store(words, index, value):
        with _LOCK:
            words[index] = value

    def compare_exchange(words, index, expected, desired):
        with _LOCK:
            found = words[index]
            if found == expected:
                words[index] = desired
            return found

    def fetch_add(words, index, amount):
        with _LOCK:
            found = words[index]
            words[index] = found + amount
            return found

    def acquire_fence():
        pass

    def release_fence():
        pass

    def yield_thread():
        time.sleep(0)

    def prefetch(array, index, for_writing):
        pass

    def copy_elements(target, target_index, source, source_index, count):
        target[target_index : target_index + count] = source[source_index : source_index + count]

else:

    @intrinsic
    def load(typingctx, words, index):
        """The value of `words[index]`; what its writer wrote before storing it is visible from here on."""
        if not _is_words(words):
            return None

        def codegen(context, builder, signature, args):
            pointer = _pointer(context, builder, words, args[0], signature.args[1], args[1])
            return builder.load_atomic(pointer, ordering="acquire", align=8)

        return words.dtype(words, index), codegen

    @intrinsic
    def store(typingctx, words, index, value):
        """Sets `words[index]`; everything written before is visible to whoever loads this value."""
        if not _is_words(words):
            return None

        def codegen(context, builder, signature, args):
            pointer = _pointer(context, builder, words, args[0], signature.args[1], args[1])
            value = context.cast(builder, args[2], signature.args[2], words.dtype)
            builder.store_atomic(value, pointer, ordering="release", align=8)
            return context.get_dummy_value()

        return types.void(words, index, value), codegen

    @intrinsic
    def compare_exchange(typingctx, words, index, expected, desired):
        """Sets `words[index]` to `desired` if it is `expected`; returns what was found, so success is `== expected`."""
        if not _is_words(words):
            return None

        def codegen(context, builder, signature, args):
            pointer = _pointer(context, builder, words, args[0], signature.args[1], args[1])
            expected = context.cast(builder, args[2], signature.args[2], words.dtype)
            desired = context.cast(builder, args[3], signature.args[3], words.dtype)
            outcome = builder.cmpxchg(pointer, expected, desired, ordering="acq_rel", failordering="acquire")
            return builder.extract_value(outcome, 0)

        return words.dtype(words, index, expected, desired), codegen

    @intrinsic
    def fetch_add(typingctx, words, index, amount):
        """Adds `amount` to `words[index]` and returns what was there before."""
        if not _is_words(words):
            return None

        def codegen(context, builder, signature, args):
            pointer = _pointer(context, builder, words, args[0], signature.args[1], args[1])
            amount = context.cast(builder, args[2], signature.args[2], words.dtype)
            return builder.atomic_rmw("add", pointer, amount, ordering="acq_rel")

        return words.dtype(words, index, amount), codegen

    @intrinsic
    def acquire_fence(typingctx):
        """No load before this is done after anything behind it."""

        def codegen(context, builder, signature, args):
            builder.fence("acquire")
            return context.get_dummy_value()

        return types.void(), codegen

    @intrinsic
    def release_fence(typingctx):
        """Nothing before this is done after a store behind it."""

        def codegen(context, builder, signature, args):
            builder.fence("release")
            return context.get_dummy_value()

        return types.void(), codegen

    @intrinsic
    def yield_thread(typingctx):
        """Lets another thread have the core: the holder of a lock bit may have been preempted."""

        def codegen(context, builder, signature, args):
            function = cgutils.get_or_insert_function(
                builder.module, ir.FunctionType(ir.IntType(32), []), "sched_yield"
            )
            builder.call(function, [])
            return context.get_dummy_value()

        return types.void(), codegen

    @intrinsic
    def prefetch(typingctx, array, index, for_writing):
        """Asks for the cache line of `array[index]`, which may be out of range; `for_writing` is a literal 0 or 1."""
        if not isinstance(for_writing, types.IntegerLiteral):
            return None

        def codegen(context, builder, signature, args):
            pointer = _pointer(context, builder, array, args[0], signature.args[1], args[1])
            flag = ir.IntType(32)
            function = cgutils.get_or_insert_function(
                builder.module,
                ir.FunctionType(ir.VoidType(), [_VOID_POINTER, flag, flag, flag]),
                "llvm.prefetch.p0i8",
            )
            builder.call(
                function,
                [builder.bitcast(pointer, _VOID_POINTER), flag(for_writing.literal_value), flag(3), flag(1)],
            )
            return context.get_dummy_value()

        return types.void(array, index, for_writing), codegen

    @intrinsic
    def copy_elements(typingctx, target, target_index, source, source_index, count):
        """memcpy of `count` elements between one-dimensional arrays of one dtype that don't overlap."""

        def codegen(context, builder, signature, args):
            to = _pointer(context, builder, target, args[0], signature.args[1], args[1])
            origin = _pointer(context, builder, source, args[2], signature.args[3], args[3])
            count = context.cast(builder, args[4], signature.args[4], types.intp)
            cgutils.raw_memcpy(builder, to, origin, count, target.dtype.bitwidth // 8)
            return context.get_dummy_value()

        return types.void(target, target_index, source, source_index, count), codegen
