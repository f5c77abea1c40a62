"""Trainers that read a log together have the batches of one that reads it whole and is cut into slices."""

import copy

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marius_oac.data.batches.rank_slice import RankSlice, with_share
from marius_oac.data.logs import batches as log_batches
from marius_oac.data.logs import spans as log_spans
from marius_oac.data.logs.batches import LogPlanner, LogSchedule, LogSegment
from marius_oac.data.logs.columns import Bag, LogBlock
from marius_oac.data.logs.files import scan_files
from marius_oac.data.logs.lent import LentMemory
from marius_oac.data.logs.packed import pack, unpack
from marius_oac.data.logs.pieces import Pieces
from marius_oac.data.logs.spans import most_rows, spans_of
from marius_oac.data.logs.tables import feature_tables
from marius_oac.data.logs.together import LogReading, OwnSpans, Portion, SharedLog
from marius_oac.errors import InputError
from marius_oac.nodes.parts.blocks import parts_of
from tests.click_logs import ctr_config
from tests.data.test_log_batches import BATCH, Numbered, content, expected, logs, planner_of

__all__ = ["logs"]
ROWS, GROUP = 300, 40
FEW = settings(deadline=None, max_examples=8)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Blocks of 5 batches, stretches of two row groups or so, spans of at most 50 rows."""
    monkeypatch.setattr(log_batches, "_BLOCK_EXAMPLES", 5 * BATCH)
    monkeypatch.setattr(log_spans, "STRETCH_ROWS", 100)
    monkeypatch.setattr(log_spans, "MOST_SPAN_BYTES", 50 * 900)


class Table:
    """Owners that all trainers ask, without network or threads. `decoded` are the spans, as often as they were."""

    def __init__(self):
        self.own, self.decoded = {}, []
        self._kept = {}

    def of(self, trainer):
        """The exchange of a trainer."""
        exchange = copy.copy(self)
        exchange.trainer = trainer
        return exchange

    def fetch(self, wanted, parse):
        found = []
        for number, (owner, *span) in enumerate(wanted):
            if (*span,) not in self._kept:
                assert self.own[owner].owns(*span)
                self._kept[(*span,)] = self.own[owner].portions(*span)
                self.decoded.append((*span,))
            found.append(parse(number, self._kept[(*span,)][self.trainer]))
        return found

    def close(self):
        for each in self.own.values():
            each.close()


def checked(planner):
    """The planner, with digests of its own."""
    other = copy.copy(planner)
    other._pieces = [Pieces(file.path, file.pieces) for file in planner._files]
    return other


def together(make, shares):
    """A planner of each trainer, as `make` makes them, that read together; and their table."""
    table, found = Table(), []
    for trainer in range(len(shares)):
        planner, table.own[trainer] = make().read_together(shares, trainer, table.of(trainer))
        found.append(planner)
    return found, table


def slices(count):
    return [[RankSlice(trainer, count)] for trainer in range(count)]


@FEW
@given(st.sampled_from([0, 90, 1000]), st.sampled_from([2, 3, 5, 17]), st.integers(0, 80), st.data())
def test_batches_are_those_of_the_whole_reading(logs, shuffle, count, first, data):
    """From any batch on, as after a resume, in whatever order trainers ask."""
    planners, table = together(
        lambda: checked(planner_of("log.parquet", logs["log.parquet"], shuffle)[0]), slices(count)
    )
    last = planner_of("log.parquet", logs["log.parquet"], shuffle)[1]
    some = st.lists(st.integers(first, last - 1), max_size=8)
    numbers = data.draw(st.one_of(st.just(range(first, min(first + 25, last))), some))
    for batch_index in numbers:
        whole = expected("log.parquet", shuffle, batch_index)
        for trainer in data.draw(st.permutations(range(count))) if count < 5 else range(count):
            plan = with_share(planners[trainer], RankSlice(trainer, count)).plan(batch_index)
            low, high, part = RankSlice(trainer, count).of_batch(len(whole))
            assert content(plan) == whole[low:high] and plan.data.share == part
    assert isinstance(numbers, list) or len({*table.decoded}) == len(table.decoded)
    table.close()


@FEW
@given(st.sampled_from([0, 90]), st.sampled_from([(2, 8), (3, 8), (5, 7)]))
def test_virtual_parts_have_theirs(logs, shuffle, counts):
    count, parts = counts
    shares = [[RankSlice(part, parts) for part in parts_of(trainer, count, parts)] for trainer in range(count)]
    planners, table = together(lambda: checked(planner_of("log.parquet", logs["log.parquet"], shuffle)[0]), shares)
    for batch_index in (0, 31, 32, 52):
        whole = expected("log.parquet", shuffle, batch_index)
        for trainer, own in enumerate(shares):
            for share in own:
                plan = with_share(planners[trainer], RankSlice(share.rank, parts, dispatched=True)).plan(batch_index)
                low, high, _ = share.of_batch(len(whole))
                assert content(plan) == whole[low:high]
    table.close()


@given(st.lists(st.integers(0, 250), min_size=1, max_size=9), st.integers(1, 90), st.integers(0, 5), st.integers(1, 9))
def test_every_row_has_one_owner_and_no_row_group_two(groups, block_rows, visit, trainers):
    rows = sum(groups)
    if not rows:
        return
    spans = spans_of(groups, block_rows, visit, trainers, 37)
    assert spans.edges[0] == 0 and spans.edges[-1] == rows and (np.diff(spans.edges) > 0).all()
    assert np.diff(spans.edges).max() <= 37
    owners = np.repeat(spans.owners, np.diff(spans.edges))
    at, stretch, size = 0, 0, 0
    for group, count in enumerate(groups):
        assert {*owners[at : at + count]} <= {(visit + stretch) % trainers}
        overlapping = [span for span in range(spans.owners.size) if group in spans.groups_of(span)]
        here = [span for span in overlapping if spans.rows(span)[0] < at + count and spans.rows(span)[1] > at]
        assert here == overlapping or not count
        at, size = at + count, size + count
        if size >= 100:
            stretch, size = stretch + 1, 0
    for first in range(0, rows, block_rows):
        within = spans.within(first, min(first + block_rows, rows))
        assert [spans.rows(within[0])[0], spans.rows(within[-1])[1]] == [first, min(first + block_rows, rows)]


def test_a_stretch_has_no_more_row_groups_than_it_needs():
    spans = spans_of([100, 60, 40, 99, 100], 1000, 1, 2, 1000)
    assert spans.edges.tolist() == [0, 100, 200, 399] and spans.owners.tolist() == [1, 0, 1]


def test_each_row_group_is_decoded_by_one_trainer_of_an_epoch_and_another_in_the_next(logs, monkeypatch):
    read, ranges = [], log_batches.OwnSpans._raw

    def raw(self, visit, span):
        read.append((self._trainer, visit, span))
        return ranges(self, visit, span)

    monkeypatch.setattr(log_batches.OwnSpans, "_raw", raw)
    planners, table = together(lambda: checked(planner_of("log.parquet", logs["log.parquet"], 0)[0]), slices(3))
    for batch_index in range(planner_of("log.parquet", logs["log.parquet"], 0)[1]):
        for trainer, planner in enumerate(planners):
            with_share(planner, RankSlice(trainer, 3)).plan(batch_index)
    assert len({(visit, span) for _, visit, span in read}) == len(read)
    assert {trainer for trainer, *_ in read} == {0, 1, 2}
    owner = {(visit, span): trainer for trainer, visit, span in read}
    assert all(owner[visit + 2, span] == (owner[visit, span] + 2) % 3 for visit, span in owner if visit < 2)
    table.close()


# ---- what is wrong with a file


def write(path, **columns):
    values = {"label": np.arange(ROWS) % 2, "number": np.arange(ROWS) * 1.0, "user": np.arange(ROWS)}
    table = pa.table(
        {**values, "item": np.arange(ROWS) % 7, "tags": [[1, 2]] * ROWS, "history": [[1]] * ROWS} | columns
    )
    pq.write_table(table, path, row_group_size=GROUP, compression="none", use_dictionary=False, write_statistics=False)
    return path


def reader(path, pieces, *settings):
    config = ctr_config(path).replace(
        "data.numeric=[{name: number, transform: none}]", f"training.batch_size={BATCH}", *settings
    )
    files = scan_files([str(path)], config.data)
    schedule = LogSchedule(files, [LogSegment(0, 1, 2)], BATCH)
    tables = feature_tables(config, weights_only=False)
    return LogPlanner(config, files, schedule, tables, [Numbered() for _ in tables], pieces)


def first_error(plans, last):
    """The first batch that can't be planned, and why."""
    for batch_index in range(last):
        try:
            plans(batch_index)
        except InputError as error:
            return batch_index, str(error)
    return None


@pytest.mark.parametrize("row", [3, 95, 130, 299])
def test_a_bad_row_is_told_as_one_process_does(tmp_path, row):
    labels = np.arange(ROWS) % 2
    labels[row] = 7
    path = write(tmp_path / "log.parquet", label=labels)
    alone = reader(path, [Pieces(path)])
    told = first_error(alone.plan, 19)
    planners, table = together(lambda: reader(path, [Pieces(path)]), slices(4))
    for trainer, planner in enumerate(planners):
        assert first_error(with_share(planner, RankSlice(trainer, 4)).plan, 19) == told
    assert f"row {row + 1}" in told[1] and told[0] == row // (5 * BATCH) * 5
    alone.close()
    table.close()


def test_a_change_is_found_by_whoever_reads_the_rows_next(tmp_path):
    """In another epoch, when another trainer decodes them; also what was learnt of others is recorded."""
    path = write(tmp_path / "log.parquet")
    pieces = [[Pieces(path)] for _ in range(2)]
    made = iter(pieces)
    planners, table = together(lambda: reader(path, next(made)), slices(2))
    epoch = -(-ROWS // BATCH)
    for batch_index in range(epoch):
        for trainer, planner in enumerate(planners):
            with_share(planner, RankSlice(trainer, 2)).plan(batch_index)
    alone = [Pieces(path)]
    whole = reader(path, alone)
    for batch_index in range(epoch):
        whole.plan(batch_index)
    whole.close()
    assert pieces[0][0].known() == pieces[1][0].known() == alone[0].known() and None not in alone[0].known()
    table.close()
    users = np.arange(ROWS)
    users[200] = 5  # of the second stretch, which trainer 1 has read, and trainer 0 reads next
    write(path, user=users)
    asked = next(batch for batch in range(epoch, 2 * epoch) if (batch - epoch) * BATCH >= 5 * BATCH * 2)
    with pytest.raises(InputError, match="has changed since it was first read: row group 5 is not what it was"):
        with_share(planners[0], RankSlice(0, 2)).plan(asked)
    table.close()


def test_digests_of_others_that_contradict_are_found(tmp_path):
    path = write(tmp_path / "log.parquet")
    mine = Pieces(path)
    mine.learn(1, "0" * 31 + "1", "row group 0")
    made = iter([[Pieces(path)], [mine]])
    planners, table = together(lambda: reader(path, next(made)), slices(2))
    with pytest.raises(InputError, match="row group 0 is not what it was"):
        with_share(planners[1], RankSlice(1, 2)).plan(0)
    table.close()


def reading_of(paths, trainers, pieces):
    config = ctr_config(paths).replace("data.numeric=[{name: number, transform: none}]", f"training.batch_size={BATCH}")
    visits = [(0, file) for file in range(len(paths))]
    files = scan_files([str(path) for path in paths], config.data)
    return LogReading(config, files, visits, 5 * BATCH, pieces, slices(trainers))


def test_after_a_row_group_that_has_changed_the_next_span_says_the_same(tmp_path):
    path = write(tmp_path / "log.parquet")
    pieces = Pieces(path)
    pieces.learn(2, "0" * 32, "")
    with OwnSpans(reading_of([path], 2, [pieces]), 0) as own:
        for span in (0, 1):
            with pytest.raises(InputError, match="row group 1 is not what it was"):
                own.portions(0, span)


def test_spans_of_another_file_are_those_of_that_file(tmp_path):
    one, other = write(tmp_path / "1.parquet"), write(tmp_path / "2.parquet", user=np.arange(ROWS) + 1000)
    reading = reading_of([one, other], 1, [Pieces(one), Pieces(other)])
    with OwnSpans(reading, 0) as own:
        users = [
            unpack(own.portions(visit, span)[0].content, reading.config.data).keys["user"][0]
            for visit, span in ((0, 0), (1, 1), (0, 2))
        ]
    assert users == [0, 1000 + reading.spans(1).rows(1)[0], reading.spans(0).rows(2)[0]]


def test_portions_are_written_to_the_memory_of_those_that_are_gone_and_of_no_others(tmp_path):
    path = write(tmp_path / "log.parquet")
    reading = reading_of([path], 2, [Pieces(path)])
    with OwnSpans(reading, 0) as own:
        own.portions(0, 0)  # gone at once
        found = [own.portions(0, 0), own.portions(0, 0)]
        wanted = [each.content.copy() for each in found[0]]
        kept = found.pop(0)[1]  # of one trainer, which is late
        found.clear()
        places = {own.portions(0, 0)[0].content.ctypes.data for _ in range(4)}
        blocks = [np.frombuffer(block, np.uint8) for block, _ in own._memory._blocks]
        assert len(blocks) == 2 and [block.ctypes.data for block in blocks if block.ctypes.data in places] == [*places]
        assert not any(np.shares_memory(kept.content, each.content) for each in own.portions(0, 0))
        assert np.array_equal(kept.content, wanted[1])


@pytest.mark.parametrize("digests, chosen", [(32, 1), (16, 0)])
def test_portions_of_another_size_are_refused(tmp_path, digests, chosen):
    path = write(tmp_path / "log.parquet")
    reading = reading_of([path], 2, [Pieces(path)])

    class Exchange:
        def fetch(self, wanted, parse):
            with OwnSpans(reading, 0) as own:
                portion = own.portions(0, 0)[chosen]  # the other trainer's; or with digests that lack one
            return [parse(0, Portion(portion.digests[:digests], portion.content))]

    with pytest.raises(ValueError, match="examples, not"):
        SharedLog(reading, 0, Exchange()).read(0, 0)


def test_texts_and_single_trainers_are_read_alone(logs):
    assert planner_of("log.csv", logs["log.csv"], 0)[0].read_together(slices(2), 0, Table()) is None
    assert checked(planner_of("log.parquet", logs["log.parquet"], 0)[0]).read_together(slices(1), 0, Table()) is None


# ---- bytes


def block(rows, checks, generator, weighted=False):
    def checks_of(size):
        return generator.integers(0, 9, size, np.uint32) if checks else None

    offsets = np.concatenate([[0], np.cumsum(generator.integers(0, 4, rows))])
    bag = Bag(generator.integers(0, 99, offsets[-1]), checks_of(offsets[-1]), offsets)
    keys = {name: generator.integers(-9, 9, rows) for name in ("user", "item")}
    return LogBlock(
        generator.random(rows, np.float32), generator.random((rows, 1), np.float32), keys,
        {name: checks_of(rows) for name in keys}, {"tags": bag}, 3,
        generator.random(rows, np.float32) if weighted else None,
    )  # fmt: skip


@given(st.integers(0, 9), st.booleans(), st.booleans(), st.integers(0, 99), st.data())
def test_what_is_unpacked_is_what_was_packed(rows, checks, weighted, seed, data):
    config = ctr_config("x.parquet", *["data.weight=w"] * weighted).data
    whole = block(9, checks, np.random.default_rng(seed), weighted)
    chosen = np.sort(np.random.default_rng(seed).permutation(9)[:rows])
    (other, packed) = pack(whole, [np.arange(9), chosen], LentMemory(0))
    assert unpack(other, config).size == 9
    found, naive = unpack(packed, config), whole.take(chosen)
    for one, other in zip(arrays(found), arrays(naive), strict=True):
        assert (one is None) == (other is None)
        assert one is None or (one.dtype == other.dtype and np.array_equal(one, other))
    assert found.cut == 3 and found.labels.flags.writeable and found.numbers.flags.writeable
    cut = data.draw(st.integers(0, packed.size // 8 - 1)) * 8
    with pytest.raises(ValueError):
        unpack(packed[:cut].copy(), config)
    with pytest.raises(ValueError):
        unpack(np.concatenate([packed, np.zeros(8, np.uint8)]), config)


def arrays(block):
    bags = [each for bag in block.bags.values() for each in (bag.keys, bag.checks, bag.offsets)]
    return [block.labels, block.weights, block.numbers, *block.keys.values(), *block.checks.values(), *bags]


@pytest.mark.parametrize("place, value", [(0, -1), (0, 2**60), (4, -1), (4, 2**62), (-1, 7)])
def test_numbers_that_do_not_fit_are_refused(place, value):
    whole = block(9, False, np.random.default_rng(1))
    (packed,) = pack(whole, [np.arange(9)], LentMemory(0))
    head = packed[: 8 * 6].view(np.int64)
    if place < 0:  # the first offset
        packed[8 * 6 + 2 * 72 :].view(np.uint8)[:8] = np.array([value], np.int64).view(np.uint8)
    else:
        head[place] = value
    with pytest.raises(ValueError):
        unpack(packed, ctr_config("x.parquet").data)


def test_a_span_fits_a_message():
    config = ctr_config("x.parquet").data
    whole = block(9, True, np.random.default_rng(1))
    ids = 2 + 64
    assert most_rows(config) == 50 * 900 // (4 + 4 + 12 * ids + 8)
    (packed,) = pack(whole, [np.arange(9)], LentMemory(0))
    assert packed.size <= 9 * (4 + 4 + 12 * ids + 8) + 8 * 8
