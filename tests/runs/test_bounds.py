"""What a run may hold at most, with a writer that stalls: the device cache in batches, buffers and rows."""

import json
import subprocess
import sys
import threading

import numpy as np
import pytest

from marius_oac.pipeline import rows
from marius_oac.pipeline.validation import Cache
from marius_oac.runs.memory.plan import peak_rss
from marius_oac.training import local as training
from tests.graphs import tiny_config, tiny_graph, workers

STALLED = 30  # of 100 batches in an epoch
BATCH_ROWS = 2 * 8 + 2 * 8  # the most rows of a batch


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return tiny_graph(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def caches(monkeypatch):
    """All caches of the runs in a test; each notes after every batch its age in batches and its rows."""
    made = []

    class NotingCache(Cache):
        def __init__(self, *args):
            super().__init__(*args)
            self.ages, self.rows, self.buffers = [], [], set()
            made.append(self)

        def add(self, batch):
            super().add(batch)
            self.ages.append(batch.timestamp - self.oldest)
            self.rows.append(self.num_rows)
            self.buffers.add(id(batch.resident))

    monkeypatch.setattr(rows, "Cache", NotingCache)
    return made


class StalledWriter:
    """Holds the write of the batch computed STALLED-th until all that the window lets in are computed, and longer."""

    def __init__(self, in_flight):
        self.order, self.last = [], STALLED + in_flight - 1
        self.others_done, self.beyond = threading.Event(), threading.Event()
        self.overrun = None

    def __call__(self, stage, batch_index):
        if stage == "compute":
            self.order.append(batch_index)
            if len(self.order) == self.last + 1:
                self.others_done.set()
        if stage == "read" and batch_index > self.last:
            self.beyond.set()
        if stage == "write" and self.order.index(batch_index) == STALLED:
            assert self.others_done.wait(30)
            self.overrun = self.beyond.wait(0.1)


@pytest.mark.parametrize("in_flight", [2, 4, 8, 16])
@pytest.mark.parametrize("order", ["plan", "arrival"])
def test_a_stalled_writer_cannot_grow_the_cache(graph, tmp_path, caches, order, in_flight):
    window = in_flight - 1  # S
    config = tiny_config(
        graph, f"pipeline.in_flight={in_flight}", f"pipeline.order={order}", *workers(3), "metrics.every_batches=5",
        "training.batch_size=8", "training.negatives.chunks=1", "training.epochs=1",
    )  # fmt: skip
    stalled = StalledWriter(in_flight)
    run = training.train(config, tmp_path / "run", probe=stalled)
    assert stalled.overrun is False

    oldest = max(max(cache.ages) for cache in caches)
    assert oldest <= 2 * window + 1
    if order == "plan":
        assert oldest == window, "the stall brought the cache to its bound, and in plan order that is S"
    assert max(len(cache.buffers) for cache in caches) <= (2 if order == "plan" else 3) * in_flight

    lines = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    peaks = [line["cache_rows"] for line in lines if line["kind"] == "interval"]
    held = max(max(cache.rows[:-1]) for cache in caches)  # a batch that computes sees what those before it have left
    assert max(peaks) == run.summary["training.peak_cache_rows"] == held
    assert 0 < held <= (2 * window + 1) * BATCH_ROWS


def test_nothing_is_cached_where_nothing_is_validated(graph, tmp_path, caches):
    for mode in ("sync", "async"):
        run = training.train(tiny_config(graph, f"pipeline.mode={mode}"), tmp_path / mode)
        assert run.summary["training.peak_cache_rows"] == 0
    assert not any(cache.ages for cache in caches)


@pytest.mark.slow
def test_peak_memory_is_that_of_this_process_and_not_of_the_one_that_started_it():
    before = peak_rss()
    held = np.ones(max(before, 1 << 29), np.uint8)
    mine = peak_rss()
    assert held.nbytes <= mine < before + held.nbytes + (1 << 28)
    script = "from marius_oac.runs.memory.plan import peak_rss; print(peak_rss())"
    child = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert 1 << 24 < int(child.stdout) < mine - (1 << 27)
