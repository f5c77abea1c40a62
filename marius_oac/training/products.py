"""Which library multiplies the matrices of a run, `compute.products`: chosen when it begins, and kept.

What was measured is kept for the machine, in a file beside the compiled kernels. So two runs of a configuration have
the same library, and the same bits, also where the two libraries are as fast as each other.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch

from marius_oac.config.task import TaskConfig
from marius_oac.kernels.ahead import cache_folder, processor
from marius_oac.models.compute.multiply import BFLOAT16, TORCH, Layer, Times, times_of
from marius_oac.runtime import blas
from marius_oac.tasks.registry import entry_of

_FORCED = "OPENBLAS_CORETYPE"
_NOTICED = 1.25  # times slower


def chosen(config: TaskConfig) -> tuple[str, list[str]]:
    """`compute.products` of a new run: in place of `auto` the faster library, where a step multiplies on the CPU at
    all. Also returns remarks for the user: of kernels of NumPy's that the environment forces, if they are slow."""
    asked, forced = config.compute.products, os.environ.get(_FORCED)
    on_cpu = config.device == "cpu" or (config.device == "auto" and not torch.cuda.is_available())
    if not on_cpu or config.compute.precision == BFLOAT16 or not (asked == "auto" or forced):
        return asked, []
    layer = entry_of(config).largest_layer(config)
    if layer is None:
        return asked, []
    times = machine_times(layer)
    found = times.faster if asked == "auto" else asked
    if not forced or times.ratio <= _NOTICED:
        return found, []
    use = "torch's are used in training" if found == TORCH else f"see compute.products, which is {found}"
    slow = f"NumPy's products take {times.ratio:.1f} x the time of torch's here"
    return found, [f"{_FORCED}={forced} is set: {slow}; {use}"]


def machine_times(layer: Layer) -> Times:
    """The `times_of` a layer that this machine was measured with first; measured now where none are kept."""
    place = _place(layer)
    if place is not None:
        with suppress(OSError, ValueError, TypeError):
            kept = Times(*(float(seconds) for seconds in json.loads(place.read_text("utf-8"))))
            if all(0 < seconds < math.inf for seconds in kept):
                return kept
    times = times_of(layer)
    if place is not None:
        with suppress(OSError):  # a full disk: the next run measures again
            place.parent.mkdir(parents=True, exist_ok=True)
            own = place.with_name(f"{place.name}.{os.getpid()}")
            own.write_text(json.dumps(times), "utf-8")
            own.replace(place)
    return times


def _place(layer: Layer) -> Path | None:
    """The file for a layer with these libraries on this processor; None where there is no place for a cache."""
    folder = cache_folder()
    versions = f"{np.__version__} {torch.__version__} {blas.kernels()} {processor()}"
    name = f"marius_oac.products.{'x'.join(map(str, layer))}.{hashlib.sha256(versions.encode()).hexdigest()[:16]}.json"
    return None if folder is None else folder / name


def kept(config: TaskConfig, before: TaskConfig) -> TaskConfig:
    """The configuration of a run that goes on, with what it had in place of `auto`."""
    return config.with_products(before.compute.products) if config.compute.products == "auto" else config
