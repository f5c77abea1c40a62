"""Generated click logs: the law by its definition, the same bytes in any pieces, skew, structure, drift, command."""

import dataclasses
import hashlib
import os
import subprocess
import sys

import numba
import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.generate import log as log_generate
from benchmarks.generate.log import LogSpec, day_batches, main, true_probabilities, write_day
from marius_oac.config.link_prediction import Config
from marius_oac.data.logs.columns import LogBlock
from marius_oac.data.logs.files import BlockReader, scan_files
from marius_oac.errors import InputError
from tests.data import naive_log_generate as naive
from tests.data.naive_batches import bits_at, stream_key
from tests.data.test_random import chi_square_is_plausible
from tests.run_folders import slow

SMALL = LogSpec(seed=3, categorical=5, numeric=3, keys=2000, lists=True)
specs = st.builds(
    LogSpec,
    seed=st.integers(-5, 2**70),
    categorical=st.integers(1, 5),
    numeric=st.integers(0, 3),
    keys=st.sampled_from([10, 1000, 1 << 39]),
    skew=st.sampled_from([0, 0.7, 1, 1.1, 2.5]),
    drift=st.sampled_from([0, 0.02, 1]),
    new_keys=st.sampled_from([0, 0.01, 1]),
    click_rate=st.sampled_from([0.01, 0.25, 0.9]),
    lists=st.booleans(),
)


@pytest.fixture(autouse=True)
def small_sample(monkeypatch):
    monkeypatch.setattr(log_generate, "_SAMPLE", 256)
    log_generate._bias.cache_clear()
    yield
    log_generate._bias.cache_clear()


def whole(day, rows, spec, block_rows=log_generate.BLOCK_ROWS):
    blocks = list(day_batches(day, rows, spec, block_rows))
    return LogBlock.join([block.examples for block in blocks]), np.concatenate([b.probabilities for b in blocks])


def digest(block):
    arrays = [block.labels, block.numbers, *block.keys.values()]
    arrays += [array for bag in block.bags.values() for array in (bag.keys, bag.offsets)]
    content = hashlib.sha256()
    for array in arrays:
        content.update(f"{array.dtype} {array.shape}".encode() + np.ascontiguousarray(array).tobytes())
    return content.hexdigest()


def auc(labels, scores):
    order = np.argsort(scores, kind="stable")
    clicks = labels[order] == 1
    below = np.cumsum(~clicks)[clicks].sum()
    return below / (clicks.sum() * (~clicks).sum())


@settings(deadline=None, max_examples=25)
@given(specs, st.sampled_from([0, 1, 17, 1_000_000]), st.integers(1, 6))
def test_examples_are_those_of_the_naive_law(spec, day, rows):
    found, probabilities = whole(day, rows, spec)
    bias = log_generate._bias(spec)
    draws = stream_key(spec.seed, "log labels", day)
    for i in range(rows):
        expected = naive.example(spec, day, i)
        assert [int(column[i]) for column in found.keys.values()] == expected["keys"]
        assert found.numbers[i].tolist() == np.array(expected["numbers"], np.float32).tolist()
        for name, bag in found.bags.items():
            assert bag.keys[bag.offsets[i] : bag.offsets[i + 1]].tolist() == expected[name]
        probability = 1 / (1 + np.exp(-(expected["logit"] + bias)))
        assert probabilities[i] == pytest.approx(probability, abs=2e-6)
        uniform = naive.unit(bits_at(draws, i))
        if abs(uniform - probability) > 1e-6:
            assert found.labels[i] == (uniform < probability)
    assert found.labels.dtype == probabilities.dtype == found.numbers.dtype == np.float32
    assert set(found.bags) == ({"tags", "history"} if spec.lists else set())


@settings(deadline=None, max_examples=15)
@given(st.integers(1, 90), st.integers(1, 100), st.integers(0, 3))
def test_blocks_of_any_size_and_longer_days_have_the_same_examples(rows, block_rows, day):
    long, probabilities = whole(day, 90, SMALL)
    short, part = whole(day, rows, SMALL, block_rows)
    assert digest(short) == digest(long.slice(0, rows).take(np.arange(rows)))
    assert np.array_equal(part, probabilities[:rows])


def test_seeds_and_days_differ():
    others = [dataclasses.replace(SMALL, seed=4), dataclasses.replace(SMALL, drift=0.5), SMALL]
    assert len({digest(whole(day, 200, spec)[0]) for spec in others for day in (1, 2)}) == 6


needs_jit = pytest.mark.skipif(numba.config.DISABLE_JIT, reason="statistics take too many draws without the JIT")


@needs_jit
@pytest.mark.parametrize("skew", [0, 0.8, 1, 1.3])
def test_keys_are_as_skewed_as_asked(skew):
    spec = LogSpec(categorical=2, numeric=0, keys=1002, skew=skew, seed=5)
    keys = whole(0, 300_000, spec)[0].keys["c0"]
    size = spec.vocabulary_sizes[0]
    assert size > 900
    ranks = {naive.key(spec, "c0", rank, 0): rank for rank in range(size)}
    values, counts = np.unique(keys, return_counts=True)
    by_rank = np.zeros(size)
    by_rank[[ranks[int(value)] for value in values]] = counts
    edges = np.arange(1, size + 2, dtype=float)
    mass = np.log(edges) if skew == 1 else edges ** (1 - skew) / (1 - skew)
    assert chi_square_is_plausible(by_rank, 300_000 * np.diff(mass) / (mass[-1] - mass[0]))


def test_vocabularies_have_the_keys_asked_for():
    for count in (1, 2, 26, 100):
        for keys in (2 * count, 12_345, 10**8):
            sizes = LogSpec(categorical=count, keys=keys).vocabulary_sizes
            assert sum(sizes) == keys and len(sizes) == count and min(sizes) >= 2
            assert list(sizes) == sorted(sizes, reverse=True)


def test_a_share_of_the_keys_is_new_each_day():
    spec = LogSpec(new_keys=0.1, seed=8)
    days = [{naive.key(spec, "c3", rank, day) for rank in range(2000)} for day in (0, 1, 10)]
    assert all(len(keys) == 2000 for keys in days)
    assert len(days[1] - days[0]) == pytest.approx(200, abs=60)
    assert not days[2] & days[0]  # ten tenths


@needs_jit
@pytest.mark.parametrize("spec", [
    LogSpec(), slow(LogSpec(keys=10**8, skew=1.5)), slow(LogSpec(lists=True, seed=2)),
    LogSpec(categorical=100, numeric=0, skew=0.9),
], ids=str)  # fmt: skip
def test_the_best_auc_means_something_and_clicks_are_as_frequent_as_asked(spec, monkeypatch):
    monkeypatch.setattr(log_generate, "_SAMPLE", 4096)
    for day in (0, 3):
        labels, probabilities = true_probabilities(day, 100_000, spec)
        assert 0.7 < auc(labels, probabilities) < 0.9
        assert labels.mean() == pytest.approx(probabilities.mean(dtype=float), abs=5 * 0.5 / 100_000**0.5)
        assert labels.mean() == pytest.approx(0.25, abs=0.02 if day == 0 else 0.06)
        for low in np.arange(0.1, 0.8, 0.1):  # calibrated all along
            some = (probabilities >= low) & (probabilities < low + 0.1)
            spread = 5 * 0.5 / some.sum() ** 0.5
            assert labels[some].mean() == pytest.approx(probabilities[some].mean(dtype=float), abs=spread)


def by_key_scores(spec, train_day, test_day, rows=60_000):
    """Naive Bayes over the keys of one day, scoring another: the least of models finds the structure or misses it."""
    seen, unseen = whole(train_day, rows, spec)[0], whole(test_day, rows, spec)[0]
    scores = np.zeros(rows)
    for name, keys in seen.keys.items():
        values, inverse = np.unique(keys, return_inverse=True)
        clicks, counts = np.bincount(inverse, seen.labels), np.bincount(inverse)
        rate = (clicks + 20 * seen.labels.mean()) / (counts + 20)
        place = np.searchsorted(values, unseen.keys[name]).clip(max=len(values) - 1)
        known = values[place] == unseen.keys[name]
        scores += np.where(
            known, np.log(rate / (1 - rate))[place], np.log(seen.labels.mean() / (1 - seen.labels.mean()))
        )
    return auc(unseen.labels, scores)


@pytest.mark.slow
@needs_jit
def test_structure_is_learnable_and_drifts_away():
    still, moving = LogSpec(keys=20_000, drift=0, new_keys=0), LogSpec(keys=20_000, drift=0.05, new_keys=0)
    assert by_key_scores(still, 0, 1) > 0.65
    assert by_key_scores(still, 0, 40) == pytest.approx(by_key_scores(still, 0, 1), abs=0.015)
    assert by_key_scores(moving, 0, 1) > by_key_scores(moving, 0, 4) + 0.02 > by_key_scores(moving, 0, 40) + 0.04
    replaced = LogSpec(keys=20_000, drift=0, new_keys=1)
    assert by_key_scores(replaced, 0, 1) == pytest.approx(0.5, abs=0.02)


def test_parquet_has_the_examples_and_the_same_bytes_each_time(tmp_path, monkeypatch):
    monkeypatch.setattr(log_generate, "BLOCK_ROWS", 128)
    for name in ("a", "b"):
        write_day(tmp_path / name / "day.parquet", 2, 300, SMALL)
    path = tmp_path / "a" / "day.parquet"
    assert path.read_bytes() == (tmp_path / "b" / "day.parquet").read_bytes()
    assert list(path.parent.iterdir()) == [path]
    file = pq.ParquetFile(path)
    assert [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)] == [128, 128, 44]
    types = {field.name: str(field.type) for field in file.schema_arrow}
    assert types["label"] == "int8" and types["n2"] == "float" and types["c4"] == "int64"
    config = Config.build({"task": "ctr", "data": {"train": [str(path)], **SMALL.schema()}}, ()).data
    files = scan_files([str(path)], config)
    with BlockReader(files, config) as reader:
        read = reader.block(0, 0, 300)
    expected = whole(2, 300, SMALL)[0]
    assert digest(dataclasses.replace(read, bags={k: read.bags[k] for k in expected.bags})) == digest(expected)


def test_a_day_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "day.parquet"
    blocks = day_batches

    def breaks(*args):
        yield next(blocks(*args))
        raise KeyboardInterrupt

    monkeypatch.setattr(log_generate, "day_batches", breaks)
    with pytest.raises(KeyboardInterrupt):
        write_day(path, 0, 50, SMALL)
    assert not list(tmp_path.iterdir())
    path.write_text("mine")
    with pytest.raises(InputError, match="exists already"):
        write_day(path, 0, 50, SMALL)
    assert path.read_text() == "mine"


@pytest.mark.parametrize("change, says", [
    ({"categorical": 0}, "categorical must be 1 to"), ({"numeric": -1}, "numeric must be"),
    ({"keys": 9, "categorical": 5}, r"keys must be 10 \(two a column\)"), ({"keys": 2**40}, "keys must be"),
    ({"skew": -0.1}, "skew must be"), ({"skew": float("nan")}, "skew must be"), ({"drift": 2}, "drift must be"),
    ({"new_keys": 1.5}, "new_keys must be"), ({"click_rate": 1}, "click_rate must be"),
])  # fmt: skip
def test_what_no_log_can_have_is_refused(change, says):
    with pytest.raises(InputError, match=says):
        LogSpec(**change)


@pytest.mark.parametrize("day, rows, block_rows", [(-1, 5, 5), (1 << 20, 5, 5), (0, 0, 5), (0, 1 << 40, 5), (0, 5, 0)])
def test_days_and_sizes_out_of_range_are_refused(day, rows, block_rows):
    with pytest.raises(InputError, match="must"):
        next(day_batches(day, rows, SMALL, block_rows))


@pytest.mark.slow
@needs_jit
def test_the_same_bits_without_the_jit():
    code = (
        "from tests.data.test_log_generate import *\nlog_generate._SAMPLE = 64\nprint(numba.config.DISABLE_JIT)\n"
        "for skew in (1, 1.1):\n    block, p = whole(7, 100, dataclasses.replace(SMALL, keys=10**8, skew=skew))\n"
        "    print(digest(block), hashlib.sha256(p.tobytes()).hexdigest())"
    )
    found = []
    for disabled in "01":
        environment = {**os.environ, "NUMBA_DISABLE_JIT": disabled}
        command = [sys.executable, "-W", "error", "-c", code]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100)
        assert done.returncode == 0, done.stderr[-2000:]
        found.append(done.stdout.splitlines())
    assert [state for state, *_ in found] == ["0", "1"] and found[0][1:] == found[1][1:]
    assert len(set(found[0][1:])) == 2


ARGUMENTS = ("--rows", "40", "--keys", "500", "--categorical", "4", "--numeric", "2", "--seed", "6", "--skew", "1.2")


def test_the_command_writes_a_file_a_day_and_more_days_later(tmp_path, capsys):
    assert main(["--out", str(tmp_path / "a"), "--days", "3", *ARGUMENTS]) == 0
    assert sorted(os.listdir(tmp_path / "a")) == ["day_00.parquet", "day_01.parquet", "day_02.parquet"]
    assert main(["--out", str(tmp_path / "b"), "--first-day", "2", *ARGUMENTS]) == 0
    for folder in ("a", "b"):
        write_day(tmp_path / folder / "x", 2, 40, LogSpec(keys=500, categorical=4, numeric=2, seed=6, skew=1.2))
        assert (tmp_path / folder / "x").read_bytes() == (tmp_path / folder / "day_02.parquet").read_bytes()
    assert capsys.readouterr() == ("", "")
    assert main(["--out", str(tmp_path / "b"), "--days", "4", *ARGUMENTS]) == 2
    assert capsys.readouterr().err.splitlines() == [
        f"python -m benchmarks.generate.log: {tmp_path / 'b' / 'day_02.parquet'}: exists already"
    ]
    assert sorted(os.listdir(tmp_path / "b")) == ["day_02.parquet", "x"]  # nothing was begun


@pytest.mark.parametrize("arguments, says", [
    ((), "--out"), (("--out", "x", "--days", "0"), "--days must be"), (("--out", "x", "--rows", "many"), "--rows"),
    (("--out", "x", "--skew", "-1"), "skew must be"), (("--out", "x", "--first-day", "-1"), "a day must be"),
    (("--out", "x", "--nonsense"), "--nonsense"), (("--out", "file"), "file"),
])  # fmt: skip
def test_a_users_mistake_is_one_line_and_exit_code_2(tmp_path, monkeypatch, capsys, arguments, says):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    assert main([*arguments, "--keys", "100"]) == 2
    out, err = capsys.readouterr()
    assert not out and len(err.splitlines()) == 1 and says in err
    assert os.listdir(tmp_path) == ["file"]


def test_help_says_what_the_options_are():
    command = [sys.executable, "-m", "benchmarks.generate.log", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0 and not done.stderr
    for field in dataclasses.fields(LogSpec):
        assert f"--{field.name.replace('_', '-')}" in done.stdout
