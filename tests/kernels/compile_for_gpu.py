"""Compiles the GPU's kernels without a GPU, as steps launch them.

    python -m tests.kernels.compile_for_gpu 80 90 100       # capabilities

Steps of all decoders, losses and row optimizers are taken on tensors without numbers; their launches are not made but
compiled, to PTX and by ptxas to machine code. The first variant of a kernel is compiled for all capabilities, the
others for one of them in turn. It prints a line for each kernel: what it was compiled to, its registers and spills, the
most over all these variants.
"""

import re
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import product

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from marius_oac.kernels.gpu import choice, jit
from marius_oac.models.compute.soundness import is_sound
from marius_oac.models.link_prediction.step import LinkPredictionStep, relation_width
from marius_oac.pipeline.validation import replacing
from marius_oac.types import map_arrays
from tests.models.batches import DECODERS, LOSSES, OPTIMIZERS, Shape, configure, draw
from tests.pipeline.device_cost import META

DIMENSIONS = 16, 512, 1024
TYPES = {torch.float32: "*fp32", torch.int64: "*i64", torch.uint8: "*u8"}


def launches() -> Iterator[jit.Launch]:
    """Every kernel with every set of its constants that a default dimension has, and some at others."""
    found = []
    jit.observers.append(found.append)
    try:
        with choice.forced(True):
            for decoder, loss in product(DECODERS, LOSSES):
                _step(decoder, loss=loss, dimension=100)
            for decoder, optimizer in product(("complex", "rotate"), OPTIMIZERS):
                _step(decoder, dimension=100, training__optimizer__kind=optimizer)
            for decoder, dimension in product(DECODERS, DIMENSIONS):
                _step(decoder, dimension=dimension, everything=True, training__regularization__kind="n3",
                      training__regularization__weight=0.1)  # fmt: skip
            for decoder in ("complex", "distmult"):
                _step(decoder, dimension=100, model__reciprocal="true", training__regularization__kind="l2",
                      training__regularization__weight=0.1)  # fmt: skip
            for precision in ("tf32", "bfloat16"):
                _step("complex", dimension=100, compute__precision=precision)
            rows = torch.empty(10, 200, device=META)
            is_sound(rows, 100)
            ids = torch.empty(10, dtype=torch.int64, device=META)
            replacing(META)(ids, rows, 3, ids, ids, rows)
    finally:
        jit.observers.remove(found.append)
    yield from found


def _step(decoder: str, loss: str = "softmax", dimension: int = 100, everything: bool = False, **others) -> None:
    shape = Shape(entities=400, edges=300, negatives=70, chunks=2, dimension=dimension)
    config = configure(decoder, loss, everything, shape, **others)
    batch = draw(config, shape)
    step = LinkPredictionStep(config, len(batch.relations) if relation_width(config) else 0, META, 1, batch.relations)
    rows = torch.from_numpy(batch.rows(config)).to(META)
    step.compute([rows], map_arrays(batch.data, lambda array: torch.from_numpy(array).to(META)), 0)
    step.close()


def source_of(launch: jit.Launch) -> ASTSource:
    """As Triton makes it of a launch: numbers are not specialised, tensors are aligned."""
    names, signature, attributes = launch.kernel.arg_names, {}, {}
    for place, (name, given) in enumerate(zip(names, launch.arguments, strict=False)):
        if isinstance(given, torch.Tensor):
            signature[name], attributes[(place,)] = TYPES[given.dtype], [["tt.divisibility", 16]]
        else:
            signature[name] = "fp32" if isinstance(given, float) else "i32"
    constants = {(names.index(name),): value for name, value in launch.constants.items()}
    assert {*signature, *launch.constants} == {*names}, f"{launch.kernel.__name__}: {signature}"
    signature = {name: signature.get(name, "constexpr") for name in names}
    return ASTSource(launch.kernel, signature, constants, attributes)


def resources(kernel) -> tuple[int, int]:
    """Registers of a thread, and bytes of its stack, to which registers are spilled."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        command = [triton.knobs.nvidia.cuobjdump.path, "--dump-resource-usage", file.name]
        found = re.search(r"REG:(\d+) STACK:(\d+)", subprocess.check_output(command, text=True))
    return int(found[1]), int(found[2])


def main() -> None:
    capabilities, seen, numbers = [int(word) for word in sys.argv[1:]], set(), Counter[str]()
    told = defaultdict(lambda: [0, 0, 0])
    for launch in launches():
        source = source_of(launch)
        key = (launch.kernel.__name__, str(source.signature), str(sorted(source.constants.items())), launch.warps)
        if key in seen:
            continue
        seen.add(key)
        number = numbers[launch.kernel.__name__]
        numbers[launch.kernel.__name__] += 1
        for capability in [capabilities[number % len(capabilities)]] if number else capabilities:
            kernel = triton.compile(
                source,
                target=GPUTarget("cuda", capability, 32),
                options={"num_warps": launch.warps, "enable_fp_fusion": True},
            )
            assert kernel.asm["cubin"][:4] == b"\x7fELF" and f"sm_{capability}" in kernel.asm["ptx"]
            line = told[capability, launch.kernel.__name__]
            line[0] += 1
            line[1:] = map(max, line[1:], resources(kernel))
    for (capability, name), (variants, registers, stack) in sorted(told.items()):
        print(f"triton {triton.__version__} sm_{capability} {name}: {variants} variants, "
              f"at most {registers} registers and {stack} bytes of stack a thread")  # fmt: skip


if __name__ == "__main__":
    main()
