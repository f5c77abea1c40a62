"""The same tests with the kernels as Python functions: an error of the arithmetic, not of the compiler, shows alike."""

import os
import subprocess
import sys
from pathlib import Path

import numba
import pytest


@pytest.mark.skipif(numba.config.DISABLE_JIT, reason="already without the JIT")
def test_the_suite_passes_without_the_jit():
    here = Path(__file__).parent
    modules = [
        here / f"test_{name}.py"
        for name in ("atomics", "bfloat16", "initial", "memory", "page_directory", "page_kernels")
    ]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *map(str, modules)],
        cwd=here.parents[1],
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-1000:]
