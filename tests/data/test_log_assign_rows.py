"""What the first examples decide: the rule of `auto`, parameters, medians; and what they can't change."""

import json

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from marius_oac.config.ctr import LogConfig
from marius_oac.config.log_columns import NumericConfig
from marius_oac.data.logs import settle as log_settle
from marius_oac.data.logs.columns import LogBlock
from marius_oac.data.logs.files import scan_files
from marius_oac.data.logs.settle import settle
from marius_oac.errors import InputError
from tests.data.test_log_columns import EXAMPLES
from tests.data.written_logs import read, write_parquet

DRAW = np.random.default_rng(4)
N = 2000


def settled(path, *columns, keyed=True, **keys):
    config = LogConfig(train=str(path), numeric=columns, categorical=["c"] if keyed else [], **keys)
    return settle(config, scan_files([str(path)], config))


def of(tmp_path, values, section=None, **keys):
    """The settled column of a log of these numbers, and what is said."""
    values = pa.array(values)
    path = write_parquet(tmp_path / "a.parquet", label=[1] * len(values), x=values, c=["k"] * len(values))
    found, said = settled(path, {"name": "x", **(section or {})}, **keys)
    return found.numeric[0], said


@pytest.mark.parametrize(
    "values, transform",
    [
        (DRAW.normal(40, 12, N).round(), "standardize"),
        (DRAW.uniform(-3, 5, N), "standardize"),
        (1.7e9 + DRAW.uniform(0, 100, N), "standardize"),
        (DRAW.random(N) < 0.003, "standardize"),  # two values
        (np.exp(DRAW.normal(11, 1, N)), "log1p"),
        (DRAW.pareto(1.5, N) * 1000, "log1p"),
        (-np.exp(DRAW.normal(8, 1.5, N)), "log1p"),
        (np.where(DRAW.random(N) < 0.95, 0, np.exp(DRAW.normal(8, 1, N))), "quantiles"),
        (DRAW.pareto(1.5, N) / 1e4, "quantiles"),  # rates: ln(1 + x) is x
        (1e308 * DRAW.pareto(3, N).clip(0, 1), "standardize"),
        (10.0 ** DRAW.uniform(-300, 300, N), "log1p"),
        ([None, None], "log1p"),
        ([7, 7, 7], "standardize"),
    ],
)
def test_the_rule_of_auto(tmp_path, values, transform):
    column, _ = of(tmp_path, values, missing_numbers="median")
    assert column.transform == transform and column.settled


def test_a_log_of_numbers_alone_gets_buckets(tmp_path):
    path = write_parquet(tmp_path / "a.parquet", label=[1, 0] * 500, x=np.arange(1000.0), y=[3] * 1000)
    found, _ = settled(path, "x", "y", keyed=False)
    assert [each.transform for each in found.numeric] == ["quantiles", "standardize"]
    assert len(found.numeric[0].edges) == log_settle.BUCKETS - 1


def test_center_and_scale_are_those_of_the_examples(tmp_path):
    values = DRAW.normal(40, 12, N)
    column, _ = of(tmp_path, values)
    assert column.center == pytest.approx(values.mean(), abs=1e-4) and column.scale == pytest.approx(
        values.std(), abs=1e-4
    )
    shuffled, _ = of(tmp_path, DRAW.permutation(values))
    assert shuffled == column, "sums are rounded once"
    column, _ = of(tmp_path, 1.7e9 + values)
    assert column.center == pytest.approx(1.7e9 + values.mean(), abs=1e-3), "no digit is lost before the last"
    column, _ = of(tmp_path, values, {"clip": [30, 50]})
    assert column.center == pytest.approx(values.clip(30, 50).mean(), abs=1e-4)
    column, _ = of(tmp_path, values, {"transform": "log1p", "scale": 3})
    assert column.scale == 3 and column.center == pytest.approx(np.log1p(values.clip(0)).mean(), abs=0.1)
    column, _ = of(tmp_path, [0.1 + 0.2, 0.3] * 50)
    assert (column.center, column.scale) == (0.1 + 0.2, 1), "what differs by rounding alone is constant"


@EXAMPLES
@given(st.lists(st.integers(-50, 50) | st.just(0), min_size=1, max_size=300), st.integers(2, 40))
def test_buckets_are_even_but_for_frequent_values(values, buckets):
    values = np.array(values, np.float64)
    edges = log_settle._edges(values, buckets)
    different, counts = np.unique(values, return_counts=True)
    assert (np.diff(edges) > 0).all() and np.isin(edges, different).all()
    _, sizes = np.unique(np.searchsorted(edges, values, side="right"), return_counts=True)
    assert len(sizes) == len(edges) + 1, "no bucket is empty"
    if different.size <= buckets:
        assert len(sizes) == different.size, "every value has one"
        return
    frequent = different[counts * buckets >= values.size]
    number = np.searchsorted(edges, different, side="right")
    for value in frequent:
        assert (number == number[different == value][0]).sum() == 1, "a frequent value has one of its own"
    assert len(sizes) <= buckets + len(frequent) + 1
    assert sizes.max() <= max(counts.max(), 2 * values.size / buckets + counts.max())


def test_medians(tmp_path):
    values = [1.0, None, 3.0, 100.0, float("nan"), float("inf")]
    assert of(tmp_path, values, missing_numbers="median")[0].missing == 3
    assert of(tmp_path, values, {"missing": "median"})[0].missing == 3
    assert of(tmp_path, values, {"indicator": True})[0].missing == 3, "an indicator needs some value"
    assert of(tmp_path, values, {"indicator": True, "missing": -1})[0].missing == -1
    assert of(tmp_path, values, {"indicator": True, "transform": "quantiles"})[0].missing is None
    assert of(tmp_path, values, {"transform": "none"}, missing_numbers="median")[0].missing == 3
    assert of(tmp_path, [None, None], missing_numbers="median")[0].missing == 0
    with pytest.raises(InputError, match="a.parquet: row 2: the number in column 'x' is empty or NaN"):
        of(tmp_path, values)


def test_what_is_given_is_not_decided_again(tmp_path):
    values = np.where(DRAW.random(N) < 0.9, 0, np.exp(DRAW.normal(8, 1, N)))
    for section in (
        {"transform": "none"},
        {"transform": "standardize", "center": 1, "scale": 2},
        {"transform": "quantiles", "edges": [1.5]},
        {"transform": "log_squared"},
    ):
        column, said = of(tmp_path, values, section)
        assert column == NumericConfig(name="x", **section) and not said
    for section in ({}, {"transform": "log1p"}, {"transform": "quantiles", "buckets": 7}, {"missing": "median"}):
        column, _ = of(tmp_path, values, section)
        again, said = of(tmp_path, values * 5, json.loads(column.model_dump_json()))
        assert again == column and not said


def test_only_the_first_examples_of_the_first_file_count(tmp_path, monkeypatch):
    monkeypatch.setattr(log_settle, "EXAMPLES", 100)
    first = DRAW.normal(5, 1, 100)
    columns = {"label": [1] * 200, "c": ["k"] * 200}
    path = write_parquet(tmp_path / "a.parquet", x=np.concatenate((first, np.full(100, 1e9))), **columns)
    later = write_parquet(tmp_path / "b.parquet", x=np.full(200, -1e9), **columns)
    config = LogConfig(train=[path, later], numeric=["x"], categorical=["c"])
    found, said = settle(config, scan_files([path, later], config))
    assert found.numeric[0].center == pytest.approx(first.mean(), abs=1e-3)
    assert said == ["numbers by the first 100 examples of a.parquet: standardize x"]


def test_labels_are_looked_at_before_anything_is_written(tmp_path):
    path = write_parquet(tmp_path / "a.parquet", label=["a", "b"], x=[1, 2], c=["k", "l"])
    with pytest.raises(InputError, match="row 1: the label in column 'label' is 'a', neither 0 nor 1"):
        settled(path, "x")


def test_columns_that_a_user_may_not_have_meant_are_named(tmp_path):
    assert of(tmp_path, [7, 7])[1][1] == "column 'x' is 7 in all of the first 2 examples"
    assert of(tmp_path, [None, None], missing_numbers=0)[1][1] == "column 'x' has no number in the first 2 examples"
    wide = of(tmp_path, [2**62 + 1, -(2**61), 5])[1][1]
    assert wide == "column 'x' has integers beyond 2^53, which 64-bit floats round: ids belong to categorical"
    assert len(of(tmp_path, [2**53, 1.5])[1]) == 1


def test_the_note_is_one_line_however_many_columns(tmp_path):
    names = [f"n{i}" for i in range(12)]
    columns = {name: DRAW.normal(size=50) for name in names}
    path = write_parquet(
        tmp_path / "a.parquet", label=[1] * 50, c=["k"] * 50, skewed=np.exp(DRAW.normal(9, 1, 50)), **columns
    )
    _, (said,) = settled(path, *names, "skewed")
    assert said == (
        "numbers by the first 50 examples of a.parquet: log1p skewed; "
        "standardize n0, n1, n2, n3, n4, n5, n6, n7 and 4 more"
    )


def test_what_is_settled_trains_to_small_numbers(tmp_path):
    """Numbers of any size come out between -10 and 10, most of them near 0."""
    columns = {"big": np.exp(DRAW.normal(11, 1, N)), "time": 1.7e9 + DRAW.uniform(0, 9e6, N), "one": [5.0] * N}
    path = write_parquet(tmp_path / "a.parquet", label=[1] * N, c=["k"] * N, **columns)
    found, _ = settled(path, *columns)
    block = read(path, found)
    assert isinstance(block, LogBlock) and np.abs(block.numbers).max() <= 10
    assert np.allclose(block.numbers.mean(0), 0, atol=0.01) and np.allclose(block.numbers.std(0), [1, 1, 0], atol=0.01)
