"""The promise: whatever the threads do, `oac` has the bits of `sync`. Races are forced by delays and stalls."""

import itertools
import random
import threading
import time
from collections import defaultdict

import numpy as np
import pytest
import torch

from marius_oac.config.sections import WorkersConfig
from marius_oac.errors import DivergedError
from marius_oac.pipeline.device import TorchDevice
from marius_oac.pipeline.runner import Pipeline
from marius_oac.pipeline.streams import HostStreams
from marius_oac.types import BatchData, arrays_of
from tests.pipeline.toy import STAGES, ToyPlanner, ToyStep, run_toy, toy_stores
from tests.run_folders import slow


def jitter(seed):
    """A probe that holds each stage of each batch for a random while (a wait on an event nobody sets)."""
    never = threading.Event()

    def probe(stage, batch_index):
        never.wait(random.Random(f"{seed}{stage}{batch_index}").choice([0, 0, 0.0005, 0.002]))

    return probe


def workers(count):
    return WorkersConfig(plan=count, read=count, upload=count, download=count, write=count)


def copying(pipeline: Pipeline, streams: HostStreams | None = None) -> TorchDevice:
    """The copying device on the CPU: what CUDA runs, without its streams."""
    layouts = pipeline.source.layouts
    caching = pipeline.source.caching
    return TorchDevice(torch.device("cpu"), pipeline.planner.tables, layouts, pipeline.in_flight, caching, streams)


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def synchronous(request):
    return request.param, run_toy(mode="sync", dtype=request.param)[:2]


@pytest.mark.parametrize("device", [None, copying])
@pytest.mark.parametrize("in_flight, count", [(4, 4), (16, 4), *(slow(n, 1) for n in (1, 4, 16)), slow(1, 4)])
def test_oac_in_plan_order_has_the_bits_of_sync(synchronous, device, in_flight, count):
    dtype, expected = synchronous
    *tables, results, _ = run_toy(
        mode="oac", in_flight=in_flight, workers=workers(count), dtype=dtype, probe=jitter(in_flight), device=device
    )
    assert tuple(tables) == expected
    assert [result.batch_index for result in results] == list(range(60))
    assert in_flight == 1 or sum(result.replaced for result in results) > 0


@pytest.mark.parametrize("in_flight", [4, 16])
def test_arrival_has_the_bits_of_the_replay_of_its_order(in_flight):
    *tables, results, _ = run_toy(
        mode="oac", order="arrival", in_flight=in_flight, workers=workers(4), probe=jitter(in_flight)
    )
    order = [result.batch_index for result in results]
    assert sorted(order) == list(range(60)) and order != list(range(60))
    assert all(place - batch_index < in_flight for place, batch_index in enumerate(order))

    class Replay(ToyPlanner):
        def plan(self, batch_index):
            plan = super().plan(order[batch_index])
            return type(plan)(batch_index, plan.rows, plan.data, plan.examples)

    assert run_toy(Replay(), mode="sync")[:2] == tuple(tables)


@pytest.mark.parametrize("mode", ["async", "async-delta"])
@pytest.mark.parametrize("device", [None, copying])
def test_async_differs_from_sync_and_counts_what_it_loses(synchronous, mode, device):
    _, expected = synchronous
    *tables, results, _ = run_toy(mode=mode, in_flight=8, workers=workers(2), probe=jitter(1), device=device)
    assert tuple(tables) != expected
    assert (sum(result.lost for result in results) > 0) == (mode == "async")


class Adding(ToyStep):
    """Adds to each row what is this batch's alone."""

    def compute(self, rows, data, timestamp):
        for values in map(np.asarray, rows):
            values += np.float32(2.0**timestamp)
        return 0.0


@pytest.mark.parametrize("device", [None, copying])
@pytest.mark.parametrize("in_flight", [1, 8])
def test_async_delta_adds_what_each_batch_has_changed_once(device, in_flight):
    """However stale the rows were that it began with: nothing is lost, and nothing added twice."""
    planner = ToyPlanner(batches=12)
    stores = toy_stores(planner)
    for store in stores:
        for row in range(store.num_rows):
            store.load(row, np.array([-1]), np.zeros((1, store.layout.width), np.float32))
    *_, results, _ = run_toy(
        planner, mode="async-delta", in_flight=in_flight, workers=workers(2), probe=jitter(3), stores=stores,
        step=Adding(), device=device,
    )  # fmt: skip
    for table, store in enumerate(stores):
        expected = np.zeros(store.num_rows)
        for result in results:
            expected[planner.plan(result.batch_index).rows[table]] += 2.0**result.timestamp
        found = np.empty((store.num_rows, store.layout.width), np.float32)
        store.read(np.arange(store.num_rows), found, np.empty(store.num_rows, np.int64))
        assert (found == expected[:, None]).all()


def test_async_with_one_batch_in_flight_is_sync(synchronous):
    dtype, expected = synchronous
    *tables, results, _ = run_toy(mode="async", in_flight=1, dtype=dtype)
    assert tuple(tables) == expected and sum(result.lost for result in results) == 0


@pytest.mark.parametrize("order", ["plan", "arrival"])
@pytest.mark.parametrize("in_flight", [2, 5])
def test_a_stalled_writer_cannot_grow_the_cache(order, in_flight):
    """Batch 10 is not written before batch 10 + in_flight has been planned and everyone who can has gone round."""
    planner = ToyPlanner(batches=40)
    gate, far = threading.Event(), threading.Event()

    def probe(stage, batch_index):
        if stage == "plan" and batch_index >= 10 + in_flight:
            far.set()
        if stage == "write" and batch_index == 10:
            assert far.wait(30)
            gate.wait(0.05)

    *tables, results, pipeline = run_toy(
        planner, mode="oac", order=order, in_flight=in_flight, workers=workers(3), probe=probe
    )
    rows = sum(table.max_batch_rows for table in planner.tables)
    held = max(result.cached_rows for result in results) // rows
    assert held <= (in_flight if order == "plan" else 2 * in_flight - 1)
    assert pipeline.device._resident.made <= (2 if order == "plan" else 3) * in_flight
    if order == "plan":
        assert tuple(tables) == run_toy(planner, mode="sync")[:2]


@pytest.mark.parametrize("mode", ["sync", "oac", "async"])
@pytest.mark.parametrize("stage", STAGES)
def test_the_first_error_of_any_stage_stops_everything(mode, stage):
    if stage == "validate" and mode != "oac":
        pytest.skip("only oac validates")

    def probe(at, batch_index):
        if at == stage and batch_index == 17:
            raise OSError(f"injected in {stage}")

    before = threading.active_count()
    with pytest.raises(OSError, match=f"injected in {stage}") as caught:
        run_toy(mode=mode, in_flight=6, workers=workers(2), probe=probe)
    assert any(entry.name == "probe" for entry in caught.traceback)
    assert threading.active_count() == before


def test_a_stop_ends_after_whole_batches_and_goes_on_to_the_same_bits(synchronous):
    dtype, expected = synchronous
    held = {}

    def probe(stage, batch_index):
        if stage == "compute" and batch_index == 20:
            held["pipeline"].request_stop()

    planner, step = ToyPlanner(), ToyStep()
    stores = toy_stores(planner, dtype)

    def remember(pipeline):
        held["pipeline"] = pipeline
        return pipeline.device

    *_, results, pipeline = run_toy(
        planner, mode="oac", in_flight=4, stores=stores, step=step, device=remember, probe=probe
    )
    stopped_at = len(results)
    assert 20 < stopped_at < 60
    assert pipeline.stop_requested
    tables = run_toy(planner, mode="oac", in_flight=9, stores=stores, step=step, first=stopped_at)[:2]
    assert tables == expected


def test_a_diverging_batch_is_named_and_not_written():
    class Diverging(ToyStep):
        def compute(self, rows, data, timestamp):
            loss = super().compute(rows, data, timestamp)
            return float("nan") if timestamp == 30 else loss

    with pytest.raises(DivergedError, match="nan .* at batch 30"):
        run_toy(mode="oac", in_flight=4, step=Diverging())


def test_of_two_diverged_batches_that_are_downloaded_the_first_is_named():
    """The later one comes to be written first, and waits."""
    held = {}

    class Diverging(ToyStep):
        def compute(self, rows, data, timestamp):
            loss = super().compute(rows, data, timestamp)
            return torch.tensor(float("nan") if timestamp in (30, 31) else loss)

    def remember(pipeline):
        held["pipeline"] = pipeline
        return copying(pipeline)

    def probe(stage, batch_index):
        if (stage, batch_index) == ("write", 30):
            held["pipeline"]._stopped.wait(0.3)

    with pytest.raises(DivergedError, match="nan .* at batch 30"):
        run_toy(mode="oac", in_flight=4, workers=workers(3), step=Diverging(), device=remember, probe=probe)


def test_loss_and_examples_reach_the_caller():
    *_, results, _ = run_toy(mode="sync")
    assert all(np.isfinite(result.loss) and result.examples == 4 for result in results)


class SlowStreams(HostStreams):
    """Events of a stream are a second apart, and whoever waits for one waits 100 seconds by the host's clock."""

    def __init__(self):
        self.now, self.events = 0.0, defaultdict(itertools.count)

    def record(self, stream):
        return float(next(self.events[stream]))

    def synchronize(self, event):
        self.now += 100


def test_waiting_for_a_device_is_no_download_and_what_it_does_is_counted_apart(monkeypatch):
    streams = SlowStreams()
    monkeypatch.setattr(time, "perf_counter", lambda: streams.now)
    *_, pipeline = run_toy(mode="async", last=20, device=lambda pipeline: copying(pipeline, streams))
    total = pipeline.telemetry.total()
    assert total["download"] == 20, "each waited 100 seconds, 99 of them for what came before"
    assert {name: seconds for name, seconds in total.items() if name.startswith("device.")} == {
        "device.upload": 20, "device.compute": 20, "device.download": 20,
    }  # fmt: skip
    *_, pipeline = run_toy(mode="async", last=20)
    assert not any(name.startswith("device.") for name in pipeline.telemetry.total())


def test_a_batch_in_the_cache_keeps_its_rows_alone():
    """Its arrays would lie on the device as long, and no memory plan counts them."""
    kept = []

    class Watched(TorchDevice):
        def written(self, batch, cached):
            assert arrays_of(batch.data) == [] and isinstance(batch.data.x, torch.Tensor)
            super().written(batch, cached)
            kept.append((cached, type(batch.data)))

    def watched(pipeline):
        shape = (pipeline.planner.tables, pipeline.source.layouts, pipeline.in_flight, pipeline.source.caching)
        return Watched(torch.device("cpu"), *shape)

    run_toy(mode="oac", in_flight=4, device=watched)
    assert kept == [(True, BatchData)] * 60
