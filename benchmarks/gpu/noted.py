"""Launches of Triton's kernels, noted as Triton tells them apart: what two launches agree in needs compiling once.

Noted are kernel, constants and warps, type and alignment of tensors, and for a number whether it is 1, divisible by 16,
and more than 32 bits. As a plugin of pytest (`-p benchmarks.gpu.noted`) it notes what the tests launch, by Triton's
interpreter, with the kernels chosen on a CPU as on a GPU; `note_parts` notes what the parts launch, which then is
not computed. Both add lines to the file that GPU_LAUNCHES names.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from marius_oac.kernels.gpu import choice

VARIABLE = "GPU_LAUNCHES"
_WIDE = 1 << 40
_CLASSES = (1, 16, 3)
_noted: set[str] = set()


def note(kernel: Any, arguments: Sequence[Any], options: Mapping[str, Any]) -> None:
    """Adds a launch to the file, unless this process has noted such a one."""
    line = json.dumps([f"{kernel.fn.__module__}:{kernel.fn.__name__}", list(map(_class, arguments)), dict(options)])
    if line not in _noted:
        _noted.add(line)
        with open(os.environ[VARIABLE], "a", encoding="utf-8") as file:
            file.write(line + "\n")


def _class(given: Any) -> Any:
    if isinstance(given, torch.Tensor):
        return [str(given.dtype).removeprefix("torch."), given.data_ptr() % 16 == 0]
    if isinstance(given, int) and not isinstance(given, bool):
        wide = _WIDE if abs(given) >= 1 << 31 else 0
        return wide + (given if given == 1 else 3 if given % 16 else 16)
    return given


def launches(file: Path) -> list[tuple[Any, tuple[Any, ...], dict[str, Any]]]:
    """Kernel, arguments and options of all launches in a file, and of each one also with all of its tensors aligned,
    as those are that a GPU's memory is taken for."""
    lines = {}
    for line in file.read_text("utf-8").splitlines():
        kernel, arguments, options = json.loads(line)
        aligned = [[each[0], True] if isinstance(each, list) else each for each in arguments]
        lines |= dict.fromkeys((line, json.dumps([kernel, aligned, options])))
    found = []
    for line in lines:
        kernel, arguments, options = json.loads(line)
        module, name = kernel.split(":")
        found.append((getattr(import_module(module), name), tuple(map(_example, arguments)), options))
    return found


def _example(given: Any) -> Any:
    if isinstance(given, list):
        dtype, aligned = getattr(torch, given[0]), given[1]
        return torch.empty(64, dtype=dtype)[0 if aligned else 1 :]
    return given


def pytest_configure() -> None:
    from triton.runtime.interpreter import InterpretedFunction

    choice._forced.append(True)  # to the end
    run = InterpretedFunction.run

    def noted(kernel: Any, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        note(kernel, arguments, options)
        return run(kernel, *arguments, grid=grid, warmup=warmup, **options)

    InterpretedFunction.run = noted


def note_parts() -> None:
    """Notes what the parts of the second call launch."""
    from benchmarks.gpu import bits, kernels
    from benchmarks.gpu.calls import CALLS, Call, Command, run_call
    from benchmarks.gpu.place import Place
    from marius_oac.kernels.gpu import jit

    jit.observers.append(
        lambda launch: note(launch.kernel, launch.arguments, {"num_warps": launch.warps, **launch.constants})
    )
    torch.Tensor.new_empty = torch.Tensor.new_zeros  # what is not computed is no nonsense
    kernels.REHEARSED = kernels.TILES
    place = Place(torch.device("cpu"), small=True)
    with choice.forced(True), tempfile.TemporaryDirectory() as name, place.copying():
        folder = Path(name)
        for make in bits.cases(place, folder).values():
            bits.trained(place, make("pipeline.in_flight=4"), 3, held=False)
        run_call(Command(place, folder, ""), Call(600, CALLS[2].steps[1:]), time.monotonic())
