"""What is asked of CUDA, which a double takes down: where, on which stream, and how."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from marius_oac.pipeline import streams as streams_module
from marius_oac.pipeline.streams import CudaStreams, HostStreams


class Event:
    def __init__(self, at=0.0, **how):
        self.at, self.how, self.done = at, how, False

    def synchronize(self):
        self.done = True

    def elapsed_time(self, later):
        return later.at - self.at


class Stream:
    def __init__(self, device):
        self.device, self.events = device, []

    def record_event(self, event):
        self.events.append(event)
        return event

    wait_event = record_event


@pytest.fixture
def streams(monkeypatch):
    """Of a device whose tensors have no memory; what is pinned is the affair of `test_pinned`."""
    monkeypatch.setattr(
        streams_module, "PinnedMemory", lambda device: SimpleNamespace(empty=lambda *about: (device, *about))
    )
    for name, double in (("Stream", Stream), ("Event", Event), ("stream", nullcontext)):
        monkeypatch.setattr(torch.cuda, name, double)
    return CudaStreams(torch.device("meta"))


def test_each_stream_is_one_of_its_own_on_the_device(streams):
    entered = {}
    for name in ("up", "compute", "down"):
        with streams.on(name) as entered[name]:
            assert entered[name].device == torch.device("meta") and entered[name].events == []
    assert len(set(map(id, entered.values()))) == 3
    event = streams.record("up")
    streams.wait("compute", event)
    assert [each.events for each in entered.values()] == [[event], [event], []]
    assert event.how == {"enable_timing": True, "blocking": True}, "who waits would keep a core busy"
    streams.synchronize(event)
    assert event.done
    assert streams.seconds(Event(500.0), Event(2000.0)) == 1.5, "CUDA counts milliseconds"


def test_the_run_begins_when_the_device_has_what_was_put_there_before(streams, monkeypatch):
    waited = []
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    streams.begin()
    assert waited == [torch.device("meta")]


def test_tensors_are_on_the_device_or_pinned(streams):
    assert streams.empty((2, 3), torch.int64).device.type == "meta"
    assert streams.staging((2, 3), torch.int64) == (torch.device("meta"), (2, 3), torch.int64)


def test_a_cpu_has_room_and_times_of_its_own():
    streams = HostStreams()
    for room in (streams.empty((2, 3), torch.int64), streams.staging((2, 3), torch.int64)):
        assert (room.dtype, tuple(room.shape)) == (torch.int64, (2, 3))
    first, second = streams.record("up"), streams.record("down")
    assert 0 <= streams.seconds(first, second) == second - first
