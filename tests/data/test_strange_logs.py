"""What `init` makes of logs of other make, without a flag: each column is read as what it is, or a line names it."""

import collections
import os

import numpy as np
import pytest

from marius_oac.config.ctr import CtrConfig
from marius_oac.config.errors import parse
from marius_oac.data.logs.fingerprints import MISSING
from marius_oac.errors import InputError
from marius_oac.prepare.init.log import LogRequest, first_log
from tests.data.published_logs import write_published
from tests.data.strange_logs import write_log
from tests.data.written_logs import read


def groups(values):
    """The number of the first row with each row's value."""
    first = {}
    return [first.setdefault(value, row) for row, value in enumerate(values)]


def is_right(column, data, block):
    """Whether a column of the log is read as what it is, or as one of what it may be."""
    return any(_is(column, role, data, block) for role in column.role.split("|"))


def _is(column, wanted, data, block):
    if wanted == "label":
        return data.label.column == column.name and block.labels.tolist() == column.values
    role = next((key for key in ("numeric", "categorical", "multi_valued")
                 if column.name in [each.name for each in getattr(data, key)]), "ignored")  # fmt: skip
    if wanted == "nothing":
        return role == "ignored" and data.label.column != column.name
    if role != {"id": "categorical", "bag": "multi_valued", "number": "numeric"}[wanted]:
        return False
    if wanted == "number":
        names = [each.name for each in data.numeric]
        found = block.numbers[:, names.index(column.name)]
        expected = np.array([-7 if each is None else each for each in column.values], np.float32)
        return bool((found == expected).all())
    if wanted == "id":
        return groups(block.keys[column.name].tolist()) == groups(column.values)
    bag = block.bags[column.name]
    flat = [each for values in column.values for each in values]
    lengths = [len(values) for values in column.values]
    return np.diff(bag.offsets).tolist() == lengths and groups(bag.keys.tolist()) == groups(flat)


def outcome(path, columns):
    """ "read", "asked" or "wrong", and what was wrong or asked."""
    try:
        text, notes = first_log([path], LogRequest(), "found.yaml")
    except InputError as error:
        return "asked", [str(error)]
    asked = [note for note in notes if not note.startswith("left out")]
    data = CtrConfig.build(parse(text, "found.yaml")[0]).data
    plain = {"transform": "none", "missing": -7.0, "indicator": False}
    data = data.model_copy(update={"numeric": tuple(each.model_copy(update=plain) for each in data.numeric)})
    try:
        block = read(path, data, block_rows=1 << 16)
    except InputError as error:
        return "asked", [str(error)]
    wrong = [column for column in columns if not is_right(column, data, block)]
    silent = [
        each for each in wrong
        if not any(note.startswith("label: " if each.role == "label" else f"column '{each.name}'") for note in asked)
    ]  # fmt: skip
    if silent:
        return "wrong", [(each.name, each.role, list(each.written[:3])) for each in silent] + [text, *asked]
    return ("asked", asked) if asked else ("read", [])


def test_some_logs_of_other_make(tmp_path):
    for seed in range(12):
        found, why = outcome(*write_log(tmp_path, seed, 400))
        assert found != "wrong", (seed, why)


@pytest.mark.slow
@pytest.mark.parametrize("write, enough", [(write_log, 0.8), (write_published, 0.6)])
def test_two_hundred_logs_of_other_make(tmp_path, capsys, write, enough):
    found = {seed: outcome(*write(tmp_path, seed, 3000)) for seed in range(int(os.environ.get("LOGS", "200")))}
    counts = collections.Counter(kind for kind, _ in found.values())
    with capsys.disabled():
        print(dict(counts))
        for seed, (kind, why) in found.items():
            if kind == "wrong" or os.environ.get("SHOW"):
                print(seed, kind, *why[:40], sep="\n   ")
    assert counts["wrong"] == 0 and counts["read"] >= enough * counts.total(), counts


def test_missing_is_no_value_of_its_own():
    assert groups([3, None, 3, None]) == groups([9, MISSING, 9, MISSING]) == [0, 1, 0, 1]
