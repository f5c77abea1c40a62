"""Where the elements of a row lie."""

import pytest

from marius_oac.storage.contract import RowLayout
from marius_oac.storage.disk.layout import frames_beside, on_demand


@pytest.mark.parametrize(
    ("dimension", "state", "dtype", "state_offset", "row_bytes"),
    [
        (100, 0, "float32", 408, 408),
        (100, 100, "float32", 408, 808),
        (1, 0, "float32", 12, 16),
        (1, 1, "float32", 12, 16),
        (100, 0, "bfloat16", 208, 208),
        (3, 1, "bfloat16", 16, 24),
        (1, 1, "bfloat16", 12, 16),
    ],
)
def test_word_value_state(dimension, state, dtype, state_offset, row_bytes):
    layout = RowLayout(dimension, state, dtype)
    assert (layout.width, layout.state_offset, layout.row_bytes) == (dimension + state, state_offset, row_bytes)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [((0, 1), "dimension"), ((1, -1), "state_width"), ((1, 1, "float16"), "value_dtype must be float32 or bfloat16")],
)
def test_impossible_layouts_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        RowLayout(*arguments)


def test_no_fewer_frames_hold_so_many_pages_beside_a_call_on_demand():
    for pages in range(300):
        frames = frames_beside(pages)
        assert frames - on_demand(frames) >= pages
        assert frames == 1 or (frames - 1) - on_demand(frames - 1) < pages
