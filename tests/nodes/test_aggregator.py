"""Gradient buffers against the paper's Algorithm 2, under scripted arrivals."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marius_oac.nodes.gba.aggregator import DenseAggregator, RowAggregator
from marius_oac.nodes.gba.modes import Mode, make_mode
from marius_oac.nodes.transport.messages import Malformed
from tests.nodes.naive_gba import NaiveBuffer, decay

SIZE, DIMENSION, ROWS = 5, 3, 40
KINDS = ("sync", "gba", "async", "bsp", "hop-bs", "hop-bw")


def drawn_mode(draw):
    kind = draw(st.sampled_from(KINDS))
    return Mode(
        kind=kind,
        aggregate=1 if kind in ("async", "hop-bs") else draw(st.integers(1, 6)),
        decay=draw(st.sampled_from(("threshold", "polynomial", "exponential"))),
        threshold=draw(st.integers(0, 4)),
        power=draw(st.sampled_from((0.5, 1.0, 2.0))),
        rate=draw(st.sampled_from((0.25, 0.9))),
        rows_over=draw(st.sampled_from(("holders", "gradients"))),
    )


class Both:
    """An aggregator of each kind, and the oracle, who are told the same."""

    def __init__(self, mode, step=0):
        self.tags = np.full(ROWS, -1, np.int64)
        self.dense = DenseAggregator(mode, SIZE, step)
        self.rows = RowAggregator(mode, DIMENSION, self.tags.__getitem__, step)
        self.naive = NaiveBuffer(mode, SIZE, step)
        self.steps = 0

    def push(self, batch, token, dense, rows, gradients):
        by_row = {int(row): gradient for row, gradient in zip(rows, gradients, strict=True)}
        self.check(
            self.dense.add(batch, token, dense),
            self.rows.add(batch, token, rows, gradients),
            self.naive.push(batch, token, dense, by_row),
        )

    def fill(self, token):
        self.check(self.dense.fill(token), self.rows.fill(token), self.naive.fill(token))

    def flush(self):
        self.check(self.dense.flush(), self.rows.flush(), self.naive.flush())

    def check(self, dense, rows, expected):
        assert (dense is None) == (rows is None) == (expected is None)
        if expected is not None:
            self.steps += 1
            np.testing.assert_allclose(dense, expected[0], rtol=1e-6, atol=1e-6)
            assert dense.dtype == rows[1].dtype == np.float32 and rows[0].dtype == np.int64
            assert rows[0].tolist() == sorted(expected[1])
            if expected[1]:
                np.testing.assert_allclose(rows[1], [expected[1][row] for row in sorted(expected[1])], 1e-6, 1e-6)
            self.tags[rows[0]] = self.rows.step - 1
            assert self.tags.tolist() == [self.naive.tags.get(row, -1) for row in range(ROWS)]
        assert self.dense.step == self.rows.step == self.naive.step

    def refused(self, batch):
        """Pushed again, it changes nothing."""
        before = self.dense.metrics(), self.rows.metrics()
        nothing = np.zeros(0, np.int64), np.zeros((0, DIMENSION), np.float32)
        for call in (
            lambda: self.dense.add(batch, 0, np.ones(SIZE, np.float32)),
            lambda: self.rows.add(batch, 0, *nothing),
        ):
            with pytest.raises(Malformed, match="again, or was refused"):
                call()
        assert before == (self.dense.metrics(), self.rows.metrics())

    def check_metrics(self):
        late = self.naive.late
        for found, staleness, came_late in (
            (self.dense.metrics(), self.naive.staleness, len(late)),
            (self.rows.metrics(), self.naive.row_staleness, sum(len(each.rows) for each in late)),
        ):
            stale = [max(each, 0) for each in staleness]
            dropped = sum(decay(self.naive.mode, each) == 0 for each in stale)
            assert found == {
                "gradients": len(stale),
                "dropped": dropped + came_late,
                "staleness_sum": sum(stale),
                "staleness_max": max(stale, default=0),
            }


@given(st.data())
@settings(deadline=None, max_examples=120)
def test_any_arrivals_make_the_steps_of_algorithm_2(data):
    """Late and early tokens, some again, some missing, some filled; batches in any order, rows shared or not."""
    draw = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    both = Both(drawn_mode(data.draw), data.draw(st.integers(0, 3)))
    batches = list(draw.permutation(data.draw(st.integers(0, 40))))
    taken, gone = [], []
    for batch in batches:
        late = draw.integers(-2, 9)
        what = draw.choice(["push", "again", "missing", "lost", "half"], p=[0.7, 0.1, 0.05, 0.1, 0.05])
        token = max(0, both.dense.step - (late if late < 6 else 0))
        if what == "again" and taken + gone:
            both.refused(draw.choice(taken + gone))
        if what in ("lost", "half"):
            assert [both.dense.refuse(batch), both.rows.refuse(batch)] == [False, False]
            gone.append(batch)
            if what == "half":
                both.fill(token)
        if what in ("push", "again"):
            rows = np.sort(draw.permutation(ROWS if draw.random() < 0.5 else 4)[: draw.integers(0, 5)])
            parts = draw.normal(size=(rows.size, DIMENSION)).astype(np.float32)
            both.push(batch, token, draw.normal(size=SIZE).astype(np.float32), rows, parts)
            taken.append(batch)
    for batch in taken:
        assert both.dense.refuse(batch) and both.rows.refuse(batch)
    both.flush()
    both.flush()  # there is nothing left
    both.check_metrics()


def gba(aggregate=2, **rules):
    return Mode(kind="gba", aggregate=aggregate, **rules)


def some(value, size=SIZE):
    return np.full(size, value, np.float32)


def one_row(row, value):
    return np.array([row]), np.full((1, DIMENSION), value, np.float32)


def test_what_is_excluded_still_counts_among_those_popped():
    dense = DenseAggregator(gba(threshold=1), SIZE, step=5)
    assert dense.add(0, 3, some(100)) is None  # 2 steps late
    assert dense.add(1, 4, some(6)).tolist() == [3.0] * SIZE


def test_a_row_that_nobody_touched_is_not_stale():
    tags = np.full(ROWS, -1, np.int64)
    rows = RowAggregator(gba(1, threshold=1), DIMENSION, tags.__getitem__, step=9)
    assert rows.add(0, 0, *one_row(7, 1.0))[0].tolist() == [7]  # 9 steps late, but the row is as it was
    tags[7] = 9
    assert rows.add(1, 7, *one_row(7, 1.0))[0].tolist() == []  # 2 steps behind the row's last update
    assert rows.add(2, 8, *one_row(7, 4.0))[1].tolist() == [[4.0] * DIMENSION]
    assert rows.step == 12


def test_a_row_is_divided_by_those_who_hold_it_or_by_all():
    for over, expected in (("holders", [1.0, 3.0]), ("gradients", [0.5, 3.0])):
        rows = RowAggregator(gba(2, rows_over=over), DIMENSION, lambda rows: np.full(rows.size, -1), 0)
        rows.add(0, 0, np.array([1, 2]), np.array([[1] * 3, [2] * 3], np.float32))
        found, averages = rows.add(1, 0, *one_row(2, 4.0))
        assert found.tolist() == [1, 2] and averages[:, 0].tolist() == expected


def test_an_excluded_gradient_may_be_infinite():
    dense = DenseAggregator(gba(2, threshold=0), 2, step=3)
    rows = RowAggregator(gba(2, threshold=0), DIMENSION, lambda rows: np.full(rows.size, 2), 3)
    dense.add(0, 1, np.array([np.inf, np.nan], np.float32))
    rows.add(0, 1, *one_row(5, np.nan))
    assert dense.add(1, 3, some(2, 2)).tolist() == [1.0, 1.0]
    assert rows.add(1, 3, *one_row(5, 2))[1].tolist() == [[1.0] * DIMENSION]


def test_what_a_step_gave_is_not_written_again():
    dense = DenseAggregator(gba(1), SIZE)
    rows = RowAggregator(gba(1), DIMENSION, lambda rows: np.full(rows.size, -1))
    given = some(1)
    first, (_, averages) = dense.add(0, 0, given), rows.add(0, 0, *one_row(1, 1.0))
    dense.add(1, 1, some(9)), rows.add(1, 1, *one_row(1, 9.0))
    assert first.tolist() == given.tolist() == [1.0] * SIZE and averages.tolist() == [[1.0] * DIMENSION]


def test_sums_are_those_of_float32_in_order_of_arrival():
    draw = np.random.default_rng(0)
    parts = (draw.normal(size=(50, SIZE)) * 10.0 ** draw.integers(-4, 4, (50, 1))).astype(np.float32)
    dense = DenseAggregator(gba(50), SIZE)
    found = [dense.add(batch, 0, part) for batch, part in enumerate(parts)][-1]
    total = parts[0].copy()
    for part in parts[1:]:
        total += part
    assert found.tobytes() == (total / np.float32(50)).tobytes()


def test_memory_is_that_of_the_rows_of_a_step():
    rows = RowAggregator(gba(1000), DIMENSION, lambda rows: np.full(rows.size, -1))
    for batch in range(3000):
        rows.add(batch, batch // 1000, np.arange(batch % 7, 40), np.ones((40 - batch % 7, DIMENSION), np.float32))
    assert len(rows._totals) <= 160 and rows._slots.size <= 512 and not rows._above


def test_many_rows_find_their_places_again():
    draw, total = np.random.default_rng(1), {}
    rows = RowAggregator(gba(30, rows_over="gradients"), 1, lambda rows: np.full(rows.size, -1))
    for batch in range(30):
        some_rows = np.unique(draw.integers(0, 2**62, 100) // (10**9 if batch % 2 else 2**55))
        result = rows.add(batch, 0, some_rows, np.ones((some_rows.size, 1), np.float32))
        for row in some_rows.tolist():
            total[row] = total.get(row, 0) + 1
    assert result[0].tolist() == sorted(total)
    np.testing.assert_allclose(result[1][:, 0] * 30, [total[row] for row in sorted(total)], rtol=1e-6)


BAD_ROWS = {
    "descend": (np.array([2, 1]), np.zeros((2, DIMENSION), np.float32)),
    "repeat": (np.array([1, 1]), np.zeros((2, DIMENSION), np.float32)),
    "below 0": (np.array([-1, 1]), np.zeros((2, DIMENSION), np.float32)),
    "int32": (np.array([1, 2], np.int32), np.zeros((2, DIMENSION), np.float32)),
    "float64": (np.array([1, 2]), np.zeros((2, DIMENSION))),
    "too few": (np.array([1, 2]), np.zeros((1, DIMENSION), np.float32)),
    "too wide": (np.array([1, 2]), np.zeros((2, DIMENSION + 1), np.float32)),
    "a matrix": (np.array([[1, 2]]), np.zeros((1, DIMENSION), np.float32)),
}


@pytest.mark.parametrize("name", BAD_ROWS)
def test_rows_that_do_not_fit_are_refused_and_change_nothing(name):
    rows = RowAggregator(gba(1), DIMENSION, lambda rows: np.full(rows.size, -1))
    with pytest.raises(Malformed):
        rows.add(0, 0, *BAD_ROWS[name])
    assert rows.add(0, 0, *one_row(1, 2.0))[1].tolist() == [[2.0] * DIMENSION]


@pytest.mark.parametrize("bad", [some(1, SIZE + 1), np.ones(SIZE), np.ones((1, SIZE), np.float32)])
def test_a_vector_that_does_not_fit_is_refused_and_changes_nothing(bad):
    dense = DenseAggregator(gba(1), SIZE)
    with pytest.raises(Malformed):
        dense.add(0, 0, bad)
    assert dense.add(0, 0, some(2)).tolist() == [2.0] * SIZE


def test_batches_of_before_are_refused():
    dense = DenseAggregator(gba(1), SIZE, step=4, first=10)
    with pytest.raises(Malformed, match="again"):
        dense.add(9, 4, some(1))
    assert dense.add(10, 4, some(1)) is not None


def test_a_mode_of_hop_bw_takes_its_own_step_only():
    dense = DenseAggregator(make_mode("hop-bw", 3, 12, 4, b3=1), SIZE)
    assert dense.add(0, 0, some(1)) is None
    assert dense.add(1, 0, some(3)).tolist() == [2.0] * SIZE
    assert dense.add(2, 0, some(100)) is None  # the slowest one's
    assert dense.add(3, 1, some(1)) is None and dense.add(4, 1, some(1)) is not None
    assert dense.metrics()["dropped"] == 1
