"""Rounding to bfloat16, against torch's."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marius_oac.kernels.cpu.bfloat16 import bfloat16_bits, round_to_bfloat16
from tests.storage.naive import rounded

EDGES = np.array(
    [0x00000000, 0x80000000, 0x3F808000, 0x3F818000, 0x3F808001, 0x3F807FFF, 0x7F7FFFFF, 0x7F7F7FFF, 0x7F800000,
     0xFF800000, 0xFF7FFFFF, 0x00000001, 0x00008000, 0x00018000, 0x80008001],
    np.uint32,
).view(np.float32)  # fmt: skip


@settings(deadline=None, max_examples=100)
@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=50))
def test_rounds_as_torch_does(bits):
    values = np.array(bits, np.uint32).view(np.float32)
    values = np.where(np.isnan(values), np.float32(1), values)[None]
    expected = rounded(values)
    round_to_bfloat16(values)
    np.testing.assert_array_equal(values.view(np.uint32), expected.view(np.uint32))


def test_ties_overflow_and_subnormals():
    values = EDGES.copy()[None]
    round_to_bfloat16(values)
    np.testing.assert_array_equal(values[0].view(np.uint32), rounded(EDGES).view(np.uint32))
    np.testing.assert_array_equal(bfloat16_bits(values)[0], values[0].view(np.uint32) >> 16)


def test_nan_stays_nan():
    values = np.array([[0x7F800001, 0xFFFFFFFF, 0x7FC00000, 0xFF800001]], np.uint32).view(np.float32)
    round_to_bfloat16(values)
    assert np.isnan(values).all()


def test_rounds_the_value_columns_of_a_staging_buffer_only():
    buffer = np.random.default_rng(0).random((5, 7), np.float32)
    before = buffer.copy()
    round_to_bfloat16(buffer[:, :4])
    np.testing.assert_array_equal(buffer[:, :4], rounded(before[:, :4]))
    np.testing.assert_array_equal(buffer[:, 4:], before[:, 4:])
    assert (buffer[:, :4] != before[:, :4]).any()
    round_to_bfloat16(buffer[:0])


@pytest.mark.parametrize(
    "values",
    [np.zeros((2, 2)), np.zeros(3, np.float32), np.zeros((3, 4), np.float32)[:, ::2], np.zeros((3, 4), np.float32).T],
)
def test_what_it_cannot_round_is_refused(values):
    with pytest.raises(ValueError, match="values"):
        round_to_bfloat16(values)


def test_read_only_values_are_refused():
    values = np.zeros((2, 2), np.float32)
    values.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        round_to_bfloat16(values)
