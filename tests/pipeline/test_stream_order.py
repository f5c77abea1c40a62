"""Whatever threads and streams do, two accesses to one buffer are ordered; planted mistakes are found."""

import threading
from contextlib import contextmanager, suppress
from dataclasses import replace

import pytest
import torch

from marius_oac.config.sections import PipelineConfig
from marius_oac.pipeline.device import TorchDevice
from marius_oac.pipeline.rows import LocalSource
from marius_oac.pipeline.runner import Pipeline
from marius_oac.runtime.telemetry import Telemetry
from tests.pipeline.stream_order import Order, OrderedDevice, OrderedStreams, watch
from tests.pipeline.test_runner import jitter, workers
from tests.pipeline.toy import STAGES, ToyPlanner, toy_stores
from tests.run_folders import each_with_one_of
from tests.threads import PATIENCE


class TensorStep:
    """As `ToyStep`, in torch's operations, which are seen. The parameter was copied to the device before the run."""

    def __init__(self, order):
        self.dense = torch.full((), 0.5, dtype=torch.float64)
        order.name(self.dense, "a parameter")
        order.access(self.dense, "default", write=True)

    def compute(self, rows, data, timestamp):
        total = torch.zeros((), dtype=torch.float64)
        for values in rows:
            bounded = values.abs() % 1.0
            values.copy_(3.7 * bounded * (1 - bounded) * 0.9 + 0.1 * self.dense)
            total = total + values.double().sum()
        mixed = self.dense * 3.9 * (1 - self.dense) + data.x[0] * 0.01 + total * 1e-6
        self.dense.copy_(mixed % 1.0)
        return total


def trained(monkeypatch, mode, in_flight=4, device=OrderedDevice, dtype="float32", probe=None, batches=30, **config):
    """Runs so many batches, or as many as there are before an error; returns what the order knows, and the tables."""
    order, planner = Order(), ToyPlanner(num_rows=24, batches=batches)
    watch(monkeypatch, order)
    stores, step = toy_stores(planner, dtype), TensorStep(order)
    settings = PipelineConfig(mode=mode, in_flight=in_flight, workers=workers(3), **config)
    source, probe = LocalSource(stores, mode), probe or jitter(in_flight)
    pipeline = Pipeline(planner, source, step, settings, torch.device("cpu"), Telemetry(), lambda _: None, probe)
    pipeline.device = device(order, pipeline)
    pipeline.bind = lambda stage: pipeline.device._streams.enter_thread()
    with suppress(OSError):
        pipeline.run(0, planner.batches_per_epoch)
    return order, [store.fingerprint() for store in stores]


MODES = [
    {"mode": "sync"},
    {"mode": "oac"},
    {"mode": "oac", "order": "arrival"},
    {"mode": "async"},
    {"mode": "async-delta"},
]


@pytest.mark.parametrize("config, way", each_with_one_of(MODES, [(4, "bfloat16"), (16, "float32"), (1, "float32")]))
def test_every_pair_of_accesses_is_ordered(monkeypatch, config, way):
    in_flight, dtype = way
    order, _ = trained(monkeypatch, in_flight=in_flight, dtype=dtype, **config)
    assert order.found == {} and order.unfinished == 0
    assert order.accesses > 2_000 and order.orders > 2_000


def test_the_device_of_the_test_has_the_bits_of_sync(monkeypatch):
    expected = trained(monkeypatch, "sync")[1]
    monkeypatch.undo()
    assert trained(monkeypatch, "oac")[1] == expected


@pytest.mark.parametrize("stage", STAGES)
def test_an_error_leaves_no_pair_without_an_order(monkeypatch, stage):
    def probe(at, batch_index):
        if (at, batch_index) == (stage, 20):
            raise OSError(f"injected in {stage}")

    assert trained(monkeypatch, "oac", probe=probe)[0].found == {}


def late_reader():
    """A probe: batch 5 borrows a buffer right after batch 4 has evicted it. Batch 3, which began to read before batch 0
    was written, is the last one whose validation read it. Batches 3 and 4 are downloaded only when batch 5 computes: so
    nothing that the host waits for says that it has been read, nor that batch 4 has been uploaded."""
    reached = {moment: threading.Event() for moment in (("read", 3), ("compute", 4), ("compute", 5))}
    awaited = {("write", 0): ("read", 3), ("plan", 5): ("compute", 4)}
    awaited |= dict.fromkeys((("download", 3), ("download", 4)), ("compute", 5))

    def probe(stage, batch_index):
        if (stage, batch_index) in reached:
            reached[stage, batch_index].set()
        if (stage, batch_index) in awaited:
            assert reached[awaited[stage, batch_index]].wait(PATIENCE)

    return probe


# Planted mistakes: what each leaves out or does too early, in words; found when anything is reported.


def device_with(**methods):
    return type("Mistaken", (OrderedDevice,), methods)


def streams_with(monkeypatch, **methods):
    for name, method in methods.items():
        monkeypatch.setattr(OrderedStreams, name, method)
    return OrderedDevice


def no_wait(*left_out):
    """`wait`, but on these streams nothing waits."""
    real = OrderedStreams.wait
    return lambda streams, stream, event: None if stream in left_out else real(streams, stream, event)


def early(method_name, stream, attribute):
    """The method, with the event that it leaves in `batch.<attribute>` recorded before anything was done."""

    def mistaken(device, batch):
        event = device._streams.record(stream)
        getattr(TorchDevice, method_name)(device, batch)
        setattr(batch, attribute, event)

    return {method_name: mistaken}


def computed_before(what):
    """The event that the download waits for is recorded before `what` of the compute stage."""

    @contextmanager
    def computing(device, batch):
        with TorchDevice.computing(device, batch):
            yield
        batch.computed = device.event_before

    def round_values(device, batch):
        if what == "rounding":
            device.event_before = device._streams.record("compute")
        TorchDevice.round(device, batch)
        if what == "what follows":
            device.event_before = device._streams.record("compute")

    return {"computing": computing, "round": round_values}


@contextmanager
def computing_on(stream, device, batch):
    device._streams.wait("compute", batch.uploaded)
    with device._streams.on(stream):
        yield
        batch.computed = device._streams.record("compute")


@contextmanager
def computing_outside(device, batch):
    device._streams.wait("compute", batch.uploaded)
    yield
    batch.computed = device._streams.record("compute")


def download_on(stream, device, batch):
    device._streams.wait("down", batch.computed)
    with device._streams.on(stream):
        for table in range(len(batch.plan.rows)):
            batch.rows_in(batch.staging, table)[2].copy_(batch.rows_in(batch.resident, table)[2])
    device._streams.synchronize(device._streams.record("down"))
    return {}


def upload_on(stream, device, batch):
    with device._streams.on(stream):
        device._copy_up(batch)
    batch.uploaded = device._streams.record("up")


def synchronized_early(device, batch):
    device._streams.synchronize(device._streams.record("down"))
    device._streams.synchronize = lambda event: None
    spans = TorchDevice.download(device, batch)
    del device._streams.synchronize
    return spans


def staging_back_at_upload(device, batch):
    TorchDevice.upload(device, batch)
    device._staging.give_back(batch.staging)


def cached_alone(device, batch, cached):
    """`written`, where staging has been given back before."""
    if not cached:
        device._resident.give_back(batch.resident)


def evicted_without_event(device, batch):
    device._resident.give_back(batch.resident)


def evicted_by(stream, device, batch):
    batch.resident.free_after = device._streams.record(stream)
    device._resident.give_back(batch.resident)


def data_made_anew(device, batch):
    """The block would keep it until the batch has been computed; what the upload makes is the upload's."""
    TorchDevice._copy_up(device, batch)
    batch.data = replace(batch.data, x=batch.data.x.clone())


MISTAKES = {
    "an upload does not wait for who read its buffer": ("oac", lambda m: streams_with(m, wait=no_wait("up"))),
    "compute does not wait for the upload": ("oac", lambda m: streams_with(m, wait=no_wait("compute"))),
    "a download does not wait for compute": ("oac", lambda m: streams_with(m, wait=no_wait("down"))),
    "nobody waits for the download": ("oac", lambda m: streams_with(m, synchronize=lambda *_: None)),
    "one waits before the download": ("sync", lambda m: device_with(download=synchronized_early)),
    "parameters are not waited for": ("sync", lambda m: streams_with(m, begin=lambda s: s.order.hand_over("begin"))),
    "the upload's event is too early": ("oac", lambda m: device_with(**early("upload", "up", "uploaded"))),
    "the event is before the rounding": ("oac", lambda m: device_with(**computed_before("rounding"))),
    "the event is before the difference": ("async-delta", lambda m: device_with(**computed_before("what follows"))),
    "the event is before rows are checked": ("oac", lambda m: device_with(**computed_before("what follows"))),
    "compute is on the upload's stream": ("oac", lambda m: device_with(computing=lambda *a: computing_on("up", *a))),
    "compute is on the download's stream": (
        "oac",
        lambda m: device_with(computing=lambda *a: computing_on("down", *a)),
    ),
    "compute is on no stream": ("oac", lambda m: device_with(computing=computing_outside)),
    "the upload is on the download's stream": ("oac", lambda m: device_with(upload=lambda *a: upload_on("down", *a))),
    "the download is on the upload's stream": ("oac", lambda m: device_with(download=lambda *a: download_on("up", *a))),
    "the download is on compute's stream": (
        "oac",
        lambda m: device_with(download=lambda *a: download_on("compute", *a)),
    ),
    "staging is given back at the upload": (
        "oac",
        lambda m: device_with(upload=staging_back_at_upload, written=cached_alone),
    ),
    "a buffer is evicted without an event": ("oac", lambda m: device_with(evicted=evicted_without_event)),
    "an evicted buffer waits for another stream": (
        "oac",
        lambda m: device_with(evicted=lambda *a: evicted_by("up", *a)),
    ),
    "an array is made for the upload alone": ("oac", lambda m: device_with(_copy_up=data_made_anew)),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_planted_mistake_is_found(monkeypatch, name):
    mode, plant = MISTAKES[name]
    dtype = "bfloat16" if "rounding" in name else "float32"
    probe = late_reader() if mode == "oac" else None
    order, _ = trained(monkeypatch, mode, device=plant(monkeypatch), dtype=dtype, probe=probe, batches=12)
    assert order.found


def test_times_that_are_asked_for_too_soon_are_found(monkeypatch):
    """CUDA raises where an event has not happened."""
    order, _ = trained(monkeypatch, "oac", device=streams_with(monkeypatch, synchronize=lambda *_: None), batches=12)
    assert order.unfinished


def test_a_late_reader_is_ordered(monkeypatch):
    assert trained(monkeypatch, "oac", probe=late_reader())[0].found == {}
