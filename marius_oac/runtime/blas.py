"""Which kernels NumPy's OpenBLAS uses for matrix products, and on how many threads.

OpenBLAS picks them by the processor when NumPy is loaded, or takes those that `OPENBLAS_CORETYPE` names; AVX2 kernels
(`Haswell`) have half the speed of AVX-512 ones (`SkylakeX`). Kernels differ in the last bits, so runs say which ones
they used.
"""

import ctypes
import functools
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy  # whose OpenBLAS has to be loaded before libraries are looked for
from threadpoolctl import ThreadpoolController

_SGEMM = "scipy_cblas_sgemm64_"
_libraries = functools.cache(ThreadpoolController)
"""Made once, because it inspects every library that this process has loaded."""


def kernels() -> str:
    """Name of the kernels in use, such as `SkylakeX` or `Haswell`; `unknown` for another BLAS."""
    found = {info.get("architecture", "unknown") for info in _libraries().info() if info["internal_api"] == "openblas"}
    return ", ".join(sorted(found)) or "unknown"


@functools.cache
def sgemm() -> int:
    """Address of the function `cblas_sgemm` that NumPy's products use, with integers of 64 bits; 0 where that is not
    known: where NumPy brings no OpenBLAS of its own, as its packages on PyPI do."""
    own = Path(numpy.__file__).resolve().parent.with_name("numpy.libs")
    for info in _libraries().info():
        path = Path(info["filepath"])
        if info["internal_api"] == "openblas" and path.resolve().parent == own:
            with suppress(OSError, AttributeError):
                return ctypes.cast(ctypes.CDLL(str(path))[_SGEMM], ctypes.c_void_p).value or 0
    return 0


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
