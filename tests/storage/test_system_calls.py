import errno
import os
import runpy

import numba
import numpy as np
import pytest

from marius_oac.kernels.cpu import system_calls


@pytest.fixture
def uncompiled(monkeypatch):
    """The module's names where nothing is compiled."""
    monkeypatch.setattr(numba.config, "DISABLE_JIT", 1)
    return runpy.run_path(system_calls.__file__)


def test_without_the_compiler_pages_of_several_places_are_written_and_read(tmp_path, uncompiled):
    whole = np.arange(1, 41, dtype=np.uint8)
    parts = [whole[:3], whole[8:13], whole[32:33]]
    vectors = np.array([(part.ctypes.data, part.nbytes) for part in parts])
    with open(tmp_path / "pages", "w+b") as file:
        assert uncompiled["pwritev"](file.fileno(), vectors.ctypes.data, 2, 4) == 8
        assert os.pread(file.fileno(), 100, 0) == bytes([0, 0, 0, 0, 1, 2, 3, 9, 10, 11, 12, 13])
        whole[:] = 0
        assert uncompiled["preadv"](file.fileno(), vectors.ctypes.data, 3, 5) == 7  # the file ends within the second
    assert [part.tolist() for part in parts] == [[2, 3, 9], [10, 11, 12, 13, 0], [0]]
    assert whole.sum() == sum([2, 3, 9, 10, 11, 12, 13])


def test_without_the_compiler_errors_are_negative_numbers(uncompiled):
    for name in ("preadv", "pwritev"):
        assert uncompiled[name](-1, 0, 0, 0) == -errno.EBADF
    assert uncompiled["system_call"](0, 0, 0, 0, 0, 0) == -errno.ENOSYS
