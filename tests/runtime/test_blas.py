"""The library of NumPy's matrix products."""

import json

import pytest

from marius_oac.runtime import blas


@pytest.mark.parametrize("name, value", [("_SGEMM", "no_such_function"), ("numpy", json)])
def test_a_numpy_without_a_library_that_has_the_function(monkeypatch, name, value):
    blas.sgemm.cache_clear()
    monkeypatch.setattr(blas, name, value)
    assert blas.sgemm() == 0
    blas.sgemm.cache_clear()
