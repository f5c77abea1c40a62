"""What is told apart by the processor is right for aarch64, on whatever machine tests run."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from marius_oac.kernels.cpu import async_io
from marius_oac.runtime.machine import numa_memory
from tests.storage.conformance import JIT

HEADERS = {"x86_64": "x86_64-linux-gnu/asm/unistd_64.h", "aarch64": "asm-generic/unistd.h"}


@pytest.mark.parametrize("machine", HEADERS)
def test_system_calls_have_the_numbers_of_linux(machine):
    path = Path("/usr/include", HEADERS[machine])
    if not path.exists():
        pytest.skip(f"no {path}: its package is linux-libc-dev")
    numbers = {name: int(number) for name, number in re.findall(r"#define __NR_(\w+)\s+(\d+)", path.read_text())}
    queues = ("io_setup", "io_destroy", "io_submit", "io_getevents")
    assert async_io._SUPPORTED_CALLS[machine] == tuple(map(numbers.get, queues))
    assert numa_memory._CALLS[machine] == (numbers["mbind"], numbers["get_mempolicy"])


@pytest.mark.slow  # compiles all of them, for both machines
@pytest.mark.skipif(not JIT, reason="nothing is compiled")
def test_every_kernel_becomes_machine_code(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "tests.kernels.compile_for_aarch64"],
        env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), "NUMBA_OPT": "0"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    modules, kernels = map(int, done.stdout.split()[-2:])
    assert modules >= kernels > 200
