"""The GPU's kernels where tests run: on a GPU, or on CPU tensors by Triton's interpreter, as tests/conftest.py asks."""

import pytest
import torch

from marius_oac.kernels.gpu import choice
from tests.device import DEVICE

quiet = pytest.mark.filterwarnings("ignore::RuntimeWarning")
"""NumPy says where a number overflows or is none, also in lanes that are not kept."""


@pytest.fixture
def by_kernels():
    """Steps on tensors, validation and the rest take the kernels."""
    with choice.forced(True):
        yield


def moved(array):
    """A copy of an array on the device of the tests."""
    return torch.from_numpy(array.copy()).to(DEVICE)
