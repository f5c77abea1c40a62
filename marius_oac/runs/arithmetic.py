"""What decides the last bits of a run beside its configuration and data: what is installed, and the processor.

Whether two installations compute the same bits can't be told from their versions. So each process has a small batch of
made-up numbers trained by a step of the run's own (`batch`), and compares what comes of it.
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from marius_oac.config.sections import ComputeConfig
from marius_oac.runtime.files.untrusted import Count, Described, Sha256
from marius_oac.types import BatchData, Step

_NAMES = {
    "python": "Python", "torch": "torch", "numpy": "NumPy", "numba": "Numba", "llvm": "LLVM", "target": "kernels for",
    "products": "products by", "vectors": "torch's vectors", "threads": "threads",
}  # fmt: skip


@dataclass(frozen=True)
class Sample:
    """A small batch: a step that has trained nothing, its data, and the shapes of the rows, value and state of each
    table: (rows, floats of value, floats of state)."""

    step: Step
    data: BatchData
    shapes: Sequence[tuple[int, int, int]]


class Arithmetic(Described):
    """What `run.json` records; `batch` is the SHA-256 of the rows and dense parameters that a `Sample` ends with; None:
    on a GPU, or with the user's own code."""

    python: str
    torch: str
    numpy: str
    numba: str
    llvm: str
    target: str
    products: str
    vectors: str
    threads: Count
    batch: Sha256 | None = None

    @classmethod
    def here(cls, compute: ComputeConfig, threads: int, sample: Sample | None) -> Arithmetic:
        """That of this process. Closes the sample's step."""
        import llvmlite.binding  # reading a run needs none of these
        import numba
        import torch
        from numba.core.registry import cpu_target

        from marius_oac.models.compute.multiply import kernels_of

        return cls(
            python=platform.python_version(), torch=torch.__version__, numpy=np.__version__, numba=numba.__version__,
            llvm=".".join(map(str, llvmlite.binding.llvm_version_info)),
            target=cpu_target.target_context.codegen()._get_host_cpu_name(), products=kernels_of(compute),
            vectors=torch.backends.cpu.get_cpu_capability(), threads=threads,
            batch=None if sample is None else digest_of(sample),
        )  # fmt: skip

    def computes_as(self, other: Arithmetic) -> bool:
        """Whether a batch ends with the same bits, as far as that is known, and products have the same kernels: these
        may differ for larger matrices alone."""
        known = None not in (self.batch, other.batch)
        return self.products == other.products and (self.batch == other.batch or not known)

    def elsewhere(self, compute: ComputeConfig) -> str:
        """What this process has installed otherwise; empty: nothing."""
        here = self.here(compute, self.threads, None)
        return "" if here == self.model_copy(update={"batch": None}) else here.unlike(self)

    def unlike(self, other: Arithmetic) -> str:
        """What differs, in words: `Python 3.12.1, not 3.11.7; ...`."""
        pairs = ((name, getattr(self, key), getattr(other, key)) for key, name in _NAMES.items())
        found = [f"{name} {here}, not {there}" for name, here, there in pairs if here != there]
        return "; ".join(found) or "the same versions on the same kind of processor"


def difference(ours: Arithmetic | None, theirs: Arithmetic | None) -> str:
    """What two runs had installed otherwise, where other bits are to be expected of it; else empty."""
    if ours is None or theirs is None or ours.computes_as(theirs):
        return ""
    return ours.unlike(theirs)


def digest_of(sample: Sample) -> str:
    """See `Arithmetic.batch`."""
    rows = [made_rows(*shape) for shape in sample.shapes]
    found = hashlib.sha256()
    try:
        sample.step.compute(rows, sample.data, 0)
        for array in rows:
            found.update(array.tobytes())
        for name, tensor in sorted(sample.step.dense_state().items()):
            found.update(name.encode() + tensor.contiguous().numpy().tobytes())
    finally:
        sample.step.close()
    return found.hexdigest()


def made_rows(count: int, value: int, state: int) -> np.ndarray:
    """float32 [count, value + state]; state is positive, as sums of squares are."""
    return np.concatenate((numbers(count, value), np.abs(numbers(count, state)) + np.float32(0.5)), 1)


def numbers(*shape: int) -> np.ndarray:
    """float32 in [-0.5, 0.5), made from integers alone: the same with every library."""
    mixed = (np.arange(np.prod(shape), dtype=np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    return ((mixed >> np.uint64(40)).astype(np.float32) / np.float32(1 << 24) - np.float32(0.5)).reshape(shape)


def picked(count: int, among: int, stride: int) -> Any:
    """`count` numbers below `among`, int64, far from each other."""
    return np.arange(count) * stride % among
