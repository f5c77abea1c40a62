"""What stands still in a run is named: each stage, an evaluation, a checkpoint, a download, a compilation."""

import os
import re
import select
import signal
import threading
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest

from marius_oac.config.sections import WorkersConfig
from marius_oac.data.reading.download import download
from marius_oac.errors import Interrupted
from marius_oac.evaluation.scores import LinkScorer
from marius_oac.kernels import ahead, once
from marius_oac.pipeline.device import HostDevice
from marius_oac.pipeline.rows import LocalRows
from marius_oac.runs import loop
from marius_oac.runs.checkpoints import checkpoint
from marius_oac.runs.folder.metrics import MetricsFile
from marius_oac.runtime import standstill
from marius_oac.runtime.files.npy import NpyWriter
from marius_oac.runtime.standstill import watched
from marius_oac.storage.backing import Backing
from marius_oac.tasks.link_prediction.task import GraphTask
from marius_oac.tasks.trained import Question
from marius_oac.training import local, trained
from marius_oac.training.local import train
from tests.data.web_servers import EDGES, OK, file, serving
from tests.graphs import tiny_config
from tests.pipeline.toy import ToyPlanner, ToyStep, run_toy
from tests.threads import PATIENCE

AFTER = 0.2
FOR = r" for \d+ s"


class Told:
    """What is told. Who calls `wait` stands still until it is."""

    def __init__(self):
        self.lines, self._changed = [], threading.Condition()

    def tell(self, text):
        with self._changed:
            self.lines.append(text)
            self._changed.notify_all()

    def wait(self, pattern):
        line = re.compile(rf"no progress for \d s: {pattern}")
        with self._changed:
            there = self._changed.wait_for(lambda: any(map(line.fullmatch, self.lines)), PATIENCE)
        assert there, (pattern, self.lines)


@pytest.fixture
def told(monkeypatch):
    made = Told()
    monkeypatch.setattr(standstill, "tell", made.tell)
    return made


@pytest.fixture
def stall(told, monkeypatch):
    """Has a call of a function stand still until this is told."""

    def plant(where, name, pattern, call=1):
        function, calls = getattr(where, name), []

        def stalled(*args, **kwargs):
            calls.append(0)
            if len(calls) == call:
                told.wait(pattern)
            return function(*args, **kwargs)

        monkeypatch.setattr(where, name, stalled)
        return calls

    return plant


ONE_EACH = WorkersConfig(plan=1, read=1, upload=1, download=1, write=1)
STAGES = {
    "plan": (ToyPlanner, "plan"),
    "settle": (ToyPlanner, "assign_rows"),
    "fetch": (LocalRows, "fetch"),
    "wait": (LocalRows, "wait"),
    "read": (LocalRows, "read"),
    "upload": (HostDevice, "upload"),
    "validate": (LocalRows, "validate"),
    "compute": (ToyStep, "compute"),
    "download": (HostDevice, "download"),
    "write": (LocalRows, "write"),
}


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_is_named_with_its_batch(stage, stall, monkeypatch):
    monkeypatch.setattr(Backing, "look_ahead", 2)  # of rows that are fetched
    calls = stall(*STAGES[stage], f"stage {stage} holds batch 3{FOR}", call=4)
    with watched(AFTER):
        run_toy(ToyPlanner(batches=6), in_flight=3, workers=ONE_EACH)
    assert len(calls) == 6


def test_that_no_stage_holds_a_batch_is_told_too(stall):
    stall(LocalRows, "stops_before", "no stage of the pipeline holds a batch", call=3)
    with watched(AFTER):
        run_toy(ToyPlanner(batches=6), in_flight=3)


IN_A_RUN = {
    "an evaluation": (LinkScorer, "count", r"ranking stands at [\d,]+ of [\d,]+ scores", 2),
    "before its first block": (GraphTask, "evaluate", "valid is being evaluated", 1),
    "rows of a checkpoint": (NpyWriter, "write", "checkpoint 0000000025 is at table 'entities'", 2),
    "the rest of it": (checkpoint, "write_flushed", "checkpoint 0000000025 is being saved", 2),
    "metrics": (MetricsFile, "add", "the result of batch 9 is being reported", 2),
}


@pytest.mark.parametrize("work", IN_A_RUN)
def test_other_work_of_a_run_is_named(work, graph, stall, tmp_path):
    where, name, says, call = IN_A_RUN[work]
    calls = stall(where, name, f"{says}{FOR}", call)
    train(tiny_config(graph, f"stall_after={AFTER}", "training.epochs=1", "metrics.every_batches=5"), tmp_path / "run")
    assert len(calls) >= call


def test_each_block_of_a_checkpoint_is_progress(graph, tmp_path, monkeypatch):
    moved = []

    class Counted(standstill.Activity):
        def moved(self):
            moved.append(self.what)

    monkeypatch.setattr(checkpoint, "Activity", Counted)
    train(tiny_config(graph, "training.epochs=1", "evaluation.every=0"), tmp_path / "run")
    assert moved == ["checkpoint 0000000025 is at table 'entities'"]


def test_each_command_has_the_seconds_of_its_run(graph, tmp_path, monkeypatch):
    seen = []

    @contextmanager
    def seeing(after):
        seen.append(after)
        yield

    for module in (local, trained):
        monkeypatch.setattr(module, "watched", seeing)
    run = tmp_path / "run"
    local.train(tiny_config(graph, "stall_after=7", "training.epochs=1"), run)
    local.resume(run, ["training.epochs=2", "stall_after=8"])
    trained.evaluate_run(run)
    head, relation = graph.node_names(np.array([0]))[0], graph.relation_names(np.array([0]))[0]
    trained.predict_run(run, Question(head=head, relation=relation))
    assert seen == [7.0, 8.0, 8.0, 8.0]


def test_ctrl_c_says_what_it_waits_for(graph, tmp_path, monkeypatch, capfd):
    def probe(stage, batch):
        if (stage, batch) == ("compute", 3):
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(loop, "waits_for", lambda seconds: f"stage compute holds batch 3 for more than {seconds:.0f} s")
    with pytest.raises(Interrupted):
        local.train(tiny_config(graph), tmp_path / "run", probe=probe)
    said = "stopping after the batches in flight (stage compute holds batch 3 for more than 1 s); again to stop at once"
    assert said in capfd.readouterr().err


def test_a_download_is_named(told, tmp_path):
    def half(connection, stop):
        connection.sendall(OK + b"Content-Length: 2000\r\n\r\n" + bytes(1000))
        told.wait(f"downloading a.tsv stands at 1,000 of 2,000 B{FOR}")
        connection.sendall(bytes(1000))

    def late(connection, stop):
        told.wait(f"b.tsv is being downloaded{FOR}")
        connection.sendall(file())

    with serving(half=half, late=late) as server, watched(AFTER):
        download(f"{server}half", tmp_path / "a.tsv")
        download(f"{server}late", tmp_path / "b.tsv")
    assert (tmp_path / "a.tsv").read_bytes() == bytes(2000) and (tmp_path / "b.tsv").read_bytes() == EDGES


def test_a_compilation_is_named(stall, monkeypatch):
    kept = iter((False, True, True))
    monkeypatch.setattr(once, "is_kept", lambda kernel, signature: next(kept))
    monkeypatch.setattr(once, "CPUDispatcher", SimpleNamespace(compile=lambda kernel, signature: "code"))
    stall(once.CPUDispatcher, "compile", rf"kernel {__name__}\.some_kernel is being compiled{FOR}")
    with watched(AFTER):
        assert once.compiled(SimpleNamespace(py_func=some_kernel), None) == "code"


def some_kernel():
    """Is compiled in a test."""


def test_compilations_beside_the_run_are_named(stall, monkeypatch):
    reading, writing = os.pipe()
    with open(reading, "rb", buffering=0) as pipe, open(writing, "wb", buffering=0) as other:
        beside = ahead._Processes.__new__(ahead._Processes)
        beside._lock, beside._count, beside.total = threading.Lock(), 3, 9
        beside._process = SimpleNamespace(stdout=pipe)
        other.write(b"..")
        monkeypatch.setattr(ahead, "select", SimpleNamespace(select=select.select))
        stall(ahead.select, "select", f"compilation beside this process stands at 3 of 9 kernels{FOR}")
        with watched(AFTER):
            assert beside.step() == 2
