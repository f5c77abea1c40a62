"""Which kernels NumPy's OpenBLAS uses for matrix products.

OpenBLAS picks them by the processor when NumPy is loaded, or takes those that `OPENBLAS_CORETYPE` names; AVX2 kernels
(`Haswell`) have half the speed of AVX-512 ones (`SkylakeX`). Kernels differ in the last bits, so runs say which ones
they used.
"""


def kernels() -> str:
    """Name of the kernels in use, such as `SkylakeX` or `Haswell`; `unknown` for another BLAS."""
    from threadpoolctl import threadpool_info

    found = {info.get("architecture", "unknown") for info in threadpool_info() if info["internal_api"] == "openblas"}
    return ", ".join(sorted(found)) or "unknown"
