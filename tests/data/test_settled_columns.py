"""What the first examples settle of columns and the label, and where the reading of a column is doubted."""

from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from marius_oac.config.ctr import LogConfig
from marius_oac.data.logs.doubts import doubts
from marius_oac.errors import InputError
from marius_oac.prepare.init.log import try_rows
from tests.data.written_logs import config, read, write, write_parquet


@pytest.mark.parametrize("c, b", [([69, 7], ["7|69", "7"]), (["69", "7"], [[7, 69], [7]])])
def test_features_that_share_rows_have_keys_of_one_kind(tmp_path, c, b):
    path = write_parquet(tmp_path / "a.parquet", label=[0, 1], c=c, b=b)
    shared = config(numeric=[], multi_valued=[{"name": "b", "vocabulary": "c"}])
    settled = try_rows(shared, Path(path), 2)
    assert [each.kind for each in settled.keyed()] == ["string", "string"]
    block = read(path, settled)
    assert block.bags["b"].keys.tolist() == [block.keys["c"][1], block.keys["c"][0], block.keys["c"][1]]


@pytest.mark.parametrize(
    "label, first, later, said",
    [
        ({"positive": ">50K"}, [">50K", "<=50K"], ">50K.", "is '>50K.', not '<=50K' or '>50K'"),
        ({"positive": "1"}, ["1", "-1"], "2", "is 2, not '-1' or '1'"),
        ({"positive": "b", "negative": ["a", "c"]}, ["a", "b"], "d", "is 'd', not 'a' or 'c' or 'b'"),
        ({"positive": "b", "negative": ["a", "c"]}, ["a", "b"], "c", None),
        ({"positive": "v1.0"}, ["v1.0", "v2.0"], "v2.0", None),
        ({"positive": "b"}, ["a", "b", "c"], "d", None),
        ({"positive": "b"}, ["b"], "d", None),
    ],
)
def test_a_label_that_is_neither_of_two_values_is_an_error(tmp_path, label, first, later, said):
    schema = config(label={"column": "label", **label}, numeric=[], categorical=["c"], multi_valued=[])
    path = write(tmp_path / "a.csv", "label,c\n" + "".join(f"{each},x\n" for each in first))
    settled = try_rows(schema, Path(path), 9)
    other = write(tmp_path / "b.csv", f"label,c\n{later},x\n")
    if said is None:
        assert read(other, settled).labels.tolist() == [0]
    else:
        with pytest.raises(InputError, match=rf"row 1: the label in column 'label' {said}"):
            read(other, settled)


def test_decimals_are_the_numbers_that_they_are_written_as(tmp_path):
    prices = [round(each, 2) for each in np.exp(np.random.default_rng(0).normal(5, 2, 500)).tolist()]
    column = pa.array([Decimal(f"{each:.2f}") for each in prices], pa.decimal128(20, 2))
    schema = config(numeric=[{"name": "x", "transform": "none"}], categorical=[], multi_valued=[])
    path = write_parquet(tmp_path / "a.parquet", label=[1] * 500, x=column)
    assert read(path, schema).numbers[:, 0].tolist() == np.array(prices, np.float32).tolist()


PRICES = [f"{each:.2f}" for each in np.random.default_rng(0).normal(50, 9, 400)]
IDS = [str(i * 7 % 90) for i in range(400)]


@pytest.mark.parametrize(
    "key, feature, values, said",
    [
        ("numeric", "price", PRICES, None),
        ("categorical", "price", PRICES, "is read as categorical, but looks numeric: "),
        ("categorical", {"name": "price", "kind": "string"}, PRICES, None),
        (
            "numeric",
            {"name": "price", "missing": 0},
            [*PRICES[1:], "-"],
            "'-', in 1 rows, is taken for a missing number",
        ),
        ("numeric", "user_id", IDS, "is read as numeric, but looks categorical: 90 values, named like an id"),
        ("numeric", {"name": "user_id", "transform": "log1p"}, IDS, None),
        ("categorical", "user_id", IDS, None),
        ("categorical", "tags", [f'"[{a}, 3]"' for a in IDS], "is read as categorical, but looks multi_valued: lists"),
        (
            "multi_valued",
            "tags",
            [f'"[{a}, 3]"' for a in IDS],
            "is split at '|', but lists as texts: separator: 'list'",
        ),
        ("multi_valued", {"name": "tags", "separator": "list"}, [f'"[{a}, 3]"' for a in IDS], None),
        ("categorical", "request_id", [f"r{i}" for i in range(400)], "looks row_number: another text in each row"),
        ("ignored", "moment", [str(1_600_000_000 + 7 * i) for i in range(400)], "taken for time: seconds since 1970"),
        ("categorical", "moment", [str(1_600_000_000 + 7 * i) for i in range(400)], None),  # decided against a doubt
        ("ignored", "price", PRICES, None),
    ],
)
def test_training_says_where_a_column_may_be_read_wrongly(tmp_path, key, feature, values, said):
    name = feature if isinstance(feature, str) else feature["name"]
    lines = "".join(f"{i % 3 == 0:d},{each}\n" for i, each in enumerate(values))
    path = write(tmp_path / "a.csv", f"label,{name}\n{lines}")
    found = doubts(LogConfig(**{"train": "x", "missing": ["-"], key: [feature]}), Path(path))
    assert len(found) == bool(said) and all(f"column '{name}'" in line and said in line for line in found), found
