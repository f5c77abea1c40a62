"""A model meets files whose columns have other types than those that it was trained on: the same ids are the same, what
can't be converted exactly is refused, and ids that the model does not know are told."""

import hashlib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
import yaml

from marius_oac.config.ctr import LogConfig
from marius_oac.data.logs.fingerprints import MISSING
from marius_oac.runs.folder.folder import RunFolder
from marius_oac.tasks.ctr.distinct import DistinctIds
from tests.run_folders import says

ROWS = 1200
DRAW = np.random.default_rng(3)
USERS, ITEMS = DRAW.integers(1, 70, ROWS), DRAW.integers(1, 40, ROWS)
TASTE = DRAW.normal(0, 1.5, 70)[USERS] + DRAW.normal(0, 1.5, 40)[ITEMS]
CLICKS = (DRAW.random(ROWS) < 1 / (1 + np.exp(-TASTE))).astype(int)
TYPES = {
    "integers": lambda ids: pa.array(ids),
    "doubles": lambda ids: pa.array(ids.astype(float)),
    "decimals": lambda ids: pa.array(ids).cast(pa.decimal128(21, 2)),
    "texts": lambda ids: pa.array(ids).cast(pa.string()),
    "bytes": lambda ids: pa.array(ids).cast(pa.string()).cast(pa.binary()),
}
KIND = {
    "integers": "integer",
    "doubles": "integer",
    "decimals": "integer",
    "texts": "string",
    "bytes": "string",
    "csv": "string",
}
SPELLED = {"csv": "{}", "floats.csv": "{}.0", "blanks.csv": " {} ", "zeros.csv": "{:05d}"}


def table(make, users=USERS):
    return pa.table({"user_id": make(users), "item_id": make(ITEMS), "click": CLICKS})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The same examples in files of every type."""
    folder = tmp_path_factory.mktemp("files")
    for name, make in TYPES.items():
        pq.write_table(table(make), folder / f"{name}.parquet")
    for name, form in SPELLED.items():
        columns = [[form.format(each) for each in ids] for ids in (USERS, ITEMS)]
        made = pa.table({"user_id": columns[0], "item_id": columns[1], "click": CLICKS})
        pa_csv.write_csv(made, folder / name.replace("csv", "log.csv") if name == "csv" else folder / name)
    return folder


def trained(command, folder, train, out, *more):
    name = {"csv": "log.csv"}.get(train, f"{train}.parquet")
    tree = {
        "task": "ctr", "device": "cpu", "threads": 1,
        "data": {"train": [str(folder / name), *more], "categorical": ["user_id", "item_id"], "label": "click"},
        "model": {"network": "fm", "dimension": 4}, "training": {"epochs": 2, "batch_size": 100},
        "keys": {"capacity": 2000},
    }  # fmt: skip
    Path(out.with_suffix(".yaml")).write_text(yaml.safe_dump(tree))
    code, _, err = command("train", out.with_suffix(".yaml"), "--out", out)
    assert code == 0, err
    return err


def predicted(command, run, data, out):
    code, _, err = command("predict", run, "--data", data, "--out", out)
    assert code == 0, err
    return hashlib.sha256(pq.read_table(out, columns=["probability"]).column(0).to_numpy().tobytes()).hexdigest(), err


@pytest.mark.parametrize("train", ["integers", "csv", "doubles"])
def test_a_model_reads_the_same_ids_in_columns_of_every_type(command, folder, tmp_path, train):
    quiet = trained(command, folder, train, tmp_path / "run")
    assert not [line for line in quiet if "column" in line]
    kinds = {each.kind for each in RunFolder.open(tmp_path / "run").config.data.categorical}
    assert kinds == {KIND[train]}
    files = [folder / f"{name}.parquet" for name in TYPES] + [folder / "log.csv", folder / "floats.csv"]
    found = [predicted(command, tmp_path / "run", path, tmp_path / f"{n}.parquet") for n, path in enumerate(files)]
    found.append(predicted(command, tmp_path / "run", folder / "blanks.csv", tmp_path / "blanks.parquet"))
    assert len({digest for digest, _ in found}) == 1
    said = [[line for line in err if "column" in line] for _, err in found]
    assert not any(said[: len(TYPES) + 1])
    assert says(said[-2][:1], "column 'user_id': '") or "is read as" in said[-2][0]
    assert "is read as" in said[-1][0]
    digest, err = predicted(command, tmp_path / "run", folder / "zeros.csv", tmp_path / "zeros.parquet")
    assert (digest == found[0][0]) == (KIND[train] == "integer")
    if KIND[train] == "integer":
        assert any("column 'user_id': '000" in line and "is read as " in line for line in err)
    else:
        assert any("column 'user_id': none of its 69 distinct ids is known to the model" in line for line in err)


def test_files_of_other_types_are_trained_on_together_and_later(command, folder, tmp_path):
    trained(command, folder, "integers", tmp_path / "run", str(folder / "texts.parquet"))
    keys = RunFolder.open(tmp_path / "run").summary()
    trained(command, folder, "integers", tmp_path / "alone")
    assert keys["tables.embeddings_4.keys"] == RunFolder.open(tmp_path / "alone").summary()["tables.embeddings_4.keys"]
    code, _, err = command("resume", tmp_path / "alone", "--data", folder / "log.csv")
    assert code == 0, err
    after = RunFolder.open(tmp_path / "alone").summary()
    assert after["tables.embeddings_4.keys"] == keys["tables.embeddings_4.keys"]
    pq.write_table(table(lambda ids: pa.array([f"u{each}" for each in ids])), tmp_path / "named.parquet")
    for argv in (["eval", tmp_path / "run", "--data"], ["resume", tmp_path / "run", "--data"]):
        code, _, err = command(*argv, tmp_path / "named.parquet")
        assert code == 2 and says(err, "named.parquet: row 1: column 'user_id' holds 'u", "not an integer")


@pytest.mark.parametrize("other, share", [(0.3, None), (0.6, "only "), (1.0, "none ")])
def test_ids_that_the_model_does_not_know_are_told(command, folder, tmp_path, other, share):
    trained(command, folder, "integers", tmp_path / "run")
    users = np.where(69 * other >= USERS, USERS + 1000, USERS)
    pq.write_table(table(pa.array, users), tmp_path / "other.parquet")
    for argv in (["eval"], ["predict", "--out", tmp_path / "out.parquet"]):
        code, _, err = command(argv[0], tmp_path / "run", "--data", tmp_path / "other.parquet", *argv[1:])
        said = [line for line in err if "known to the model" in line]
        assert code == 0 and len(said) == bool(share), err
        if share:
            assert f"column 'user_id': {share}" in said[0] and " of its 69 distinct ids" in said[0] and "10" in said[0]


def test_a_missing_id_is_none_of_those_that_are_counted():
    for unknown, said in [([True, False, True], []), ([True, True, False], ["none of its 2 distinct ids is known"])]:
        distinct = DistinctIds(LogConfig(train="x", categorical=[{"name": "c", "kind": "integer"}]))
        keys = SimpleNamespace(keys=np.array([7, 9, MISSING]), examples=3, offsets={})
        distinct.add(SimpleNamespace(name="t", singles=["c"], bags=[], sequences=[]), keys, np.array(unknown))
        found = list(distinct.lines())
        assert len(found) == len(said) and all(part in line for part, line in zip(said, found, strict=True)), found
