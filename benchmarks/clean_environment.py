"""Every benchmark runs with the matrix products that NumPy chooses for the machine.

`OPENBLAS_CORETYPE` forces other kernels, some of half the speed, and is read once, when NumPy is loaded.
"""

import os
import sys


def restart_without_coretype() -> None:
    """Says that `OPENBLAS_CORETYPE` is set, and starts this `python -m benchmarks...` again without it.

    Does nothing where it is not set, or where something else than `python -m` imports a benchmark: while Python looks
    for the module that `-m` names, `sys.argv[0]` is "-m".
    """
    if "OPENBLAS_CORETYPE" not in os.environ or sys.argv[0] != "-m":
        return
    forced = os.environ.pop("OPENBLAS_CORETYPE")
    print(f"OPENBLAS_CORETYPE={forced} is set: starting again without it", file=sys.stderr, flush=True)
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
