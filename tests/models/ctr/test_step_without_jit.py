"""The step's kernels in processes of their own: as the Python functions they are, and fresh against cached."""

import os
import subprocess
import sys

import pytest

SMALL = """
from tests.models.ctr.step_batches import LAYOUTS, configure, draw
from tests.models.ctr.test_step import STEEP, check
from marius_oac.kernels.cpu import bags
assert not hasattr(bags.gather, "py_func"), "compiled after all"
config = configure(training__embedding_l2=0.3, **STEEP)
for layout in LAYOUTS:
    check(config, [draw(layout, examples=5, keys=5, seed=seed) for seed in range(2)])
"""


@pytest.mark.slow
def test_without_the_compiler():
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
    result = subprocess.run([sys.executable, "-c", SMALL], env=environment, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr


DIGESTS = """
from tests.models.ctr.step_batches import LAYOUTS, configure, draw
from tests.models.ctr.test_step import trained
for layout in LAYOUTS:
    batches = [draw(layout, examples=300, keys=500, seed=seed) for seed in range(2)]
    print(layout, trained(configure(training__embedding_l2=0.01), batches, 1, batch_norm=True))
"""


@pytest.mark.slow
def test_kernels_just_compiled_have_the_bits_of_cached_ones(tmp_path):
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", DIGESTS]
    outputs = [subprocess.check_output(command, env=environment, text=True, timeout=300) for _ in range(2)]
    assert outputs[0].count("\n") == 4 and outputs[0] == outputs[1]
