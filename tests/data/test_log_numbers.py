"""Numeric columns: transforms, missing values, buckets; and what is no number."""

import datetime
import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from marius_oac.config.ctr import LogConfig
from marius_oac.config.log_columns import NumericConfig
from marius_oac.data.logs.columns import MISSING, LogBlock, convert
from marius_oac.data.logs.numbers import LIMIT, numbers_of, transformed
from marius_oac.data.logs.place import Place
from marius_oac.errors import ConfigError, InputError
from tests.data.test_log_columns import EXAMPLES
from tests.data.written_logs import read, refused, write, write_parquet

FLOATS = st.floats(allow_nan=False, allow_infinity=False)


def numbers(*columns, **keys):
    return LogConfig(train="x", categorical=["c"], numeric=columns, **keys)


def found(config, **columns):
    batch = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
    return numbers_of(batch, config, Place("log.csv", np.arange(batch.num_rows)))


def column(transform, **keys):
    return NumericConfig(name="x", transform=transform, **keys)


@EXAMPLES
@given(st.lists(FLOATS, min_size=1, max_size=20), FLOATS, st.floats(1e-300, 1e300))
def test_numbers_are_standardised_within_limits(values, center, scale):
    for transform, first in (("standardize", float), ("log1p", lambda x: math.copysign(math.log1p(abs(x)), x))):
        one = transformed(np.array(values), column(transform, center=center, scale=scale))
        with np.errstate(over="ignore"):
            exact = [np.clip((np.float64(first(x)) - center) / scale, -LIMIT, LIMIT) for x in values]
        np.testing.assert_allclose(one, exact, rtol=1e-12, atol=1e-12)


@EXAMPLES
@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=40))
def test_log_squared_has_the_bits_that_it_always_had(values):
    before = np.array(values, np.float32).reshape(1, -1)
    large = before > 2
    before[large] = np.square(np.log(before[large]))
    now, _ = found(numbers("x", log_numbers=True), x=pa.array(values, pa.float32()))
    assert now.tobytes() == before.tobytes()


@EXAMPLES
@given(st.lists(FLOATS, min_size=2, max_size=60), st.integers(1, 59))
def test_a_value_is_the_same_whatever_it_is_read_with(values, cut):
    sections = [
        {"name": "x", "transform": "log1p", "center": 3.0, "scale": 2.0},
        {"name": "y", "transform": "quantiles", "edges": [-1.0, 0.0, 5.5]},
        {"name": "z", "transform": "standardize", "center": 0.1, "scale": 7.0},
    ]
    config, array = numbers(*sections), pa.array(values, pa.float64())

    def both(part):
        batch = {"label": pa.array([1] * len(part)), "c": pa.array(["k"] * len(part))}
        batch |= dict.fromkeys("xyz", part)
        made = pa.RecordBatch.from_arrays(list(batch.values()), names=list(batch))
        return convert(made, config, True, "log.csv", np.arange(len(part)))

    whole, cut = both(array), min(cut, len(values) - 1)
    parts = LogBlock.join([both(array.slice(0, cut)), both(array.slice(cut))])
    assert whole.numbers.tobytes() == parts.numbers.tobytes() and whole.numbers.dtype == np.float32
    assert whole.keys["y"].tolist() == parts.keys["y"].tolist()


def test_buckets_are_keys_and_what_is_missing_has_one_of_its_own():
    section = {"name": "x", "transform": "quantiles", "edges": [0, 10, 20]}
    values = pa.array([-5, 0, 9.99, 10, 19, 20, 1e300])
    _, buckets = found(numbers(section), x=values)
    assert buckets["x"].tolist() == [0, 1, 1, 2, 2, 3, 3]
    gaps = pa.array([5.0, None, float("nan"), float("-inf")])
    _, buckets = found(numbers(section | {"indicator": True}), x=gaps)
    assert buckets["x"].tolist() == [1, MISSING, MISSING, MISSING]
    _, buckets = found(numbers(section, missing_numbers=15), x=gaps)
    assert buckets["x"].tolist() == [1, 2, 2, 2]
    with pytest.raises(InputError, match="row 2: the number in column 'x' is empty or NaN"):
        found(numbers(section), x=gaps)


def test_a_missing_number_is_a_value_and_an_indicator():
    config = numbers(
        {"name": "x", "transform": "none", "indicator": True, "missing": 7},
        {"name": "y", "transform": "standardize", "center": 4, "scale": 2},
        missing_numbers=8,
    )
    values, _ = found(config, x=pa.array([1.0, None, float("inf")]), y=pa.array([None, 4.0, 0.0]))
    assert values.tolist() == [[1, 2, 0], [7, 0, 1], [7, -2, 1]] and config.num_numbers == 3


def test_values_are_limited_before_they_are_transformed():
    section = {"name": "x", "clip": [0, 100], "transform": "none"}
    assert found(numbers(section), x=pa.array([-3, 50, 10**6]))[0].ravel().tolist() == [0, 50, 100]
    section |= {"transform": "standardize", "center": 0, "scale": 50}
    assert found(numbers(section), x=pa.array([-3, 50, 10**6]))[0].ravel().tolist() == [0, 1, 2]


def test_a_transformed_column_is_read_as_64_bit_floats(tmp_path):
    """Seconds since 1970 differ by less than 32-bit floats tell apart; 1e39 is beyond them."""
    section = {"name": "x", "transform": "standardize", "center": 1.7e9, "scale": 1.0}
    path = write(tmp_path / "a.csv", "label,x,c\n1,1700000003,a\n0,1e39,b\n")
    assert read(path, numbers(section)).numbers.ravel().tolist() == [3, LIMIT]
    refused(
        path, numbers({"name": "x", "transform": "none"}), "row 2: the number in column 'x' is infinite or beyond 32"
    )


def test_texts_that_stand_for_missing_numbers(tmp_path):
    path = write(tmp_path / "a.csv", "label,x,c\n1,NA,NA\n0,null,?\n1,?,x\n0,\\N,y\n1,2,z\n")
    block = read(path, numbers({"name": "x", "transform": "none", "indicator": True, "missing": -1}))
    assert block.numbers.tolist() == [[-1, 1]] * 4 + [[2, 0]]
    assert len(set(block.keys["c"].tolist())) == 5, "in a column of texts they are texts"
    refused(path, numbers("x"), "row 1: the number in column 'x' is empty or NaN")


def test_a_number_that_means_a_missing_one_is_compared_in_the_columns_own_floats():
    schema = numbers({"name": "x", "transform": "none", "missing": 7}, missing=["0.1", "-999"])
    for kind in (pa.float32(), pa.float64()):
        values, _ = found(schema, x=pa.array([0.1, 0.5, -999], kind))
        assert values[:, 0].tolist() == [7, 0.5, 7], kind


def test_truth_values_and_wide_integers_are_numbers():
    values, _ = found(
        numbers("x", {"name": "y", "transform": "none"}), x=pa.array([True, False]), y=pa.array([2**63 - 1, 0])
    )
    assert values.tolist() == [[1, 2**63], [0, 0]]


def test_dates_are_refused_with_a_hint(tmp_path):
    day = datetime.date(2024, 5, 1)
    path = write_parquet(tmp_path / "a.parquet", label=[1], x=[day], c=["a"])
    refused(path, numbers("x"), "column 'x' holds date32[day]: numbers are needed (a date or time: make numbers of it")
    path = write_parquet(tmp_path / "b.parquet", label=[1], x=[1], c=[day])
    refused(path, numbers("x"), "column 'c' holds date32[day]: integers or texts are needed (a date or time")
    for text in ("2024-05-01", "2024-05-01 12:30:00", "5/1/24", "12:30"):
        path = write(tmp_path / "c.csv", f"label,x,c\n1,{text},a\n")
        refused(path, numbers("x"), f"column 'x' has invalid value '{text}' (a number is needed; a date or time: make")


@pytest.mark.parametrize(
    "section, said",
    [
        ({"transform": "log"}, "must be 'auto', 'none', 'standardize'"),
        ({"transform": "none", "scale": 2}, "data.numeric.0.scale: belongs to transform standardize or log1p"),
        ({"transform": "log1p", "edges": [1]}, "data.numeric.0.edges: belongs to transform quantiles, not 'log1p'"),
        ({"transform": "quantiles", "edges": [2, 2]}, "data.numeric.0.edges: must ascend"),
        ({"transform": "quantiles", "buckets": 1}, "data.numeric.0.buckets"),
        ({"transform": "standardize", "scale": 0}, "data.numeric.0.scale"),
        ({"clip": [3, 1]}, "data.numeric.0.clip: 3 is not below 1"),
        ({"missing": "mean"}, "data.numeric.0.missing"),
        ({"bucket": 3}, "unknown key 'bucket'; did you mean 'buckets'?"),
    ],
)
def test_sections_that_mean_nothing_are_refused(section, said):
    from marius_oac.config.link_prediction import Config

    tree = {"task": "ctr", "data": {"train": "x", "categorical": ["c"], "numeric": [{"name": "x", **section}]}}
    with pytest.raises(ConfigError) as caught:
        Config.build(tree)
    assert said in str(caught.value), str(caught.value)


def test_a_blank_elsewhere_changes_no_bit_of_a_number(tmp_path):
    between = "1.000000059604644775390626"  # rounded to float64 first, it would become 1
    schema, bits = numbers(column("none", missing=0), label="label"), set()
    for other in ("3", " ", "NA", " NA"):
        path = write(tmp_path / "log.csv", f"label,c,x\n1,a,{between}\n0,b,{other}\n")
        first, second = read(path, schema).numbers[:, 0]
        assert first > 1 and second == (3 if other == "3" else 0)
        bits.add(first.tobytes())
    assert len(bits) == 1
