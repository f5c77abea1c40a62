"""Which kernels NumPy's OpenBLAS uses for matrix products, and on how many threads.

OpenBLAS picks them by the processor when NumPy is loaded, or takes those that `OPENBLAS_CORETYPE` names; AVX2 kernels
(`Haswell`) have half the speed of AVX-512 ones (`SkylakeX`). Kernels differ in the last bits, so runs say which ones
they used.
"""

import functools
from collections.abc import Iterator
from contextlib import contextmanager

import numpy  # noqa: F401  # whose OpenBLAS has to be loaded before libraries are looked for
from threadpoolctl import ThreadpoolController

_libraries = functools.cache(ThreadpoolController)
"""Made once, because it inspects every library that this process has loaded."""


def kernels() -> str:
    """Name of the kernels in use, such as `SkylakeX` or `Haswell`; `unknown` for another BLAS."""
    found = {info.get("architecture", "unknown") for info in _libraries().info() if info["internal_api"] == "openblas"}
    return ", ".join(sorted(found)) or "unknown"


@contextmanager
def one_thread_per_product() -> Iterator[None]:
    """Within the block every matrix product of NumPy runs on the thread that calls it, in the whole process.

    Raises:
        RuntimeError: another thread has set a limit of threadpoolctl, which would silently disable this one.
    """
    with _libraries().limit(limits=1, user_api="blas"):
        if any(info["num_threads"] != 1 for info in _libraries().info() if info["user_api"] == "blas"):
            raise RuntimeError(
                "another thread has set how many threads BLAS uses (threadpoolctl): train in that thread, or let it end"
            )
        yield
