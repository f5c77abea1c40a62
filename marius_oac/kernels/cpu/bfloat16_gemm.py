"""Matrix products of bfloat16 numbers with sums in float32, by the instruction VDPBF16PS (AVX-512 BF16).

The instruction multiplies 16 pairs of numbers by 16 pairs and adds both products to 16 sums. So the left matrix is in
pairs along the inner dimension, and the right one in panels: for each pair of rows, the pairs of all columns. A
micro-kernel holds the sums of a block of 6 x 64 numbers (8 x 48, 8 x 32, 8 x 16) in registers while it walks along the
inner dimension (Goto and van de Geijn, ACM TOMS 34(3), 2008).

Guarantees:
- A sum's order depends on the inner dimension alone: pairs in order, each the second product, then the first. So a
  number of the result depends on its row of the left and its column of the right, not on those beside it.
- A subnormal number counts as zero, and a result that would be one is zero, as the instruction has it.
- Only what is asked for is read and written: rows and columns that fill no block are masked.

Only for processors with AVX-512 BF16 (`is_there`); LLVM ends the process that compiles it for another.
"""

import ctypes
import functools

import numpy as np
from llvmlite import ir
from numba import config, types
from numba.core.registry import cpu_target
from numba.extending import intrinsic

from marius_oac.kernels.cpu.jit import float_inlined

VECTOR = 16
"""Columns of a vector: the width of a right matrix is a multiple."""
_FEATURE = "+avx512bf16"
_VECTOR_BYTES, _BYTES = 64, 4
_BLOCK_PAIRS = 256  # of the inner dimension: 64 columns of so many pairs are 64 KiB
_ROWS = {4: 6, 3: 8, 2: 8, 1: 8}  # of a block with so many vectors: up to 24 registers of 32 for sums


@functools.cache
def is_there() -> bool:
    """Whether kernels are compiled for a processor with AVX-512 BF16, or not compiled at all."""
    if config.DISABLE_JIT:
        return True
    _, _, features = cpu_target.target_context.codegen().magic_tuple()
    return _FEATURE in features.split(",")


if config.DISABLE_JIT:

    def _words(address, count):
        return np.ctypeslib.as_array((ctypes.c_uint32 * max(int(count), 1)).from_address(int(address)))

    def _halves(words):
        """float32 [2, ...]: the first and the second number of pairs."""
        return np.stack(((words << np.uint32(16)), words & np.uint32(0xFFFF0000))).view(np.float32)

    def multiply_panels(left, left_row, left_pair, right, width, into, stride, rows, columns, pairs, adds):
        left_words = _words(left, (rows - 1) * left_row + (pairs - 1) * left_pair + 1)
        picked = np.arange(rows)[:, None] * left_row + np.arange(pairs) * left_pair
        lefts, rights = _halves(left_words[picked]), _halves(_words(right, pairs * width).reshape(pairs, width))
        target = _words(into, (rows - 1) * stride + columns).view(np.float32)
        for row in range(rows):
            found = target[row * stride : row * stride + columns]
            sums = sum(lefts[half, row] @ rights[half, :, :columns] for half in (0, 1))
            found[:] = found + sums if adds else sums

else:
    _BOOL, _INT, _WORD, _FLOAT = ir.IntType(1), ir.IntType(32), ir.IntType(64), ir.FloatType()
    _PAIRS, _SUMS = ir.VectorType(_INT, VECTOR), ir.VectorType(_FLOAT, VECTOR)
    _MASK = ir.VectorType(_BOOL, VECTOR)
    _ZEROS = ir.Constant(_SUMS, [0.0] * VECTOR)
    _NAMES = {
        "multiply": ("llvm.x86.avx512bf16.dpbf16ps.512", ir.FunctionType(_SUMS, [_SUMS, _PAIRS, _PAIRS])),
        "load": (
            "llvm.masked.load.v16f32.p0",
            ir.FunctionType(_SUMS, [_SUMS.as_pointer(), _INT, _MASK, _SUMS]),
        ),
        "store": (
            "llvm.masked.store.v16f32.p0",
            ir.FunctionType(ir.VoidType(), [_SUMS, _SUMS.as_pointer(), _INT, _MASK]),
        ),
    }

    def _named(module, which):
        name, kind = _NAMES[which]
        return module.globals.get(name) or ir.Function(module, kind, name)

    def _at(builder, address, kind):
        return builder.inttoptr(address, kind.as_pointer())

    def _micro_kernel(module, vectors):
        """The function of a block with so many vectors, added to the module where it is not there. Its arguments are
        `_block`'s without the number of vectors; sizes in bytes."""
        name = f"marius_oac.bfloat16.{_ROWS[vectors]}x{vectors}"
        if name in module.globals:
            return module.globals[name]
        function = ir.Function(module, ir.FunctionType(ir.VoidType(), [_WORD] * 12), name)
        function.linkage = "internal"
        function.attributes.add("noinline")
        left, left_row, left_pair, right, width, into, stride, rows, pairs, columns, adds, _ = function.args
        entry, old, loop, done = (function.append_basic_block(each) for each in ("entry", "old", "loop", "done"))
        numbers, each_vector = range(_ROWS[vectors]), range(vectors)
        builder = ir.IRBuilder(entry)
        last = builder.sub(rows, _WORD(1))
        used = [builder.select(builder.icmp_unsigned("<", _WORD(i), rows), _WORD(i), last) for i in numbers]
        lefts = [builder.add(left, builder.mul(row, left_row)) for row in used]
        intos = [builder.add(into, builder.mul(row, stride)) for row in used]
        bits = builder.trunc(builder.sub(builder.shl(_WORD(1), columns), _WORD(1)), ir.IntType(VECTOR))
        full, cut = ir.Constant(_MASK, [_BOOL(1)] * VECTOR), builder.bitcast(bits, _MASK)
        masks = [cut if j == vectors - 1 else full for j in each_vector]

        def place(row, j):
            return _at(builder, builder.add(intos[row], _WORD(_VECTOR_BYTES * j)), _SUMS)

        builder.cbranch(builder.icmp_unsigned("!=", adds, _WORD(0)), old, loop)
        builder.position_at_end(old)
        load = _named(module, "load")
        before = [[builder.call(load, [place(i, j), _INT(4), masks[j], _ZEROS]) for j in each_vector] for i in numbers]
        builder.branch(loop)

        builder.position_at_end(loop)
        at = [builder.phi(_WORD) for _ in range(3)]  # pairs done, bytes of the left's row, the right's address
        for phi, first in zip(at, (_WORD(0), _WORD(0), right), strict=True):
            phi.add_incoming(first, entry)
            phi.add_incoming(first, old)
        sums = [[builder.phi(_SUMS) for _ in each_vector] for _ in numbers]
        panel = [
            builder.load(_at(builder, builder.add(at[2], _WORD(_VECTOR_BYTES * j)), _PAIRS), align=_VECTOR_BYTES)
            for j in each_vector
        ]
        undefined = ir.Constant(_PAIRS, ir.Undefined)
        for i in numbers:
            pair = builder.load(_at(builder, builder.add(lefts[i], at[1]), _INT), align=4)
            one = builder.insert_element(undefined, pair, _INT(0))
            everywhere = builder.shuffle_vector(one, undefined, ir.Constant(_PAIRS, [0] * VECTOR))
            for j in each_vector:
                sums[i][j].add_incoming(_ZEROS, entry)
                sums[i][j].add_incoming(before[i][j], old)
                found = builder.call(_named(module, "multiply"), [sums[i][j], everywhere, panel[j]])
                sums[i][j].add_incoming(found, loop)
                sums[i][j] = found
        for phi, step in zip(at, (_WORD(1), left_pair, width), strict=True):
            phi.add_incoming(builder.add(phi, step), loop)
        builder.cbranch(builder.icmp_unsigned("<", at[0].incomings[-1][0], pairs), loop, done)

        builder.position_at_end(done)
        for i in numbers:
            with builder.if_then(builder.icmp_unsigned("<", _WORD(i), rows)):
                for j in each_vector:
                    builder.call(_named(module, "store"), [sums[i][j], place(i, j), _INT(4), masks[j]])
        builder.ret_void()
        return function

    @intrinsic
    def _block(typingctx, left, left_row, left_pair, right, width, into, stride, rows, pairs, columns, adds, vectors):
        """Computes a block of the product: `vectors` vectors, the last of which has so many `columns`, of the next
        rows, as many as a block has and as there are. All but counts of pairs, rows and columns are in bytes."""

        def codegen(context, builder, signature, args):
            end = builder.append_basic_block()
            switch = builder.switch(args[-1], end)
            for count in _ROWS:
                case = builder.append_basic_block()
                switch.add_case(_WORD(count), case)
                builder.position_at_end(case)
                builder.call(_micro_kernel(builder.module, count), args)
                builder.branch(end)
            builder.position_at_end(end)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 12), codegen

    @float_inlined
    def multiply_panels(left, left_row, left_pair, right, width, into, stride, rows, columns, pairs, adds):
        """Writes the product of [rows, 2 pairs] and [2 pairs, columns], or adds it to what is there.

        Args:
            left, left_row, left_pair: the address of pairs of bfloat16, and words of 4 bytes from a row to the next and
                from a pair of a row to the next.
            right, width: the address of [pairs, width] pairs, a multiple of 64; words from a pair of rows to the next,
                a multiple of `VECTOR`. What is beyond `columns` is read and has no effect.
            into, stride: the address of float32 [rows, columns], and floats from a row to the next.
            adds: 1 if the product is added to what is there, else 0.
        """
        vectors = (columns + VECTOR - 1) // VECTOR
        for begin in range(0, pairs, _BLOCK_PAIRS):
            count = min(_BLOCK_PAIRS, pairs - begin)
            adding = 1 if begin > 0 else adds
            first = 0
            while first < vectors:
                # Four vectors, or three where four would leave one or two for the last block.
                left_over = vectors - first
                taken = 3 if left_over in (3, 5, 6, 9) else min(left_over, 4)
                inside = min(VECTOR, columns - VECTOR * (first + taken - 1))
                height = 6 if taken == 4 else 8
                panel = right + _BYTES * (begin * width + VECTOR * first)
                for row in range(0, rows, height):
                    _block(
                        left + _BYTES * (row * left_row + begin * left_pair), _BYTES * left_row, _BYTES * left_pair,
                        panel, _BYTES * width, into + _BYTES * (row * stride + VECTOR * first), _BYTES * stride,
                        min(height, rows - row), count, inside, adding, taken,
                    )  # fmt: skip
                first += taken
