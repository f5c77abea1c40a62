"""Whether a run's products can have the precision that it asks for, `compute.precision`."""

from __future__ import annotations

import os

import torch

from marius_oac.config.task import TaskConfig
from marius_oac.errors import ConfigError
from marius_oac.kernels.cpu import bfloat16_gemm
from marius_oac.models.compute.user_code import named_code
from marius_oac.runs.session import TF32_OVERRIDE
from marius_oac.tasks.registry import entry_of

KEY = "compute.precision"


def check_precision(config: TaskConfig, device: torch.device) -> None:
    """Raises ConfigError where a device has no such products, or the configuration has none at all.

    A processor without the instruction is refused: kernels for it would be slower than those of float32.
    """
    precision, on_cpu = config.compute.precision, device.type == "cpu"
    if precision == "float32":
        return
    if on_cpu and precision == "tf32":
        raise ConfigError("'tf32' is for GPUs; this run computes on the CPU", KEY)
    if precision == "tf32" and os.environ.get(TF32_OVERRIDE) == "0":
        raise ConfigError(f"'tf32' is turned off by {TF32_OVERRIDE}=0; unset it", KEY)
    if on_cpu and not bfloat16_gemm.is_there():
        raise ConfigError("'bfloat16' needs a processor with AVX-512 BF16, or a GPU; 'float32' needs neither", KEY)
    if entry_of(config).largest_layer(config) is None and (on_cpu or not named_code(config)):
        what = "scores are distances, or, on the CPU, those of a decoder or loss of your own"
        raise ConfigError(f"{precision!r} changes nothing here: {what}", KEY)
