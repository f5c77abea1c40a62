"""Pages that tests of the page kernels write, copy and damage."""

import numba
import numpy as np

from marius_oac.kernels.cpu import pages as page_kernels

JIT = not numba.config.DISABLE_JIT
PAGE = 4096


def checksum(page, number=0):
    return int(page_kernels.checksum(page.ctypes.data, page.nbytes, number))


def random_page(num_bytes=PAGE, seed=0):
    return np.random.default_rng(seed).integers(0, 256, num_bytes).astype(np.uint8)
