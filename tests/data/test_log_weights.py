"""The column of weights: read with the labels, for all examples or for clicks alone; and what is no weight."""

import numpy as np
import pytest

from marius_oac.config.ctr import CtrConfig
from marius_oac.data.logs.batches import LogPlanner, LogSchedule, LogSegment
from marius_oac.data.logs.files import scan_files
from marius_oac.data.logs.tables import feature_tables
from marius_oac.errors import ConfigError
from tests.click_logs import ctr_config
from tests.data.written_logs import config, read, refused, write, write_parquet

WATCHED = ["12.5", "0", "3", "60"]
LOG = "label,x,c,b,w\n" + "".join(f"{i % 2},1,red,a,{w}\n" for i, w in enumerate(WATCHED))
PARQUET = {"label": [0, 1, 0, 1], "x": [1.0] * 4, "c": ["red"] * 4, "b": ["a"] * 4, "w": [12.5, 0, 3, 60]}


@pytest.mark.parametrize("weight, expected", [
    ("w", [12.5, 0, 3, 60]), ({"column": "w"}, [12.5, 0, 3, 60]), ({"column": "w", "of": "clicks"}, [1, 0, 1, 60]),
    (None, None),
])  # fmt: skip
def test_weights_come_with_the_labels(tmp_path, weight, expected):
    schema = config(weight=weight, **({} if weight else {"ignored": ["w"]}))
    for path in (write(tmp_path / "log.csv", LOG), write_parquet(tmp_path / "log.parquet", 3, **PARQUET)):
        found, halves = read(path, schema), read(path, schema, block_rows=3)
        for weights in (found.weights, halves.weights):
            assert (None if weights is None else weights.tolist()) == expected
        if weight:
            assert found.weights.dtype == np.float32
            picked = found.take(np.array([3, 0])), found.slice(1, 3)
            assert [each.weights.tolist() for each in picked] == [[expected[3], expected[0]], expected[1:3]]
        assert read(path, schema, with_labels=False).weights is None
    unlabelled = write(tmp_path / "new.csv", "x,c,b\n1,red,a\n")
    assert read(unlabelled, config(weight=weight), with_labels=False).weights is None


@pytest.mark.parametrize("value, said", [
    ("-1", "row 5: the weight in column 'w' is -1, not a number from 0 to 3.4e+38"),
    ("1e39", "row 5: the weight in column 'w' is 1e+39, not a number from 0 to 3.4e+38"),
    ("inf", "row 5: the weight in column 'w' is inf, not a number"),
    ("", "row 5: the weight in column 'w' is missing"),
    ("NA", "row 5: the weight in column 'w' is missing"),
    ("-999", "row 5: the weight in column 'w' is missing"),
    ("long", "row 5: column 'w' has invalid value 'long'"),
])  # fmt: skip
def test_what_is_no_weight_is_named(tmp_path, value, said):
    refused(write(tmp_path / "log.csv", f"{LOG}0,1,red,a,{value}\n"), config(weight="w", missing=["-999"]), said)


def test_columns_that_are_not_there_or_hold_no_numbers(tmp_path):
    refused(write(tmp_path / "a.csv", LOG.replace(",w\n", ",v\n")), config(weight="w"), "there is no column 'w', which")
    path = write_parquet(tmp_path / "a.parquet", **{**PARQUET, "w": [[1], [2], [3], [4]]})
    refused(path, config(weight="w"), "column 'w' holds list<")
    svm = write(tmp_path / "a.svm", "1 1:1\n")
    plain = {"numeric": [], "categorical": ["c"], "multi_valued": []}
    with pytest.raises(Exception, match="data.weight: a libsvm file has no column of weights"):
        read(svm, config(weight="w", **plain))


@pytest.mark.parametrize("change, said", [
    ("data.weight=number", "numeric: column 'number' is named here and under data.weight"),
    ("data.weight=label", "weight: column 'label' is named here and under data.label"),
    ("data.weight={column: w, of: some}", "data.weight.of: must be 'all' or 'clicks', not 'some'"),
    ("data.weight={of: clicks}", "data.weight.column: this key is required"),
])  # fmt: skip
def test_settings_that_can_not_be(change, said):
    with pytest.raises(ConfigError, match=said.replace("[", r"\[")) as error:
        ctr_config("x.parquet", change)
    assert "\n" not in str(error.value)


class Numbers:
    """Rows of keys: none is known before, all are 0."""

    capacity, counts_keys = 1, False

    def find(self, keys, checks, *more):
        return np.zeros(len(keys), np.int64)


@pytest.mark.parametrize("shuffle", [0, 4])
def test_a_batch_has_the_weights_of_its_examples(tmp_path, shuffle):
    rows = [(i % 2, i / 4) for i in range(11)]
    text = "label,c,w\n" + "".join(f"{label},k,{weight}\n" for label, weight in rows)
    path = write(tmp_path / "log.csv", text)
    tree = {"task": "ctr", "data": {"train": path, "categorical": ["c"], "weight": "w", "shuffle": shuffle},
            "training": {"batch_size": 4}}  # fmt: skip
    settings = CtrConfig.build(tree)
    files = scan_files([path], settings.data)
    schedule = LogSchedule(files, [LogSegment(0, 1, 1)], 4)
    tables = feature_tables(settings, weights_only=False)
    planner = LogPlanner(settings, files, schedule, tables, [Numbers() for _ in tables])
    found = []
    for number in range(3):
        data = planner.plan(number).data
        found += zip(data.labels.tolist(), data.weights.tolist(), strict=True)
    planner.close()
    assert sorted(found, key=lambda each: each[1]) == rows and (found == rows) == (shuffle == 0)
