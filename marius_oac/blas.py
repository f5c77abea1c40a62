"""Which kernels NumPy's OpenBLAS uses for matrix products.

OpenBLAS picks them by the processor's name when NumPy is loaded, and takes AVX2 kernels on AMD processors that it does
not know yet, although they have AVX-512: half the speed. So the package asks for the AVX-512 kernels in the environment
before NumPy is loaded; a value that the user has set stays. Kernels differ in the last bits, so runs say which ones
they used.
"""

import os
import sys

_VARIABLE = "OPENBLAS_CORETYPE"
_NEEDED = {"avx512f", "avx512dq", "avx512bw", "avx512vl", "avx512cd"}


def prefer_avx512(cpuinfo: str = "/proc/cpuinfo") -> None:
    """Sets the environment for an AMD processor with AVX-512; does nothing elsewhere, or once NumPy is loaded."""
    if "numpy" in sys.modules or _VARIABLE in os.environ:
        return
    try:
        with open(cpuinfo, encoding="utf-8") as file:
            fields = dict(line.split(":", 1) for line in file.read().split("\n\n")[0].splitlines() if ":" in line)
    except OSError:
        return
    fields = {name.strip(): value.split() for name, value in fields.items()}
    if fields.get("vendor_id") == ["AuthenticAMD"] and set(fields.get("flags", ())) >= _NEEDED:
        os.environ[_VARIABLE] = "SkylakeX"


def kernels() -> str:
    """Name of the kernels in use, such as `SkylakeX` or `Haswell`; `unknown` for another BLAS."""
    from threadpoolctl import threadpool_info

    found = {info.get("architecture", "unknown") for info in threadpool_info() if info["internal_api"] == "openblas"}
    return ", ".join(sorted(found)) or "unknown"
