"""What is there, and whether the simplest things work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from benchmarks.gpu import triton_cache
from benchmarks.gpu.part import Missing, Part, Table
from benchmarks.gpu.place import Place, free_memory
from marius_oac.kernels.gpu import choice
from marius_oac.models.compute.soundness import is_sound

SECONDS = 60
TABLES = [
    Table("facts", "What is there, and the simplest things",
          "Page-locked memory and copies on the pipeline's streams, one kernel, and how many kernels the carried cache "
          "of Triton has and whether they were compiled for the Triton that is here.",
          {"what": "what", "found": "found", "right": "right"}),
]  # fmt: skip


def run(part: Part) -> None:
    checks: dict[str, Callable[[Place], dict[str, Any]]] = {
        "machine": _machine, "page-locked memory, copies, streams": _copies, "a kernel": _kernel,
        "Triton's cache": _cache,
    }  # fmt: skip
    for what, check in checks.items():
        part.measure("facts", {"what": what}, lambda check=check: check(part.place))


def _machine(place: Place) -> dict[str, Any]:
    facts = place.facts()
    said = [f"{name} {value}" for name, value in facts.items() if value is not None]
    return {"found": ", ".join([*said, f"free_memory {free_memory()}"]), "right": True}


def _copies(place: Place) -> dict[str, Any]:
    """There and back on the streams, in order by events alone."""
    streams, count = place.streams(), place.pick(1 << 22, 1 << 10)
    host, back = (streams.staging((count,), torch.int32) for _ in range(2))
    there = streams.empty((count,), torch.int32)
    host.copy_(torch.arange(count))
    streams.begin()
    with streams.on("up"):
        there.copy_(host, non_blocking=True)
        up = streams.record("up")
    streams.wait("compute", up)
    with streams.on("compute"):
        there.mul_(3)
        done = streams.record("compute")
    streams.wait("down", done)
    with streams.on("down"):
        back.copy_(there, non_blocking=True)
        down = streams.record("down")
    streams.synchronize(down)
    same, pinned = bool(torch.equal(back, 3 * torch.arange(count, dtype=torch.int32))), host.is_pinned()
    seconds = streams.seconds(up, down)
    return {
        "found": f"pinned: {pinned}; the same numbers came back: {same}, after {1e3 * seconds:.2f} ms",
        "right": same and pinned == place.on_gpu and seconds >= 0,
    }


def _kernel(place: Place) -> dict[str, Any]:
    rows = torch.ones(1000, 200, device=place.device)
    with choice.forced(True):
        before = bool(is_sound(rows, 100))
        rows[7, 150] = float("nan")
        after = bool(is_sound(rows, 100))
    return {"found": f"`look`: {before}, then {after}", "right": before and not after}


def _cache(place: Place) -> dict[str, Any]:
    if (folder := triton_cache.folder()) is None:
        raise Missing("none was carried: all kernels are compiled here")
    right = triton_cache.made_for() == triton_cache.here()
    return {
        "found": f"{triton_cache.kernels(folder)} kernels, made for {triton_cache.made_for()}, "
        f"here is {triton_cache.here()}",
        "fits": right,
    }
