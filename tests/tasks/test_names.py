"""The texts behind keys: against dictionaries of Python, in logs of all types, after a resume, damage and forgery."""

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from marius_oac import TrainedClickModel, resume, train, verify
from marius_oac.config.ctr import CtrConfig
from marius_oac.data.logs.columns import convert, texts_of
from marius_oac.data.logs.fingerprints import fingerprints
from marius_oac.data.logs.run_log import RunLog
from marius_oac.errors import Interrupted
from marius_oac.runtime.files.atomic import sealed
from marius_oac.tasks.ctr import names
from marius_oac.tasks.ctr.names import _Wanted, keep_names

USERS = ["ann", "bob=2", "  carl ", "dörte", "x" * 40]
COLUMNS = {
    "text": pa.array(USERS),
    "large": pa.array(USERS, pa.large_string()),
    "view": pa.array(USERS, pa.string_view()),
    "bytes": pa.array([b"\xff\x00", b"b", b"", None, b"e"]),
    "fixed": pa.array([b"ab", b"cd", None, b"ab", b"ef"], pa.binary(2)),
    "encoded": pa.array(USERS).dictionary_encode(),
    "empty": pa.array(["a", "", None, " ", "b"]),
    "numbers": pa.array([3, -1, None, 2**40, 3]),
    "floats": pa.array([69.0, 0.5, None, -2.0, 1e9]),
    "truths": pa.array([True, False, None, True, True]),
    "nulls": pa.nulls(5),
    "several": pa.array(["a|b", "", "c| d ", None, "a"]),
    "written": pa.array(["['a', 'b']", "[]", "[c]", None, '["d"]']),
    "lists": pa.array([["a", "b"], [], None, [" c"], [None, "d"]]),
    "listed": pa.array([[1, 2], [], None, [3], [4, None]]),
}
BAGS = {"several": "|", "written": "[,]", "lists": "|", "listed": "|"}


def config_of(name, kind):
    feature = {"name": name, "kind": kind} | ({"separator": BAGS[name]} if name in BAGS else {})
    data = {"train": ["a.parquet"], "numeric": [], ("multi_valued" if name in BAGS else "categorical"): [feature]}
    return CtrConfig.build({"task": "ctr", "data": data}).data


@pytest.mark.parametrize("kind", ["string", "verbatim"])
@pytest.mark.parametrize("name", COLUMNS)
def test_the_texts_of_a_column_are_those_of_its_keys(name, kind):
    config, column = config_of(name, kind), COLUMNS[name]
    (feature,) = config.keyed()
    block = convert(pa.record_batch({name: column}), config, False, Path("a.parquet"), np.arange(5))
    bag = block.bags.get(name)
    keys, checks = (bag.keys, bag.checks) if bag else (block.keys[name], block.checks[name])
    found = fingerprints(*texts_of(column, feature, Path("a.parquet")))
    if name == "nulls":
        assert not found[0].size
    else:
        assert np.array_equal(found[0], keys) and np.array_equal(found[1], checks)


def arrays_of(texts):
    """A table's index of (vocabulary, text) by row; None: a free row, an int: a key that is no text."""
    rows = [(0, 0, 0) if each is None else (each[0], *key_of(each[1])) for each in texts]
    vocabularies, keys, checks = zip(*rows, strict=True) if rows else ((), (), ())
    free = [row for row, each in enumerate(texts) if each is None]
    parts = (vocabularies, np.uint16), (keys, np.int64), (checks, np.uint32), (free, np.int64)
    named = zip(("vocabularies", "keys", "checks", "free"), parts, strict=True)
    return {f"t.index.{name}": np.array(*part) for name, part in named}


def key_of(text):
    if isinstance(text, int):
        return text, 0
    data = text.encode()
    keys, checks = fingerprints(np.frombuffer(data, np.uint8), np.array([0]), np.array([len(data)]))
    return int(keys[0]), int(checks[0])


def columns(vocabulary, texts):
    data = [each.encode() for each in texts]
    ends = np.cumsum([len(each) for each in data])
    where = np.frombuffer(b"".join(data), np.uint8), ends - [len(each) for each in data], ends
    return np.full(len(texts), vocabulary, np.uint16), *fingerprints(*where), *where


SOME = st.tuples(st.integers(0, 2), st.text("abc", min_size=1, max_size=3))


@given(
    rows=st.lists(st.one_of(SOME, st.none(), st.tuples(st.just(1), st.integers(0, 3))), unique=True, min_size=1),
    blocks=st.lists(st.tuples(st.integers(0, 2), st.lists(st.text("abc", max_size=3), min_size=1)), max_size=4),
)
def test_keys_have_the_texts_that_were_seen(rows, blocks):
    wanted = _Wanted(arrays_of(rows), 1 << 20)
    for vocabulary, texts in blocks:
        wanted.take(*columns(vocabulary, texts))
    seen = {(vocabulary, text) for vocabulary, texts in blocks for text in texts}
    asked = [each for each in rows if each is not None]
    texts = [each for each in asked if isinstance(each[1], str)]
    assert wanted.count == len(texts) and wanted.found == len(seen & set(texts))
    found = arrays_of(asked)
    answers = wanted.texts().names(*(found[f"t.index.{part}"] for part in ("vocabularies", "keys", "checks")))
    assert answers == [each[1] if each in seen and each in texts else None for each in asked]


def test_room_is_for_the_first_rows_and_no_more():
    texts = [(0, f"{row:03}" + "x" * 97) for row in range(100)]
    arrays = arrays_of(texts)
    wanted = _Wanted(arrays, 38 * 60)
    assert wanted.count == 60 and {each for each in wanted._held.keys} == set(arrays["t.index.keys"][:60].tolist())
    wanted.take(*columns(0, [text for _, text in texts]))
    assert wanted.found == (38 * 60 - 30 * 60) // 100
    kept = wanted.texts()
    assert kept.texts.size == 100 * wanted.found <= 8 * 60
    wanted.take(*columns(0, [text for _, text in texts]))
    assert wanted.texts().keys.size == wanted.found == 4
    exact = _Wanted(arrays_of([(0, "abcdefgh"), (0, "ijklmnop")]), 2 * 38)
    exact.take(*columns(0, ["ijklmnop", "abcdefgh"]))
    assert exact.count == exact.found == 2


def test_a_text_that_comes_again_takes_no_room():
    wanted = _Wanted(arrays_of([(0, "a"), (0, "b")]), 1 << 20)
    for _ in range(2):
        wanted.take(*columns(0, ["a", "a"]))
    assert wanted.found == 1 and wanted.texts().texts.tobytes() == b"a"


def test_another_text_with_the_same_key_is_not_taken():
    arrays = arrays_of([(0, "a")])
    arrays["t.index.checks"] ^= 1
    wanted = _Wanted(arrays, 1 << 20)
    wanted.take(*columns(0, ["a"]))
    assert (wanted.count, wanted.found) == (1, 0)


def test_arrays_that_kernels_may_not_use_are_not_sound():
    wanted = _Wanted(arrays_of([(0, "a"), (0, "b"), (1, "a")]), 1 << 20)
    wanted.take(*columns(0, ["a", "b"]))
    wanted.take(*columns(1, ["a"]))
    sound = vars(wanted.texts())
    assert names._are_sound(**sound)
    for name, change in (
        ("ends", lambda ends: ends + 2**40),
        ("starts", lambda starts: starts - 2**40),
        ("starts", lambda starts: starts + 10**6),
        ("keys", lambda keys: keys[:2]),
        ("checks", lambda checks: checks ^ 1),
        ("vocabularies", lambda vocabularies: vocabularies[::-1]),
    ):
        assert not names._are_sound(**sound | {name: change(sound[name])})
    assert not names._are_sound(**sound | {"texts": np.append(sound["texts"], np.uint8(1))})  # or texts that overlap
    turned = {name: array[[1, 0, 2]] for name, array in sound.items() if name != "texts"}
    assert not names._are_sound(**turned, texts=sound["texts"])


def test_a_key_of_two_tables_is_kept_once():
    one, two = arrays_of([(0, "a"), (1, "b")]), arrays_of([(0, "a"), (0, "b")])
    wanted = _Wanted(one | {name.replace("t.", "u.", 1): each for name, each in two.items()}, 1 << 20)
    assert wanted.count == 3
    wanted.take(*columns(0, ["b", "a", "a"]))
    assert wanted.found == 2 and names._are_sound(*vars(wanted.texts()).values())


def write_log(path, users, rows=120):
    picked = np.random.default_rng(len(users)).integers(len(users), size=(rows, 4))
    texts = [users[each] for each in picked[:, 0]]
    table = {
        "label": pa.array(picked[:, 0] % 2),
        "number": pa.array(picked[:, 1].astype(float)),
        "user": pa.array(texts),
        "item": pa.array(picked[:, 2]),
        "tags": pa.array(["|".join({users[a], users[b]}) for a, b in picked[:, 2:]]),
    }
    write = pyarrow.csv.write_csv if path.suffix == ".csv" else pq.write_table
    write(pa.table(table), path)
    tags = {users[each] for each in picked[:, 2:].flat}
    return {f"user={each.strip()}" for each in texts} | {f"tags={each.strip()}" for each in tags}


def config(log, *overrides, vocabulary=None):
    tree = {
        "task": "ctr", "device": "cpu", "threads": 1,
        "data": {
            "train": [str(log)], "numeric": ["number"], "categorical": ["user", {"name": "item", "kind": "integer"}],
            "multi_valued": [{"name": "tags", "separator": "|", "vocabulary": vocabulary}],
        },
        "model": {"network": "deepfm", "dimension": 4, "hidden": [8]}, "training": {"batch_size": 32},
    }  # fmt: skip
    return CtrConfig.build(tree, overrides)


def named(run):
    """The names of all rows but those of numbers."""
    with TrainedClickModel.open(run) as model:
        found = model.names_in(model._folder, model.checkpoint, None)
        each = (of_table(np.arange(len(model.checkpoint.array(table, "values")))) for table, of_table in found.items())
        return {name for names in each for name in names if not name.startswith("item=")}


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
def test_rows_have_the_names_of_the_log(tmp_path, suffix):
    expected = write_log(tmp_path / f"log{suffix}", USERS)
    train(config(tmp_path / f"log{suffix}"), tmp_path / "run")
    assert named(tmp_path / "run") == expected
    with TrainedClickModel.open(tmp_path / "run") as model:
        assert {each.name for each in model.nearest("user", "ann")} == {each.strip() for each in USERS} - {"ann"}
    assert verify(tmp_path / "run").sound


def test_columns_that_share_a_vocabulary_share_names(tmp_path):
    expected = write_log(tmp_path / "log.parquet", [f"u{number}" for number in range(60)], rows=20)
    train(config(tmp_path / "log.parquet", vocabulary="user"), tmp_path / "run")
    assert named(tmp_path / "run") == {each.replace("tags=", "user=") for each in expected}


def test_files_are_read_from_the_first_that_the_kept_names_are_not_of(tmp_path, caplog):
    write_log(tmp_path / "one.parquet", ["ann"])
    train(config(tmp_path / "one.parquet"), tmp_path / "run")
    with TrainedClickModel.open(tmp_path / "run") as model:
        log, settled = RunLog.read(model.path), model.config
    write_log(tmp_path / "two.parquet", ["bob"])
    write_log(tmp_path / "three.parquet", ["carl"])
    others = RunLog().extended(config(tmp_path / "two.parquet"), [str(tmp_path / "two.parquet")])
    others = others.extended(config(tmp_path / "two.parquet"), [str(tmp_path / "three.parquet")])
    caplog.clear()
    keep_names(tmp_path / "run", settled, others, arrays_of([(2, "ann"), (2, "bob"), (2, "carl")]))
    assert "have no name" not in caplog.text
    keep_names(tmp_path / "run", settled, log, arrays_of([(2, "ann"), (2, "bob"), (2, "eve")]))
    assert "1 of 3 keys of texts have no name (keys.names: 256 MiB)" in caplog.text


def test_a_run_that_goes_on_reads_the_new_files_alone(tmp_path):
    first = write_log(tmp_path / "one.parquet", USERS)
    train(config(tmp_path / "one.parquet"), tmp_path / "run")
    os.remove(tmp_path / "one.parquet")
    second = write_log(tmp_path / "two.parquet", ["zoe", "ann", "yan"])
    resume(tmp_path / "run", data=[str(tmp_path / "two.parquet")])
    assert named(tmp_path / "run") == first | second
    assert verify(tmp_path / "run").sound


def test_keys_that_are_admitted_when_files_are_read_again_are_named(tmp_path, caplog):
    expected = write_log(tmp_path / "one.parquet", [f"u{number}" for number in range(60)])
    train(config(tmp_path / "one.parquet", "keys.admit_after=3"), tmp_path / "run")
    before = named(tmp_path / "run") & expected
    resume(tmp_path / "run", ["training.epochs=3"])
    assert len(before) < len(named(tmp_path / "run") & expected) == len(expected)
    assert "have no name" not in caplog.text  # as a row that keys share would


def test_none_are_kept_without_room_or_texts(tmp_path):
    write_log(tmp_path / "log.parquet", USERS)
    train(config(tmp_path / "log.parquet", "keys.names=0"), tmp_path / "run")
    assert not (tmp_path / "run" / "names").exists()
    assert all(len(each.partition("=")[2]) == 16 for each in named(tmp_path / "run"))
    resume(tmp_path / "run", ["keys.names=1", "training.epochs=2"])
    assert "user=ann" in named(tmp_path / "run")
    tree = config(tmp_path / "log.parquet").replace("data.categorical=[item]", "data.multi_valued=[]")
    train(tree.replace("data.ignored=[user, tags]"), tmp_path / "other")
    assert not (tmp_path / "other" / "names").exists()


def test_damaged_and_forged_texts_are_not_believed(tmp_path, caplog):
    write_log(tmp_path / "log.parquet", USERS)
    train(config(tmp_path / "log.parquet"), tmp_path / "run")
    texts, manifest = tmp_path / "run" / "names" / "texts.npy", tmp_path / "run" / "names" / "names.json"
    whole = texts.read_bytes()
    texts.write_bytes(whole.replace(b"ann", b"eve"))
    assert not verify(tmp_path / "run").sound
    for forged in (False, True):
        if forged:
            tree = json.loads(manifest.read_bytes())
            tree.pop("sha256")
            tree["texts.npy"] = names.open_derived.__globals__["_digest"](texts)
            manifest.write_bytes(sealed(tree))
        caplog.clear()
        assert not named(tmp_path / "run") & {"user=ann", "user=eve"}
        assert "keys of texts are named by their fingerprints" in caplog.text
    resume(tmp_path / "run", ["training.epochs=2"])
    assert "user=ann" in named(tmp_path / "run")
    tree = json.loads(manifest.read_bytes())
    tree.pop("sha256")
    manifest.write_bytes(sealed(tree | {"files": 5}))
    caplog.clear()
    resume(tmp_path / "run", ["training.epochs=3"])
    assert "names.json: is damaged" in caplog.text


def test_what_prevents_names_is_told_and_no_error(tmp_path, caplog):
    write_log(tmp_path / "log.parquet", USERS)
    train(config(tmp_path / "log.parquet", "keys.names=0"), tmp_path / "run")
    with TrainedClickModel.open(tmp_path / "run") as model:
        log, arrays = RunLog.read(model.path), model.checkpoint.arrays()
        settled = model.config.replace("keys.names=1")
    gone = replace(log, files=tuple(replace(file, path=tmp_path / "gone.parquet") for file in log.files))
    keep_names(tmp_path / "run", settled, gone, arrays)
    assert "keys of texts are named by their fingerprints" in caplog.text and "gone.parquet" in caplog.text
    assert not (tmp_path / "run" / "names").exists()
    write_log(tmp_path / "others.parquet", ["zoe"])
    others = replace(log, files=tuple(replace(file, path=tmp_path / "others.parquet") for file in log.files))
    keep_names(tmp_path / "run", settled, others, arrays)
    assert f"of {len(USERS) * 2} keys of texts have no name" in caplog.text


def test_a_run_that_is_stopped_meanwhile_names_them_when_it_goes_on(tmp_path, monkeypatch):
    expected = write_log(tmp_path / "log.parquet", USERS)

    def stop(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(names, "texts_of", stop)
    with pytest.raises(Interrupted):
        train(config(tmp_path / "log.parquet"), tmp_path / "run")
    monkeypatch.undo()
    assert not any((tmp_path / "run").glob("*names*"))
    resume(tmp_path / "run")
    assert named(tmp_path / "run") == expected
