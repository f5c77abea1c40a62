"""Gradient aggregation with the kernels as Python functions: an error of the arithmetic, not of the compiler, shows."""

import os
import subprocess
import sys
from pathlib import Path

import numba
import pytest


@pytest.mark.skipif(numba.config.DISABLE_JIT, reason="already without the JIT")
def test_aggregation_without_the_jit():
    here = Path(__file__).parent
    tests = here / "test_aggregator.py"
    run = subprocess.run(
        [sys.executable, "-W", "error", "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", tests],
        cwd=here.parents[1],
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-1000:]
