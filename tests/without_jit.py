"""Tests again, with the kernels as Python functions: an error of the arithmetic, not of the compiler, shows alike."""

import os
import subprocess
import sys
from pathlib import Path

import numba
import pytest

only_with_the_jit = pytest.mark.skipif(numba.config.DISABLE_JIT, reason="already without the JIT")


def pass_without_the_jit(*what: object) -> None:
    """Runs pytest with these arguments, such as files, in a process that doesn't compile."""
    options = ["-q", "-x", "-p", "no:cacheprovider"]
    run = subprocess.run(
        [sys.executable, "-W", "error", "-m", "pytest", *options, *map(str, what)],
        cwd=Path(__file__).parents[1],
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-1000:]
