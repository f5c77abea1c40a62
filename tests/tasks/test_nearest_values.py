"""The values of a column that are nearest to one, against the oracle over what an export says: numbers, texts, bags."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from marius_oac import TrainedClickModel, train
from marius_oac.config.log_columns import CategoricalConfig
from marius_oac.data.logs.fingerprints import MISSING
from marius_oac.data.logs.tables import FeatureTable
from marius_oac.data.logs.values import keys_of, value_of
from marius_oac.errors import InputError
from marius_oac.tasks.ctr import trained
from marius_oac.tasks.ctr.names import KeyTexts
from marius_oac.tasks.ctr.nearest import ColumnRows, nearest_values
from tests.click_logs import ctr_config, small_log
from tests.evaluation import naive_nearest

NO_TEXTS = KeyTexts.read(Path("no run"))
HISTORY = ("data.ignored=[]", "data.multi_valued=[{name: tags, kind: hex}, {name: history, vocabulary: item}]")


@pytest.fixture(scope="module")
def numbers(tmp_path_factory):
    """A run whose table has rows that several keys share until they are admitted."""
    folder = tmp_path_factory.mktemp("numbers")
    log = small_log(folder / "log.parquet")
    table = pq.read_table(log)
    pq.write_table(table.set_column(table.column_names.index("tags"), "tags", pc.cast(table["user"], "string")), log)
    train(ctr_config(log, *HISTORY, "keys.admit_after=2"), folder / "run")
    with TrainedClickModel.open(folder / "run") as model:
        yield model


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """A run of a text log, where the 30 items are `i7` and the like, and one is missing."""
    folder = tmp_path_factory.mktemp("texts")
    table = pq.read_table(small_log(folder / "log.parquet")).drop_columns(["tags", "history"])
    names = ["" if item == 3 else f"i{item}" for item in table["item"].to_pylist()]
    table = table.set_column(table.column_names.index("item"), "item", [names])
    pyarrow.csv.write_csv(table, folder / "log.csv")
    train(ctr_config(folder / "log.csv", "data.ignored=[]", "data.multi_valued=[]"), folder / "run")
    with TrainedClickModel.open(folder / "run") as model:
        yield model, dict.fromkeys(names)


def exported(model, prefix):
    """{value: embedding} of a vocabulary, as an export names them; rows that are shared are named by no value."""
    (table,) = model.checkpoint.tables()
    names = model.names_in(model._folder, model.checkpoint, None)[table]
    values = np.asarray(model.checkpoint.array(table, "values")[:])[:, :4]
    found = zip(names(np.arange(len(values))), values.tolist(), strict=True)
    found = {name.removeprefix(prefix): row for name, row in found if name.startswith(prefix)}
    return {name: row for name, row in found.items() if not name.startswith("-92233") or name == str(MISSING)}


def oracle(found, value, among=None):
    """{name: similarity}, of all others."""
    names = [name for name in found if among is None or name in among or name == value]
    pairs = naive_nearest.nearest([found[name] for name in names], names.index(value), len(names))
    return {names[number]: similarity for number, similarity in pairs}


def test_integers_are_compared_with_all_of_their_vocabulary(numbers):
    found = exported(numbers, "item=")
    assert len(found) > 20
    expected = oracle(found, "7")
    answers = numbers.nearest("item", 7, k=99)
    assert dict(answers) == pytest.approx(expected, abs=1e-12) and len(answers) == len(expected)
    assert [each.similarity for each in answers] == pytest.approx(sorted(expected.values(), reverse=True))
    assert numbers.nearest("history", "7", k=3) == answers[:3] and len(numbers.nearest("item", 7)) == 10
    few = numbers.nearest("item", 7, among=[7, 5, np.int64(2), 5, 10**9])
    assert dict(few) == pytest.approx({name: expected[name] for name in ("5", "2")}) and len(few) == 2
    assert numbers.nearest("item", 7, among=[]) == []


def test_hexadecimals_are_named_as_they_are_written(numbers):
    found = {f"{int(name):x}": row for name, row in exported(numbers, "tags=").items()}
    assert "12" in found and "17" in found
    assert dict(numbers.nearest("tags", "12", k=99)) == pytest.approx(oracle(found, "12"), abs=1e-12)
    assert numbers.nearest("tags", 0x12, k=2) == numbers.nearest("tags", "0x12", k=2)


def test_texts_are_named_as_the_run_has_kept_them_or_as_they_are_given(texts, monkeypatch):
    model, names = texts
    told = model.nearest("item", "i7", k=99)
    monkeypatch.setattr(trained.KeyTexts, "read", lambda run: NO_TEXTS)
    monkeypatch.setitem(vars(model), "_texts", NO_TEXTS)
    found = exported(model, "item=")
    keys = dict(zip(names, keys_of(list(names), CategoricalConfig(name="item"), True)[0].tolist(), strict=True))
    of_key = {name: str(key) if not name else f"{key & (2**64 - 1):016x}" for name, key in keys.items()}
    named = {name: found[key] for name, key in of_key.items()}
    assert len(named) == len(found)
    expected = oracle(named, "i7")
    answers = model.nearest("item", "i7", k=99, among=[*names, "nobody"])
    assert dict(answers) == pytest.approx(expected, abs=1e-12) and "" in expected and "nobody" not in expected
    assert answers == told
    unnamed = model.nearest("item", "i7", k=99)
    assert [each.similarity for each in unnamed] == [each.similarity for each in answers]
    assert [each.name for each in unnamed] == [of_key[each.name] if each.name else "" for each in answers]
    assert dict(model.nearest("item", "", k=1, among=names))  # the missing one has an embedding, too


def test_wrong_questions_are_told(numbers, texts, tmp_path):
    for model, question, message in (
        (numbers, ("item", 10**6), "item: has no embedding of 1000000"),
        (numbers, ("item", "seven"), "item: its values are each an integer of 64 bits, not 'seven'"),
        (numbers, ("tags", "xyz"), "tags: its values are each a hexadecimal number of 64 bits, not 'xyz'"),
        (numbers, ("number", 1), "'number': no such column; those with embeddings: user, item, tags, history"),
        (numbers, ("item", 7, 0), "nearest: k must be at least 1, not 0"),
        (texts[0], ("item", 7), "item: has no embedding of 7"),
        (texts[0], ("item", "\ud800"), "item: has no embedding of "),
    ):
        with pytest.raises(InputError) as error:
            model.nearest(*question)
        assert str(error.value).startswith(message)
    log = small_log(tmp_path / "log.parquet")
    train(ctr_config(log, network="lr"), tmp_path / "run")
    with TrainedClickModel.open(tmp_path / "run") as model, pytest.raises(InputError, match="and no embeddings"):
        model.nearest("item", 7)


class Rows:
    """Rows as a checkpoint of pages has them, which are read in ascending order."""

    shape = (6, 5)
    values = np.array([[3, 1], [0, 1], [1, 0], [1, 0.5], [1, 1], [2, 1]], np.float32)

    def __len__(self):
        return 6

    def __getitem__(self, which):
        assert isinstance(which, slice) or (np.diff(which) > 0).all()
        return self.values[which]


def test_rows_that_were_dropped_or_have_another_text_are_none():
    keys = keys_of(["a", "b", "c", "d", "e", "f"], CategoricalConfig(name="item"), True)
    arrays = {"t.index.keys": keys[0], "t.index.checks": keys[1].copy(), "t.index.free": np.array([4])}
    arrays |= {"t.index.vocabularies": np.array([7, 7, 7, 7, 7, 8], np.uint16)}
    arrays["t.index.checks"][1] ^= 1  # of another text with the key of b
    checkpoint = SimpleNamespace(arrays=lambda: arrays, array=lambda table, part: Rows())
    config = ctr_config("log.parquet", "data.categorical=[item]", "data.multi_valued=[]")

    def held(number):
        table = FeatureTable("t", 2, ("item",), (), (), {"item": number}, 1)
        return ColumnRows.of("item", config, [table], checkpoint)

    assert held(7).rows.tolist() == [0, 1, 2, 3] and held(7).find(list("abcdef")).tolist() == [0, -1, 2, 3, -1, -1]
    assert held(9).find(["a", "b"]).tolist() == [-1, -1]
    assert [each.name for each in nearest_values(held(7), checkpoint, "c", 9, ["d", "e", "b", "a"], NO_TEXTS)] == [
        "a",
        "d",
    ]


def test_keys_and_values_fit():
    assert keys_of([" 7"], CategoricalConfig(name="x"), True)[0] != keys_of(["7"], CategoricalConfig(name="x"), True)[0]
    for kind, value, text in (("integer", -5, "-5"), ("hex", -1, "f" * 16), ("integer", "", ""), ("string", 7, None)):
        feature = CategoricalConfig(name="x", kind=kind)
        (key,), (check,) = (each.tolist() for each in keys_of([value], feature, False))
        assert (check != 0) == (kind == "string")
        assert value_of(key, check, feature) == (text if text is not None else f"{key & (2**64 - 1):016x}")
