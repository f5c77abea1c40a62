"""Stage timings and the trace."""

import errno
import io
import json
import threading

import pytest

from marius_oac.errors import InputError
from marius_oac.runtime import telemetry as module
from marius_oac.runtime.telemetry import Telemetry


def in_thread(name, work):
    thread = threading.Thread(target=work, name=name)
    thread.start()
    thread.join()


def test_seconds_are_summed_per_stage_and_taken_once(monkeypatch):
    clock = iter([0.0, 1.0, 3.0, 10.0, 10.5])
    monkeypatch.setattr(module.time, "perf_counter", lambda: next(clock))
    telemetry = Telemetry()
    with telemetry.stage("read", 0):
        pass
    with pytest.raises(KeyError), telemetry.stage("write", 1):
        raise KeyError
    assert telemetry.take() == {"read": 2.0, "write": 0.5} and telemetry.take() == {}
    telemetry.close()


def test_waiting_does_not_count(monkeypatch):
    clock = iter([0.0, 1.0, 8.0, 10.0, 11.0])
    monkeypatch.setattr(module.time, "perf_counter", lambda: next(clock))
    telemetry = Telemetry()
    with telemetry.stage("download", 0) as stage:
        stage.began(7.0)
    with telemetry.stage("download", 1) as stage:
        stage.began(9.0)  # before it had begun
    assert telemetry.take() == {"download": 1.0 + 1.0}


def test_a_device_has_tracks_of_its_own(tmp_path):
    with Telemetry(tmp_path / "trace.json") as telemetry:
        with telemetry.stage("download", 7):
            pass
        telemetry.record("device.compute", 7, 1.0, 3.5, track="device compute")
        assert telemetry.take()["device.compute"] == 2.5
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    tracks = {event["args"]["name"]: event["tid"] for event in events if event["name"] == "thread_name"}
    (compute,) = [event for event in events if event["name"] == "device.compute"]
    assert compute["tid"] == tracks["device compute"] != tracks["MainThread"]
    assert compute["dur"] == 2.5e6 and compute["args"] == {"batch": 7}


@pytest.mark.parametrize("error", [None, ValueError])
def test_the_trace_has_a_track_per_worker_and_is_valid_after_an_error(tmp_path, error):
    def work(stage, numbers):
        for number in numbers:
            with telemetry.stage(stage, number):
                if error and number == 3:
                    raise error

    try:
        with Telemetry(tmp_path / "trace.json") as telemetry:
            barrier = threading.Barrier(4)
            threads = [
                threading.Thread(target=lambda i=i: (barrier.wait(), work("read", range(i, 100, 4))), name=f"read-{i}")
                for i in range(4)
                if not error
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            work('wri"te', [1, 2, 3])
    except ValueError:
        assert error
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    tracks = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert len(tracks) == len(set(tracks.values())) == (1 if error else 5)
    slices = [event for event in events if event["ph"] == "X"]
    assert len(slices) == (3 if error else 103)
    for event in slices:
        if event["name"] == "read":
            assert tracks[event["tid"]] == f"read-{event['args']['batch'] % 4}"
    telemetry.close()  # once more does nothing


def test_a_full_disk_is_named(tmp_path, monkeypatch):
    class Full(io.StringIO):
        def write(self, text):
            if self.closed or len(text) < 8:
                raise OSError(errno.ENOSPC, "No space left on device")
            return len(text)

    monkeypatch.setattr("builtins.open", lambda *args, **kwargs: Full())
    telemetry = Telemetry(tmp_path / "trace.json")
    with pytest.raises(InputError, match=r"trace.json: can't be written: No space left on device"):
        telemetry.close()
    telemetry.close()
    with pytest.raises(InputError, match="trace.json: can't be written"):
        monkeypatch.undo()
        Telemetry(tmp_path / "none" / "trace.json")
