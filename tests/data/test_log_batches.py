"""Batches of a log, whole and in the shares of several trainers: the same examples, of which no trainer parses all."""

import copy
import gzip
from collections import Counter

import numba
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marius_oac.config.ctr import CtrConfig
from marius_oac.data.batches.rank_slice import RankSlice
from marius_oac.data.logs import batches as log_batches
from marius_oac.data.logs import files as log_files
from marius_oac.data.logs import formats as log_formats
from marius_oac.data.logs.batches import LogPlanner, LogSchedule, LogSegment
from marius_oac.data.logs.files import scan_files
from marius_oac.data.logs.tables import feature_tables
from marius_oac.kernels.cpu.permutation import Permutation
from tests.data import naive_logs

ROWS, BATCH, PASSES = (500, 333), 16, 2
EXAMPLES = settings(deadline=None, max_examples=4 if numba.config.DISABLE_JIT else 25)
FORMATS = ("log.csv", "log.tsv.gz", "log.parquet", "log.libsvm")


class Numbered:
    """In the place of a `KeyTable`: has a row for each key."""

    capacity = 1 << 20

    def find(self, vocabularies, keys, checks):
        return keys % self.capacity


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    """By format, two files whose examples are told apart by their user, a number."""
    found = {}
    for name in FORMATS:
        folder, first = tmp_path_factory.mktemp(name), 0
        for file, rows in enumerate(ROWS):
            write(folder / f"{file}{name}", range(first, first + rows))
            first += rows
        found[name] = str(folder / "*")
    return found


def bag(user):
    return [user * 7 + i for i in range(user % 5)]


def write(path, users):
    if path.suffix == ".libsvm":
        path.write_text("".join(f"{user % 2} {' '.join(f'{i}:1' for i in (user, *bag(user)))}\n\n" for user in users))
        return
    if path.suffix == ".parquet":
        bags = pa.array([bag(user) for user in users], pa.list_(pa.int64()))
        columns = {"label": [user % 2 for user in users], "number": users, "user": users, "tags": bags}
        pq.write_table(pa.table({**columns, "text": [f"t{user}" for user in users]}), path, row_group_size=90)
        return
    rows = [f"{user % 2},{user},{user},{'|'.join(map(str, bag(user)))},t{user}\n" for user in users]
    text = "label,number,user,tags,text\n" + "\n".join(rows)
    path.write_bytes(gzip.compress(text.replace(",", "\t").encode()) if path.suffix == ".gz" else text.encode())


def planner_of(name, pattern, shuffle):
    integer = {"kind": "integer"}
    schema = {"train": pattern, "shuffle": shuffle}
    if "libsvm" in name:
        schema |= {"multi_valued": [{"name": "tags", **integer}]}
    else:
        schema |= {"numeric": ["number"], "categorical": [{"name": "user", **integer}, "text"]}
        schema |= {"multi_valued": [{"name": "tags", **integer}]}
    tree = {"task": "ctr", "data": schema, "model": {"network": "deepfm"}, "training": {"batch_size": BATCH}}
    config = CtrConfig.model_validate(tree)
    files = scan_files(config.data.train, config.data)
    schedule = LogSchedule(files, [LogSegment(0, len(files), PASSES)], BATCH)
    tables = feature_tables(config, weights_only=False)
    return LogPlanner(config, files, schedule, tables, [Numbered() for _ in tables]), schedule.ends[-1]


def example(name, user):
    """Label, numbers, what has one key and what has several, each key with its vocabulary and its check."""
    if "libsvm" in name:
        return (user % 2, [], [(0, each, 0) for each in (user, *bag(user))])
    text = (1, *naive_logs.text_key(f"t{user}"))
    return (user % 2, [user], (2, user, 0), text, [(0, each, 0) for each in bag(user)])


def expected(name, shuffle, batch_index):
    """The examples of a batch, by what a shuffle means."""
    batches = [-(-rows // BATCH) for rows in ROWS]
    number, left = divmod(batch_index, sum(batches))
    file = int(left >= batches[0])
    first = (left - file * batches[0]) * BATCH
    order = list(range(ROWS[file]))
    if shuffle:
        size = -(-shuffle // BATCH) * BATCH
        for block, start in enumerate(range(0, ROWS[file], size)):
            part = order[start : start + size]
            images = Permutation(len(part), 0, number, f"shuffle of file {file}, block {block}")
            order[start : start + size] = [part[i] for i in images.permute(np.arange(len(part)))]
    return [example(name, user + file * ROWS[0]) for user in order[first : first + BATCH]]


def content(plan):
    """The examples of a plan, as `example` gives them."""
    (keys,) = plan.keys
    columns, at = [plan.data.labels.tolist(), plan.data.numbers.tolist()], 0
    asked = list(zip(*(part.tolist() for part in keys.asked), strict=True))
    (offsets,) = keys.offsets.values()
    examples = len(plan.data.labels)
    assert plan.examples == (examples if plan.data.share else 0), "a borrowed example counts for nothing"
    while at < len(asked) - offsets[-1]:
        columns.append(asked[at : at + examples])
        at += examples
    columns.append([asked[at + low : at + high] for low, high in zip(offsets[:-1], offsets[1:], strict=True)])
    return list(zip(*columns, strict=True))


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(log_batches, "_BLOCK_EXAMPLES", 5 * BATCH)


@pytest.mark.parametrize("shuffle", [0, 90, 1000])
@pytest.mark.parametrize("name", FORMATS)
def test_a_batch_has_consecutive_examples_of_a_shuffled_stretch(logs, name, shuffle):
    planner, last = planner_of(name, logs[name], shuffle)
    for batch_index in range(last):
        assert content(planner.plan(batch_index)) == expected(name, shuffle, batch_index)
    planner.close()


@EXAMPLES
@given(st.sampled_from(FORMATS), st.sampled_from([0, 90, 1000]), st.integers(2, 20), st.booleans(), st.data())
def test_shares_are_parts_of_the_batches_in_whatever_order_they_are_asked_for(
    logs, name, shuffle, count, dispatched, data
):
    planner, last = planner_of(name, logs[name], shuffle)
    ranks = data.draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=3))
    shared = [copy.copy(planner) for _ in ranks]
    for rank, each in zip(ranks, shared, strict=True):
        each.share = RankSlice(rank, count, dispatched)
    for batch_index in data.draw(st.lists(st.integers(0, last - 1), max_size=12)):
        whole = expected(name, shuffle, batch_index)
        for rank, each in zip(ranks, shared, strict=True):
            plan = each.plan(batch_index)
            first, end, part = RankSlice(rank, count).of_batch(len(whole))
            assert content(plan) == whole[first:end] and plan.data.share == part
    planner.close()


# ---- what is parsed and converted


@pytest.fixture
def counts(monkeypatch):
    """Bytes of text that were parsed, rows that were converted."""
    found, convert, parse_svm = Counter(), log_files.convert, log_formats.parse_svm
    read_csv = log_formats.pa_csv.read_csv

    def converted(batch, *rest):
        found["rows"] += batch.num_rows
        return convert(batch, *rest)

    def parsed(text, *rest):
        found["bytes"] += text.size
        return parse_svm(text, *rest)

    def read(text, *rest):
        found["bytes"] += text.size()
        return read_csv(text, *rest)

    monkeypatch.setattr(log_files, "convert", converted)
    monkeypatch.setattr(log_formats, "parse_svm", parsed)
    monkeypatch.setattr(log_formats.pa_csv, "read_csv", read)
    return found


@pytest.mark.parametrize("dispatched", [False, True])
@pytest.mark.parametrize("shuffle", [0, 90, 1000])
@pytest.mark.parametrize("name", FORMATS)
def test_no_more_is_parsed_and_converted_than_the_share(logs, name, shuffle, dispatched, counts):
    def cost(share):
        counts.clear()
        planner, last = planner_of(name, logs[name], shuffle)
        planner.share = share
        examples = sum(planner.plan(batch_index).examples for batch_index in range(last // PASSES))
        planner.close()
        assert counts["rows"] == examples
        return counts["bytes"]

    whole = cost(RankSlice())
    for rank in range(4):
        # Users of the second file are longer by a digit, and bags differ.
        assert cost(RankSlice(rank, 4, dispatched)) == pytest.approx(whole / 4, rel=0.1)
    assert bool(whole) == (name != "log.parquet")


def test_of_batches_that_a_trainer_is_dealt_no_other_is_parsed(logs, counts):
    planner, last = planner_of("log.csv", logs["log.csv"], 0)
    examples = 0
    for batch_index in range(0, last // PASSES, 3):
        planner.share = RankSlice(batch_index % 4, 4, dispatched=True)
        examples += planner.plan(batch_index).examples
    planner.close()
    assert counts["rows"] == examples < sum(ROWS) / 10


def test_passing_over_a_file_parses_nothing(logs, counts):
    planner, last = planner_of("log.csv", logs["log.csv"], 0)
    planner.plan(last - 1)
    planner.close()
    assert counts["rows"] == ROWS[1] % (5 * BATCH)
