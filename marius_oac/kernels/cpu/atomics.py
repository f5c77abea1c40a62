"""Shared memory by address, for use inside kernels: atomic words, fences, plain elements, copies, prefetches.

Numba has no atomics for the CPU, so these are LLVM's own instructions. They take addresses (int64) and not arrays
because Numba counts references to arrays with locked instructions, which in a loop over rows cost more than the copying
does. Nothing is checked: the memory must be there, stay there, and atomic words must lie at multiples of 8 bytes.

Guarantees:
- `load` acquires, `store` releases, `compare_exchange` and `fetch_add` do both, and each is atomic.
- `acquire_fence` keeps every load before it ahead of everything after it; `release_fence` keeps everything before it
  ahead of every store after it.
- With `NUMBA_DISABLE_JIT=1` the same names are Python functions, the atomic ones under one lock: slower, with the same
  guarantees.
"""

import ctypes
import platform
import threading
import time

import numpy as np
from llvmlite import ir
from numba import config, types
from numba.core import cgutils
from numba.extending import intrinsic

LANES = 16
"""Halves of a cache line: 4 bytes each."""

if config.DISABLE_JIT:
    _LOCK = threading.Lock()

    def _word(address):
        return ctypes.c_int64.from_address(int(address))

    def address_of(array):
        return array.ctypes.data

    def load(address):
        with _LOCK:
            return _word(address).value

    def store(address, value):
        with _LOCK:
            _word(address).value = int(value)

    def compare_exchange(address, expected, desired):
        with _LOCK:
            found = _word(address).value
            if found == expected:
                _word(address).value = int(desired)
            return found

    def fetch_add(address, value):
        with _LOCK:
            word = _word(address)
            found, word.value = word.value, word.value + int(value)
            return found

    def acquire_fence():
        pass

    def release_fence():
        pass

    def pause():
        time.sleep(0)

    def yield_thread():
        time.sleep(0)

    def prefetch(address, for_writing):
        pass

    def load_half(address):
        with _LOCK:
            return ctypes.c_uint32.from_address(int(address)).value

    def store_half(address, value):
        with _LOCK:
            ctypes.c_uint32.from_address(int(address)).value = int(value)

    def first_hit(line, lane, step, mask, wanted):
        for at in range(step, LANES):
            found = load_half(line + 4 * ((lane + at) % LANES))
            if found == 0 or found & mask == wanted:
                return at
        return LANES

    def copy_bytes(target, source, count):
        ctypes.memmove(int(target), int(source), int(count))

else:
    _WORD = ir.IntType(64)
    _INT = ir.IntType(32)
    _BYTES = ir.IntType(8).as_pointer()
    _IS_X86 = platform.machine() in ("x86_64", "AMD64")

    def _pointer(builder, address, kind=_WORD):
        return builder.inttoptr(address, kind.as_pointer())

    @intrinsic
    def address_of(typingctx, array):
        """Address of the first element of a C-contiguous array."""
        if not (isinstance(array, types.Array) and array.layout == "C"):
            return None

        def codegen(context, builder, signature, args):
            return builder.ptrtoint(context.make_array(array)(context, builder, args[0]).data, _WORD)

        return types.int64(array), codegen

    @intrinsic
    def load(typingctx, address):
        """The word at `address`; what its writer wrote before storing it is visible from here on."""

        def codegen(context, builder, signature, args):
            return builder.load_atomic(_pointer(builder, args[0]), ordering="acquire", align=8)

        return types.int64(types.int64), codegen

    @intrinsic
    def store(typingctx, address, value):
        """Sets the word at `address`; everything written before is visible to a thread that loads this value."""

        def codegen(context, builder, signature, args):
            builder.store_atomic(args[1], _pointer(builder, args[0]), ordering="release", align=8)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), codegen

    @intrinsic
    def compare_exchange(typingctx, address, expected, desired):
        """Sets the word to `desired` if it is `expected`; returns what was found: `expected` if it was set."""

        def codegen(context, builder, signature, args):
            outcome = builder.cmpxchg(
                _pointer(builder, args[0]), args[1], args[2], ordering="acq_rel", failordering="acquire"
            )
            return builder.extract_value(outcome, 0)

        return types.int64(types.int64, types.int64, types.int64), codegen

    @intrinsic
    def fetch_add(typingctx, address, value):
        """Adds to the word at `address`; returns what was there before."""

        def codegen(context, builder, signature, args):
            return builder.atomic_rmw("add", _pointer(builder, args[0]), args[1], "acq_rel")

        return types.int64(types.int64, types.int64), codegen

    @intrinsic
    def acquire_fence(typingctx):
        """Keeps every load before it ahead of everything after it."""

        def codegen(context, builder, signature, args):
            builder.fence("acquire")
            return context.get_dummy_value()

        return types.void(), codegen

    @intrinsic
    def release_fence(typingctx):
        """Keeps everything before it ahead of every store after it."""

        def codegen(context, builder, signature, args):
            builder.fence("release")
            return context.get_dummy_value()

        return types.void(), codegen

    @intrinsic
    def pause(typingctx):
        """Some ten nanoseconds in a loop that waits for a word, in which the core's other thread has its units."""

        def codegen(context, builder, signature, args):
            if _IS_X86:
                kind = ir.FunctionType(ir.VoidType(), [])
                builder.call(builder.module.declare_intrinsic("llvm.x86.sse2.pause", fnty=kind), [])
            return context.get_dummy_value()

        return types.void(), codegen

    @intrinsic
    def yield_thread(typingctx):
        """Lets another thread have the core: the holder of a lock bit may have been preempted."""

        def codegen(context, builder, signature, args):
            function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(_INT, []), "sched_yield")
            builder.call(function, [])
            return context.get_dummy_value()

        return types.void(), codegen

    @intrinsic
    def prefetch(typingctx, address, for_writing):
        """Asks for the cache line at `address`, which may be any; `for_writing` is a literal 0 or 1."""
        if not isinstance(for_writing, types.IntegerLiteral):
            return None

        def codegen(context, builder, signature, args):
            function = cgutils.get_or_insert_function(
                builder.module,
                ir.FunctionType(ir.VoidType(), [_BYTES, _INT, _INT, _INT]),
                "llvm.prefetch.p0i8",
            )
            everywhere, data = _INT(3), _INT(1)
            pointer = _pointer(builder, args[0], ir.IntType(8))
            builder.call(function, [pointer, _INT(for_writing.literal_value), everywhere, data])
            return context.get_dummy_value()

        return types.void(types.int64, for_writing), codegen

    @intrinsic
    def load_half(typingctx, address):
        """The 4 bytes at `address`, a multiple of 4, as an int64; acquires, as `load`."""

        def codegen(context, builder, signature, args):
            found = builder.load_atomic(_pointer(builder, args[0], _INT), ordering="acquire", align=4)
            return builder.zext(found, _WORD)

        return types.int64(types.int64), codegen

    @intrinsic
    def store_half(typingctx, address, value):
        """Sets the 4 bytes at `address`, a multiple of 4; releases, as `store`."""

        def codegen(context, builder, signature, args):
            half = builder.trunc(args[1], _INT)
            builder.store_atomic(half, _pointer(builder, args[0], _INT), ordering="release", align=4)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), codegen

    @intrinsic
    def first_hit(typingctx, line, lane, step, mask, wanted):
        """Of the 16 halves of the cache line at `line`, taken in turn from `lane` on, the first from number `step` on
        that is 0 or has `wanted` in its bits `mask`; 16: there is none.

        It takes no branch, and is a hint: whoever acts on a half must `load_half` it, since other threads may store.
        """

        def codegen(context, builder, signature, args):
            line, lane, step, mask, wanted = args
            kind, turns = ir.VectorType(_INT, LANES), _WORD(LANES)

            def everywhere(value):
                one = builder.insert_element(ir.Constant(kind, ir.Undefined), builder.trunc(value, _INT), _INT(0))
                return builder.shuffle_vector(one, ir.Constant(kind, ir.Undefined), ir.Constant(kind, [0] * LANES))

            halves = builder.load(_pointer(builder, line, kind), align=4 * LANES)
            tagged = builder.icmp_unsigned("==", builder.and_(halves, everywhere(mask)), everywhere(wanted))
            empty = builder.icmp_unsigned("==", halves, ir.Constant(kind, [0] * LANES))
            hits = builder.zext(builder.bitcast(builder.or_(tagged, empty), ir.IntType(LANES)), _WORD)
            in_turn = builder.lshr(builder.or_(hits, builder.shl(hits, turns)), lane)
            from_step = builder.and_(in_turn, builder.shl(_WORD(-1), step))
            return builder.cttz(builder.or_(from_step, _WORD(1 << LANES)), ir.IntType(1)(0))

        return types.int64(*[types.int64] * 5), codegen

    @intrinsic
    def copy_bytes(typingctx, target, source, count):
        """Copies `count` bytes between addresses that don't overlap."""

        def codegen(context, builder, signature, args):
            byte = ir.IntType(8)
            cgutils.raw_memcpy(builder, _pointer(builder, args[0], byte), _pointer(builder, args[1], byte), args[2], 1)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, types.int64), codegen


def _make_element_access(element_type, c_type):
    """Plain (not atomic) `get(address, index)` and `set(address, index, value)` of one element type."""
    if config.DISABLE_JIT:
        size, convert = ctypes.sizeof(c_type), getattr(np, element_type.name)

        def plain_get(address, index):
            return convert(c_type.from_address(int(address + size * index)).value)

        def plain_set(address, index, value):
            c_type.from_address(int(address + size * index)).value = value.item()

        return plain_get, plain_set

    @intrinsic
    def get(typingctx, address, index):
        def codegen(context, builder, signature, args):
            kind = context.get_value_type(element_type)
            return builder.load(builder.gep(_pointer(builder, args[0], kind), [args[1]]))

        return element_type(types.int64, types.int64), codegen

    @intrinsic
    def set_(typingctx, address, index, value):
        def codegen(context, builder, signature, args):
            kind = context.get_value_type(element_type)
            builder.store(args[2], builder.gep(_pointer(builder, args[0], kind), [args[1]]))
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, element_type), codegen

    return get, set_


get_uint16, set_uint16 = _make_element_access(types.uint16, ctypes.c_uint16)
get_uint32, set_uint32 = _make_element_access(types.uint32, ctypes.c_uint32)
get_uint64, set_uint64 = _make_element_access(types.uint64, ctypes.c_uint64)
get_float32, set_float32 = _make_element_access(types.float32, ctypes.c_float)
