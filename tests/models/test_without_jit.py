"""The kernels in processes of their own: as the Python functions they are, and fresh against cached."""

import os
import subprocess
import sys

import pytest

SMALL = """
import warnings
import numpy as np
# The float32 functions rely on integers that wrap around, and NumPy's scalars warn of it.
warnings.simplefilter("ignore", RuntimeWarning)
from tests.models.batches import DECODERS, LOSSES, Shape, configure, draw
from tests.models.test_gradient import check
from tests.models.test_optimizers import OPTIMIZERS, test_five_updates_follow_the_formulas
from marius_oac.kernels.cpu import edges as kernels
assert not hasattr(kernels.open_tile, "py_func"), "compiled after all"
shape = Shape(entities=5, edges=4, negatives=3, dimension=4)
for decoder in DECODERS:
    for loss in LOSSES:
        for everything in (False, True):
            config = configure(decoder, loss, everything, shape, training__regularization__kind="n3",
                               training__regularization__weight=0.1)
            check(config, draw(config, shape), threads=2)
from tests.models import test_bfloat16 as rounded
for decoder in rounded.DECODERS:
    for everything in (False, True):
        config = configure(decoder, "softmax", everything, shape, **rounded.BFLOAT16)
        batch = draw(config, shape)
        for mine, theirs in zip(rounded.written_out(config, batch, 2), rounded.exact(config, batch)):
            assert theirs is None or np.abs(mine - theirs).max() <= 2**-6 * np.abs(theirs).max()
left, right, into = rounded.numbers(9, 7), rounded.numbers(7, 21), np.empty((9, 21), np.float32)
rounded.ByBfloat16()(left, right, into)
rounded.check(into, left, right)
for kind in OPTIMIZERS:
    test_five_updates_follow_the_formulas(kind, "kernel")
"""


@pytest.mark.slow
def test_without_the_compiler():
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
    result = subprocess.run([sys.executable, "-c", SMALL], env=environment, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr


DIGESTS = """
from tests.models.batches import DECODERS, LOSSES, Shape, configure, draw
from tests.models.test_link_prediction import trained
shape = Shape(entities=60, relations=5, edges=61, chunks=2, negatives=33, dimension=46)
for decoder in DECODERS:
    for loss in LOSSES:
        config = configure(decoder, loss, shape=shape, training__regularization__kind="n3",
                           training__regularization__weight=0.1)
        print(decoder, loss, trained(config, [draw(config, shape, seed) for seed in range(2)], 1))
"""


@pytest.mark.slow
def test_kernels_just_compiled_have_the_bits_of_cached_ones(tmp_path):
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", DIGESTS]
    outputs = [subprocess.check_output(command, env=environment, text=True, timeout=300) for _ in range(2)]
    assert outputs[0].count("\n") == 24 and outputs[0] == outputs[1]
