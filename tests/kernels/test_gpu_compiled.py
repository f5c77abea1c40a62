"""Every kernel becomes machine code for Ampere, Hopper and Blackwell, without a GPU, by both versions of Triton."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OLDER = ROOT / ".venv-triton"
KERNELS = {"queries", "query_gradients", "candidate_gradients", "end_gradients", "block_sums", "update_rows",
           "replace_older", "look"}  # fmt: skip
CAPABILITIES = (80, 90, 100)
MOST_STACK = 128
"""Bytes of a thread's stack that a kernel may have: more are registers that did not suffice."""


def compiled(tmp_path, version):
    """What is said of each kernel: lines of `tests.kernels.compile_for_gpu`, by capability and name."""
    if version == "3.6.0" and not (OLDER / "triton").is_dir():
        pytest.skip("no Triton 3.6.0: make .venv-triton/installed")
    path = [str(ROOT), *([str(OLDER)] if version == "3.6.0" else [])]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "tests.kernels.compile_for_gpu", *map(str, CAPABILITIES)],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "0", "PYTHONPATH": os.pathsep.join(path),
             "TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=600,  # of a hang: two at once take 150 s on a slow processor with nothing beside them
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return [line.split() for line in done.stdout.splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("version", ["3.6.0", "3.7.1"])
def test_kernels_compile(tmp_path, version):
    lines = compiled(tmp_path, version)
    assert {line[1] for line in lines} == {version}
    expected = {(f"sm_{capability}", name) for capability in CAPABILITIES for name in KERNELS}
    assert {(line[2], line[3].rstrip(":")) for line in lines} == expected
    assert max(int(line[line.index("bytes") - 1]) for line in lines) <= MOST_STACK
