"""The kernels as the Python functions they are, in a process of its own."""

import os
import subprocess
import sys

SMALL = """
import warnings
# The float32 functions rely on integers that wrap around, and NumPy's scalars warn of it.
warnings.simplefilter("ignore", RuntimeWarning)
from tests.models.batches import DECODERS, LOSSES, Shape, configure, draw
from tests.models.test_gradient import check
from tests.models.test_optimizers import OPTIMIZERS, test_five_updates_follow_the_formulas
from marius_oac.models import kernels
assert not hasattr(kernels.open_tile, "py_func"), "compiled after all"
shape = Shape(entities=5, edges=4, negatives=3, dimension=4)
for decoder in DECODERS:
    for loss in LOSSES:
        for everything in (False, True):
            config = configure(decoder, loss, everything, shape, training__regularization__kind="n3",
                               training__regularization__weight=0.1)
            check(config, draw(config, shape), threads=2)
for kind in OPTIMIZERS:
    test_five_updates_follow_the_formulas(kind, "kernel")
"""


def test_without_the_compiler():
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
    result = subprocess.run([sys.executable, "-c", SMALL], env=environment, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
