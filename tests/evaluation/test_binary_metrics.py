"""Metrics of clicks: against pairs and fractions, in any pieces and order, with ties, spilling, and bad input."""

import io
import math
import os
import tempfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marius_oac.errors import InputError, MariusOacError
from marius_oac.evaluation import binary_metrics as classification
from marius_oac.evaluation.binary_metrics import ClickMetrics, Counts, metrics_of_counts
from tests.evaluation import naive_binary_metrics as naive

few = st.sampled_from([0.0, 2.0**-149, 2.0**-24, 0.25, 0.5, float(np.nextafter(np.float32(0.5), 1)), 1 - 2.0**-24, 1.0])
examples = st.lists(
    st.tuples(st.sampled_from([0, 1]), few | st.floats(0, 1, width=32)), min_size=1, max_size=60
)  # fmt: skip


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield tmp_path
    assert not list(tmp_path.iterdir()), "temporary files stay behind"


def arrays(pairs):
    return tuple(np.array(column, np.float32) for column in zip(*pairs, strict=True))


def metrics(labels, probabilities, *cuts, **options):
    with ClickMetrics(**options) as found:
        for ys, ps in zip(np.split(labels, cuts), np.split(probabilities, cuts), strict=True):
            found.add(ys, ps)
        return found.result()


@settings(deadline=None, max_examples=25)
@given(examples, st.data())
def test_against_the_naive_ones_in_any_pieces_and_order(pairs, data):
    labels, probabilities = arrays(pairs)
    found = metrics(labels, probabilities)
    assert found["examples"] == len(pairs)
    assert found["log_loss"] == pytest.approx(naive.log_loss(labels, probabilities), abs=1e-12)
    if 0 < labels.sum() < len(labels):
        assert found["auc"] == float(naive.auc(labels, probabilities))
        expected = naive.normalized_entropy(labels, probabilities)
        assert found["normalized_entropy"] == pytest.approx(expected, rel=1e-11, abs=1e-11)
    else:
        assert math.isnan(found["auc"]) and math.isnan(found["normalized_entropy"])
    if labels.any():
        assert found["calibration"] == pytest.approx(float(naive.calibration(labels, probabilities)), abs=1e-10)
    else:
        assert math.isnan(found["calibration"])
    order = data.draw(st.permutations(range(len(pairs))))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(pairs)), max_size=4)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(classification, "STREAM_ROWS", data.draw(st.integers(1, 20)))
        patch.setattr(classification, "_FIRST_ROWS", 2)
        again = metrics(labels[order], probabilities[order], *cuts, memory_limit=8 * data.draw(st.integers(1, 70)))
    assert str(again) == str(found)  # as text, since NaN is not NaN


@pytest.mark.parametrize("distinct", [1, 3, 3000, 1 << 24])
def test_ties_go_on_from_block_to_block(distinct):
    """More rows of a score than a block of the stream has, and many scores in a block."""
    rng = np.random.default_rng(distinct)
    scores = (rng.integers(0, distinct, 20_000) / distinct).astype(np.float32)
    labels = (rng.random(20_000) < scores * 0.8 + 0.1).astype(np.float32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(classification, "STREAM_ROWS", 2048)
        found = metrics(labels, scores, 777)
    values, inverse = np.unique(scores, return_inverse=True)
    ones = np.bincount(inverse, labels).astype(int).tolist()
    zeros = np.bincount(inverse, 1 - labels).astype(int).tolist()
    wins = seen = 0
    for one, zero in zip(ones, zeros, strict=True):
        wins, seen = wins + one * (2 * seen + zero), seen + zero
    assert found["auc"] == wins / (2 * sum(ones) * sum(zeros))
    assert found["log_loss"] == pytest.approx(naive.log_loss(labels, scores), abs=1e-12)
    assert found["calibration"] == pytest.approx(float(naive.calibration(labels, scores)), rel=1e-11)


def test_what_memory_does_not_hold_is_merged_from_a_file(monkeypatch):
    rng = np.random.default_rng(5)
    scores = rng.random(600_000, dtype=np.float32) ** 2
    labels = (rng.random(scores.size, dtype=np.float32) < scores).astype(np.float32)
    written, read = [], []
    write, real = ClickMetrics._write_run, ClickMetrics._read
    monkeypatch.setattr(classification, "STREAM_ROWS", 10_000)
    monkeypatch.setattr(ClickMetrics, "_write_run", lambda self: (written.append(self._num_pending), write(self)))
    monkeypatch.setattr(
        ClickMetrics, "_read", lambda self, first, stop: (read.append(stop - first), real(self, first, stop))[1]
    )
    small = metrics(labels, scores, 12_345, 300_000, memory_limit=8 * 70_000)
    assert written == [70_000] * 8 and read == [10_000] * 56
    assert small == metrics(labels, scores) and len(written) == 8
    with ClickMetrics(memory_limit=8 * 70_000) as found:
        found.add(labels, scores)
        assert found._pending.size == 70_000
    assert 0.7 < small["auc"] < 0.9 and small["calibration"] == pytest.approx(1, abs=0.01)


def test_counts_beyond_64_bits_are_exact():
    many = 1 << 40
    blocks = [
        Counts(np.array([0.25, 0.5], np.float32), np.array([1, many]), np.array([many, 3])),
        Counts(np.array([0.75], np.float32), np.array([many - 1]), np.array([many])),
    ]
    found = metrics_of_counts(iter(blocks))
    positives, negatives = 2 * many, 2 * many + 3
    wins = 1 * many + many * (2 * many + 3) + (many - 1) * (2 * (many + 3) + many)
    assert found["auc"] == wins / (2 * positives * negatives)
    assert found["examples"] == positives + negatives
    loss = (1 * math.log(4) + many * math.log(4 / 3) + (many + 3) * math.log(2)
            + (many - 1) * math.log(4 / 3) + many * math.log(4)) / (positives + negatives)  # fmt: skip
    assert found["log_loss"] == pytest.approx(loss, rel=1e-11)


def test_more_can_be_added_after_a_result():
    rng = np.random.default_rng(1)
    scores, labels = rng.random(100, dtype=np.float32), rng.integers(0, 2, 100).astype(np.float32)
    with ClickMetrics() as found:
        found.add(labels[:50], scores[:50])
        assert found.result() == found.result() == metrics(labels[:50], scores[:50])
        found.add(labels[50:], scores[50:])
        assert found.result() == metrics(labels, scores)


def test_the_arrays_may_be_reused_and_negative_zero_is_zero():
    labels, scores = np.array([1, 0], np.float32), np.array([-0.0, 0.0], np.float32)
    with ClickMetrics() as found:
        found.add(labels, scores)
        labels[:], scores[:] = 7, np.nan
        assert found.result()["auc"] == 0.5


@pytest.mark.parametrize("label, score, says", [
    (1, np.nan, "the probability of example 3 (from 0) is NaN, not a number from 0 to 1"),
    (1, 1.5, "the probability of example 3 (from 0) is 1.5,"),
    (1, -0.25, "the probability of example 3 (from 0) is -0.25,"),
    (0.5, 0.5, "the label of example 3 (from 0) is 0.5, not 0 or 1"),
    (np.nan, 0.5, "the label of example 3 (from 0) is NaN, not 0 or 1"),
])  # fmt: skip
def test_what_is_no_probability_or_label_is_refused(label, score, says):
    good = np.array([0, 1], np.float32)
    with ClickMetrics() as found:
        found.add(good, good)
        with pytest.raises(MariusOacError) as error:
            found.add(np.array([0, label], np.float32), np.array([0.5, score], np.float32))
        assert says in str(error.value)
        assert found.result()["examples"] == 2


def test_no_examples_and_wrong_arrays():
    with ClickMetrics() as found:
        with pytest.raises(MariusOacError, match="no examples"):
            found.result()
        for labels, scores in (([1.0], [0.5]), (np.ones(2, np.float32), np.ones(3, np.float32))):
            with pytest.raises(ValueError):
                found.add(np.asarray(labels), np.asarray(scores))


def test_a_full_disk_is_one_line(folder, monkeypatch):
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda buffering: open("/dev/full", "r+b", buffering))  # noqa: SIM115
    scores = np.random.default_rng(0).random(3_000, dtype=np.float32)
    with ClickMetrics(memory_limit=8000) as found, pytest.raises(InputError, match=f"{folder}: the disk is full"):
        found.add((scores < 0.5).astype(np.float32), scores)


def test_a_run_may_be_written_in_pieces(folder, monkeypatch):
    class Slow(io.FileIO):
        def write(self, data):
            return super().write(data[:1000])

    scores = np.random.default_rng(0).random(3_000, dtype=np.float32)
    labels = (scores < 0.5).astype(np.float32)
    expected = metrics(labels, scores)
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda buffering: Slow(folder / "run", "w+"))
    assert metrics(labels, scores, memory_limit=8000) == expected
    (folder / "run").unlink()


def test_a_file_that_was_cut_is_said_to_be():
    scores = np.random.default_rng(0).random(3_000, dtype=np.float32)
    with ClickMetrics(memory_limit=8000) as found:
        found.add((scores < 0.5).astype(np.float32), scores)
        os.ftruncate(found._file.fileno(), 4001)
        with pytest.raises(MariusOacError, match="has become shorter"):
            found.result()
