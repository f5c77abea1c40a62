import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marius_oac.data.logs import lines as log_lines

LINES = st.lists(st.sampled_from(["", "a", "bc", "d" * 31, "e" * 32, "f" * 33, "g" * 100]), max_size=30)


@settings(deadline=None, max_examples=100)
@given(
    LINES,
    st.sampled_from(["\n", "\r", "\r\n"]),
    st.booleans(),
    st.integers(0, 9),
    st.integers(1, 9),
    st.integers(1, 70),
)
def test_rows_are_the_lines_that_are_not_blank(tmp_path_factory, lines, end, ended, first, rows, piece):
    path = tmp_path_factory.getbasetemp() / "any.txt"
    path.write_bytes((end.join(lines) + end * ended).encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_lines, "TEXT_BYTES", piece)
        blocks = list(log_lines.blocks_of_lines(path, first, rows))
    expected = [line for line in lines if line][first:]
    assert [block.first for block in blocks] == list(range(first, first + len(expected), rows))
    assert all(len(block) == rows for block in blocks[:-1])
    found = [block.pick(np.array([row])).tobytes() for block in blocks for row in range(len(block))]
    assert [line.strip(b"\r\n").decode() for line in found] == expected
    for block in blocks:
        every = np.arange(len(block))
        assert block.pick(every[::2]).tobytes() == b"".join(block.pick(every[i : i + 1]).tobytes() for i in every[::2])
        assert block.pick(every).tobytes() == b"".join(block.pick(every[i : i + 1]).tobytes() for i in every)
        assert block.text[-1] in b"\r\n"
