"""Where a part runs: on the GPU, or, in the rehearsal, on CPU tensors through the device that copies."""

from __future__ import annotations

import math
import os
import platform
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import psutil
import torch

from marius_oac.pipeline.device import Device, TorchDevice
from marius_oac.pipeline.runner import Pipeline
from marius_oac.pipeline.streams import CudaStreams, HostStreams, Streams
from marius_oac.runtime.machine import cgroups

Wrap = Callable[[Streams], Streams]


@dataclass(frozen=True)
class Place:
    """The device of all measurements; the rehearsal's are small."""

    device: torch.device
    small: bool

    @property
    def override(self) -> str:
        """For a config."""
        return f"device={self.device}"

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    def pick(self, full: Any, small: Any) -> Any:
        """Of a measurement's two sizes the one of this place."""
        return small if self.small else full

    def wait(self) -> None:
        """Returns when the device has done all that it was given."""
        if self.on_gpu:
            torch.cuda.synchronize(self.device)

    def streams(self) -> Streams:
        return CudaStreams(self.device) if self.on_gpu else HostStreams()

    def sleep(self, cycles: int) -> None:
        """Holds the stream that has been entered for so many cycles of the GPU; a CPU has no streams to hold."""
        if self.on_gpu:
            torch.cuda._sleep(cycles)

    @contextmanager
    def copying(self, wrap: Wrap = lambda streams: streams) -> Iterator[None]:
        """Pipelines that are made within it copy their batches to the device, on a CPU too; `wrap` gets their
        streams."""
        real = Pipeline._make_device

        def make(pipeline: Pipeline, device: torch.device) -> Device:
            if device.type != self.device.type:  # the CPU's own way, beside a GPU
                return real(pipeline, device)
            source = pipeline.source
            shape = (pipeline.planner.tables, source.layouts, pipeline.in_flight, source.caching)
            return TorchDevice(device, *shape, streams=wrap(self.streams()))

        Pipeline._make_device = make
        try:
            yield
        finally:
            Pipeline._make_device = real

    def times(self, run: Callable[[], object], rounds: int = 5, least: float = 0.1) -> dict[str, float]:
        """Seconds of one call: median, lowest and highest of `rounds` rounds of at least `least` seconds each. In
        small, where the number says nothing, `run` is called once."""
        if self.small:
            return dict.fromkeys(("median", "lowest", "highest"), self._seconds(run, 1))
        run()
        self.wait()
        calls = max(1, math.ceil(least / self._seconds(run, 2)))
        found = [self._seconds(run, calls) for _ in range(rounds)]
        return {"median": statistics.median(found), "lowest": min(found), "highest": max(found)}

    def _seconds(self, run: Callable[[], object], calls: int) -> float:
        self.wait()
        began = time.perf_counter()
        for _ in range(calls):
            run()
        self.wait()
        return (time.perf_counter() - began) / calls

    def forget_peak(self) -> None:
        """`peak_gibibytes` is of what comes from now on."""
        if self.on_gpu:
            torch.cuda.reset_peak_memory_stats(self.device)

    def peak_gibibytes(self) -> float | None:
        """The most memory of the device that torch has held at once; None on a CPU."""
        return torch.cuda.max_memory_allocated(self.device) / (1 << 30) if self.on_gpu else None

    def facts(self) -> dict[str, Any]:
        """Of the machine and of what runs on it."""
        card = torch.cuda.get_device_properties(self.device) if self.on_gpu else None
        return {
            "device": card.name if card else "cpu",
            "device_bytes": card.total_memory if card else None,
            "capability": f"{card.major}.{card.minor}" if card else None,
            "driver": driver() if card else None,
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "triton": version_of("triton"),
            "numba": version_of("numba"),
            "numpy": version_of("numpy"),
            "python": platform.python_version(),
            "cpu": cpu_name(),
            "cores": len(os.sched_getaffinity(0)),
            "memory_bytes": psutil.virtual_memory().total,
        }


def free_memory() -> int:
    """Bytes of the host that this process may take."""
    left = (psutil.virtual_memory().available, cgroups.headroom())
    return min(one for one in left if one is not None)


def driver() -> str | None:
    """The version of NVIDIA's, as nvidia-smi says it."""
    if not shutil.which("nvidia-smi"):
        return None
    ask = ("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    done = subprocess.run(ask, capture_output=True, text=True, timeout=60)
    return done.stdout.split("\n")[0].strip() or None


def version_of(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def cpu_name() -> str:
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        names = (line.partition(":")[2].strip() for line in file if line.startswith("model name"))
        return next(names, platform.machine())
