"""What the values of a column are counted as, before anything is guessed of it."""

import pyarrow as pa

from marius_oac.data.logs.evidence import Evidence


def test_a_whole_number_counts_with_and_without_a_point():
    found = Evidence.of(pa.array(["69", "7", "69.0", "69.0", None, "?"]))
    assert (found.texts.to_pylist(), found.counts.tolist()) == (["69", "7"], [3, 1])
    assert (found.rows, found.missing, found.merged) == (6, 2, "69.0")


def test_the_median_is_that_of_the_rows():
    assert Evidence.of(pa.array(["9", "1", "1", "1", "5"])).median == 1
