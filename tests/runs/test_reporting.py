"""Lines of metrics: the same whatever the order in which batches end; progress with and without a terminal."""

import io
import math
import random
import re
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marius_oac.pipeline.stages import BatchResult
from marius_oac.runs import reporting
from marius_oac.runs.reporting import SegmentReport, Totals, TrainingProgress


def results(first, count, seed=0):
    draw = random.Random(seed)
    return [
        BatchResult(batch_index=n, timestamp=n, loss=draw.random() * 10 ** draw.randrange(-9, 9),
                    examples=draw.randrange(1, 9), replaced=draw.randrange(3), refused=draw.randrange(3),
                    lost=draw.randrange(3), cached_rows=draw.randrange(99))
        for n in range(first, first + count)
    ]  # fmt: skip


def reported(batches, every):
    lines, fill = [], iter(range(10**6))
    with TrainingProgress(0, 100) as progress:
        first = min(batch.timestamp for batch in batches)
        sources = (lambda: {"read": 0.25}), (lambda: {"planned": next(fill)})
        report = SegmentReport(first, 0, every, lines.append, *sources, progress)
        for batch in batches:
            report.add(batch)
        report.flush()
    return lines, report


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 30), st.integers(1, 30), st.integers(1, 12), st.randoms(use_true_random=False))
def test_intervals_do_not_depend_on_the_order_in_which_batches_end(first, count, every, random):
    batches = results(first, count)
    expected, whole = reported(batches, every)
    shuffled = list(batches)
    random.shuffle(shuffled)
    lines, report = reported(shuffled, every)

    def told(lines):
        return sorted((line["batch"], line["loss"], line["lost_updates"], line["cache_rows"]) for line in lines)

    assert told(lines) == told(expected)
    assert [line["batch"] for line in lines] == sorted(line["batch"] for line in lines)
    ends = [line["batch"] for line in expected]
    assert ends == [n for n in range(first, first + count) if (n + 1) % every == 0 or n == first + count - 1]
    for line, start in zip(expected, [first, *(end + 1 for end in ends)], strict=False):
        part = [batch for batch in batches if start <= batch.batch_index <= line["batch"]]
        examples = sum(batch.examples for batch in part)
        assert line["loss"] == math.fsum(batch.loss * batch.examples for batch in part) / examples
        assert line["replaced_rows"] == sum(batch.replaced for batch in part)
    assert report.computation_order() == [batch.batch_index for batch in batches]
    assert report.totals.examples == whole.totals.examples == sum(batch.examples for batch in batches)
    assert report.totals.batches == count and math.isclose(report.totals.stage_seconds["read"], 0.25 * len(lines))


def test_the_fill_of_a_channel_is_a_mean():
    lines, report = reported(results(0, 4), 2)
    assert [line["channel_fill"]["planned"] for line in lines] == [0.5, 2.5]
    assert report.totals.metrics()["channel_fill"]["planned"] == 1.5


def test_seconds_of_compiling_are_left_out(monkeypatch):
    clock, compiled = iter(range(0, 1000, 10)), iter((0, 0, 4, 4, 4, 4, 99))
    monkeypatch.setattr(reporting.time, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(reporting.ahead, "seconds_here", lambda: next(compiled))
    lines = []
    progress = TrainingProgress(0, 4, shown=False)
    progress.show = lambda *_: None
    report = SegmentReport(0, 0, 1, lines.append, dict, dict, progress)
    for batch in results(0, 2):
        report.add(batch)
    assert [line["seconds"] for line in lines] == [6, 10]


def test_what_is_left_is_told_without_the_seconds_of_compiling(monkeypatch):
    class Screen(io.StringIO):
        def isatty(self):
            return True

    spent = [0.0]
    monkeypatch.setattr(sys, "stderr", Screen())
    monkeypatch.setattr(reporting.ahead, "seconds_here", lambda: spent[0])
    with TrainingProgress(0, 50) as progress:
        assert "| 0/50, ? left" in sys.stderr.getvalue()
        began, spent[0] = progress._bar.start_t, 7.0
        progress.show(0, Totals(batches=10, examples=100, loss=50.0, seconds=1.0), 10)
        progress.show(0, Totals(batches=10, examples=100, loss=50.0, seconds=1.0), 20)
        assert progress._bar.start_t == began + 7


def test_sums_of_nothing_and_of_parts():
    assert Totals() + Totals() == Totals() and Totals().rate() == 0
    batches = results(0, 10)
    assert (Totals.of(batches[:4]) + Totals.of(batches[4:])).examples == Totals.of(batches).examples
    assert (Totals.of(batches[:4]) + Totals.of(batches[4:])).peak_cache_rows == Totals.of(batches).peak_cache_rows


def test_few_large_batches_are_told_of_before_an_interval_is_full(monkeypatch, capsys):
    clock = iter(range(0, 1000, 4))
    monkeypatch.setattr(reporting.time, "monotonic", lambda: next(clock))
    lines = []
    with TrainingProgress(0, 40) as progress:
        report = SegmentReport(0, 0, 100, lines.append, dict, dict, progress)
        for result in results(0, 4):
            report.add(result)
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1 and said[0].startswith("epoch 1, batch 3 of 40: loss "), said
    assert lines == []


@pytest.mark.parametrize("terminal", [False, True])
def test_progress(monkeypatch, terminal):
    class Screen(io.StringIO):
        def isatty(self):
            return terminal

    screen, clock = Screen(), iter(range(0, 1000, 6))
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(reporting.time, "monotonic", lambda: next(clock))
    with TrainingProgress(5, 50) as progress:
        for position in (15, 25, 35):
            progress.show(0, Totals(batches=10, examples=100, loss=50.0, seconds=1.0), position)
        progress.say("epoch 1 of 2")
    said = screen.getvalue()
    assert "epoch 1 of 2" in said and "loss 0.5000, 100" in said
    if not terminal:
        assert said.splitlines() == ["epoch 1, batch 25 of 50: loss 0.5000, 100 examples/s", "epoch 1 of 2"]


@pytest.mark.parametrize("columns", [80, 200])
def test_the_bar_has_room_to_move(monkeypatch, columns):
    """Also of a large run, of a million batches."""

    class Screen(io.StringIO):
        def isatty(self):
            return True

    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("NO_COLOR", "1")
    with TrainingProgress(0, 1_000_000) as progress:
        progress._bar.dynamic_ncols = lambda file: (columns, 40)
        progress.show(99, Totals(batches=500_000, examples=10**9, loss=5e8, seconds=1e3), 500_000)
        progress._bar.refresh()
    line = screen.getvalue().split("\r")[-3]
    assert re.fullmatch(r"epoch 100  50% \|#+\d? *\| 500k/1.00M, [\d:]+ left, loss 0.5000, 1,000,000/s", line)
    bar = line.split("|")[1]
    assert len(bar) >= columns - 66 and abs(bar.count("#") - len(bar) / 2) <= 1 and len(line) <= columns


@pytest.mark.parametrize("terminal", [False, True])
def test_what_another_process_shows_is_not_shown_here(monkeypatch, terminal):
    class Screen(io.StringIO):
        def isatty(self):
            return terminal

    screen, clock = Screen(), iter(range(0, 1000, 20))
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(reporting.time, "monotonic", lambda: next(clock))
    with TrainingProgress(5, 50, shown=False) as progress:
        progress.show(0, Totals(batches=10, examples=100, loss=50.0, seconds=1.0), 15)
        progress.say("epoch 1 of 2")
    assert screen.getvalue() == ""


def test_an_interval_without_examples_has_no_loss(capsys):
    """As a trainer has one that had no example of a batch."""
    nothing = BatchResult(
        batch_index=0, timestamp=0, loss=0.7, examples=0, replaced=0, refused=0, lost=0, cached_rows=0
    )
    lines, _ = reported([nothing], 1)
    assert lines[0]["loss"] is None and lines[0]["examples_per_second"] == 0
    totals = Totals.of([nothing])
    assert totals.mean_loss() is None and (totals + Totals.of(results(1, 3))).mean_loss() > 0
