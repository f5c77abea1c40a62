"""Places and routes with the kernels as Python functions: an error of the arithmetic, not of the compiler, shows."""

import os
import subprocess
import sys
from pathlib import Path

import numba
import pytest


@pytest.mark.skipif(numba.config.DISABLE_JIT, reason="already without the JIT")
@pytest.mark.parametrize("what", [["test_shards.py"], ["test_pooling.py", "-k", "gradients and batch or picked"]])
def test_places_and_routes_without_the_jit(what):
    here = Path(__file__).parent
    run = subprocess.run(
        [
            sys.executable,
            "-W",
            "error",
            "-m",
            "pytest",
            "-q",
            "-x",
            "-p",
            "no:cacheprovider",
            here / what[0],
            *what[1:],
        ],
        cwd=here.parents[1],
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-1000:]
