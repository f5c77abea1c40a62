"""What a label may be, and what is said where it can't be told."""

import pyarrow as pa
import pytest

from marius_oac.config.ctr import LogConfig
from marius_oac.config.link_prediction import Config
from marius_oac.data.logs.guess_label import guess_label
from marius_oac.data.logs.sample import read_sample
from marius_oac.errors import ConfigError
from tests.data.written_logs import read, refused, write, write_parquet


def labelled(label="label"):
    return LogConfig(train="x", categorical=["c"], label=label)


def texts(folder, *values):
    return write(folder / "a.csv", "label,c\n" + "".join(f"{value},k\n" for value in values))


@pytest.mark.parametrize(
    "yes, no",
    [
        ("true", "false"),
        ("True", "FALSE"),
        ("yes", "no"),
        ("t", "f"),
        ("Y", "N"),
        ("1", "0"),
        ("1.0", "+0"),
        (" 1", "0 "),
    ],
)
def test_known_texts(tmp_path, yes, no):
    path = texts(tmp_path, yes, no, no, yes)
    assert read(path, labelled()).labels.tolist() == [1, 0, 0, 1]
    columns = {"label": [yes, no], "c": ["k", "k"]}
    assert read(write_parquet(tmp_path / "a.parquet", **columns), labelled()).labels.tolist() == [1, 0]


def test_the_value_that_means_1_is_named(tmp_path):
    path = texts(tmp_path, "<=50K", ">50K", " >50K", "unknown")
    assert read(path, labelled({"column": "label", "positive": ">50K"})).labels.tolist() == [0, 1, 1, 0]
    path = texts(tmp_path, "5", "4.0", "3.5", "1")
    assert read(path, labelled({"column": "label", "positive": [4, 5]})).labels.tolist() == [1, 1, 0, 0]
    for values in ([1, -1, -1], [1.0, -1.0, -1.0], pa.array(["1", "-1", "-1"]).dictionary_encode()):
        path = write_parquet(tmp_path / "a.parquet", label=values, c=["k"] * 3)
        assert read(path, labelled({"column": "label", "positive": 1})).labels.tolist() == [1, 0, 0]
    path = write_parquet(tmp_path / "a.parquet", label=[True, False], c=["k"] * 2)
    assert read(path, labelled({"column": "label", "positive": "false"})).labels.tolist() == [0, 1]


def test_numbers_above_one_mean_1(tmp_path):
    label = {"column": "label", "above": 2}
    path = texts(tmp_path, "2", "2.0001", "1e3", "-7", "inf")
    assert read(path, labelled(label)).labels.tolist() == [0, 1, 1, 0, 1]
    for values in ([2, 3, -3], [2.0, 2.5, -9.0], pa.array(["2", "3", "1"]).dictionary_encode()):
        path = write_parquet(tmp_path / "a.parquet", label=values, c=["k"] * 3)
        assert read(path, labelled(label)).labels.tolist() == [0, 1, 0]
    said = "row 2: the label in column 'label' is 'much'; numbers are needed, as data.label.above is given"
    refused(texts(tmp_path, 1, "much"), labelled(label), said)
    refused(texts(tmp_path, 1, "nan"), labelled(label), "row 2: the label in column 'label' is nan")
    many = texts(tmp_path, *(f"{i / 7}" for i in range(99)))
    refused(
        many, labelled(), "values and more: say above which number it means 1, as in label: {column: label, above: 0.1"
    )
    tree = {"task": "ctr", "data": {"train": "x", "categorical": ["c"], "label": {**label, "positive": 1}}}
    with pytest.raises(ConfigError, match="above: does not go with positive"):
        Config.build(tree)


def test_a_text_label_is_listed_and_offered(tmp_path):
    path = texts(tmp_path, "<=50K", ">50K", "<=50K")
    said = "row 1: the label in column 'label' is '<=50K', neither 0 nor 1; it has values '<=50K', '>50K': "
    refused(path, labelled(), said + "say which means 1, as in label: {column: label, positive: '>50K'}")
    refused(texts(tmp_path, 1, 0, 2, 1, 0), labelled(), "row 3: the label in column 'label' is 2, neither 0 nor 1")
    refused(texts(tmp_path, -1, 1, 1), labelled(), "as in label: {column: label, positive: -1}")
    refused(texts(tmp_path, *(f"v{i}" for i in range(99))), labelled(), "the column has 99 different values and more")
    refused(texts(tmp_path, *"abcdefg"), labelled(), "it has values 'a', 'b', 'c', 'd', 'e', ...: say which")


@pytest.mark.parametrize("positive", [None, "1"])
def test_a_missing_label_is_none_of_them(tmp_path, positive):
    label = {"column": "label", "positive": positive} if positive else "label"
    refused(texts(tmp_path, 1, "", 0), labelled(label), "row 2: column 'label' has no label")
    columns = {"label": [1, None], "c": ["k"] * 2}
    refused(write_parquet(tmp_path / "a.parquet", **columns), labelled(label), "row 2: column 'label' has no label")
    refused(write_parquet(tmp_path / "b.parquet", **columns | {"label": pa.nulls(2)}), labelled(label), "row 1: column")


def test_what_is_no_label_is_refused(tmp_path):
    path = write_parquet(tmp_path / "a.parquet", label=[[1]], c=["k"])
    refused(path, labelled(), "column 'label' holds list<element: int64>: numbers, truth values or texts are needed")
    tree = {"task": "ctr", "data": {"train": "x", "categorical": ["c"], "label": {"column": "label", "positive": True}}}
    with pytest.raises(ConfigError, match="data.label.positive: must be text, not true"):
        Config.build(tree)


@pytest.mark.parametrize("columns, name, told", [
    ({"user": "abc", "clicked": "010", "is_mobile": "011"}, "clicked", False),
    ({"user": "abc", "bought": "010"}, "bought", False),
    ({"user": "abc", "bought": "010", "kind": "xyx"}, "bought", False),
    ({"user": "abc", "bought": "010", "weekend": "110"}, "bought", True),  # which may be what is meant
    ({"user": "abc", "bought_online": "010"}, "bought_online", True),
    ({"user": "abc", "is_mobile": "010"}, "is_mobile", True),
    ({"user": "abc", "is_mobile": "010", "bought": "011"}, "bought", True),
    ({"user": "abc", "weekend": "010"}, "weekend", True),
])  # fmt: skip
def test_a_label_that_its_name_does_not_tell_beyond_doubt_is_told(tmp_path, columns, name, told):
    path = tmp_path / "log.csv"
    path.write_text("\n".join([",".join(columns), *map(",".join, zip(*columns.values(), strict=True))]) + "\n")
    found = guess_label(read_sample(path))
    assert found.name == name and bool(found.line) == told
