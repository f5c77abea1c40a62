"""Errors, Ctrl-C and kill -9 at forced moments: no hang, no thread left, a clear message, and the resumed run ends in
the bits of the uninterrupted one."""

import errno
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from marius_oac.errors import InputError, Interrupted
from marius_oac.runs.checkpoints.retention import Checkpoints
from marius_oac.runs.session import Session
from marius_oac.training import local as training
from tests.graphs import tiny_config, tiny_graph
from tests.pipeline.toy import STAGES

pytestmark = pytest.mark.usefixtures("forked_programs")
ROOT = Path(__file__).parents[2]
BATCHES = 50  # two epochs of 25 batches; checkpoints after 7, 14, 21, 25, 28, 35, 42, 49, 50

# fmt: off
BEFORE_TRAINING = ("fsync", 6)
KILL_MOMENTS = [("plan", 0), ("write", 24), ("fsync", 5), ("rename", 5), ("rmtree", 3), ("evaluate", 3)]
CTRL_C_MOMENTS = [("write", 0), ("validate", 9), BEFORE_TRAINING, ("rename", 6), ("evaluate", 1)]
MORE_STAGE_MOMENTS = [("compute", 0), ("plan", 25), ("read", 33)]
MORE_KILL_MOMENTS = [*MORE_STAGE_MOMENTS, ("read", 5), ("compute", 14), ("fsync", 24), ("rename", 2), ("replace", 1),
                     ("write", 0), ("upload", 6), ("validate", 9), ("download", 20), ("write", 49),
                     ("fsync", 6), ("fsync", 7), ("fsync", 9), ("rename", 3), ("replace", 2), ("evaluate", 1)]
MORE_CTRL_C_MOMENTS = [*MORE_STAGE_MOMENTS, ("upload", 6), ("download", 20), ("fsync", 34), ("rmtree", 2),
                       ("plan", 0), ("read", 5), ("compute", 14), ("write", 24), ("fsync", 12),
                       ("rename", 3), ("rmtree", 4), ("compute", 44)]
# fmt: on


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    graph = tiny_graph(tmp_path_factory.mktemp("tiny"))
    return tiny_config(
        graph,
        "checkpoint.every_batches=7",
        "pipeline.in_flight=4",
        "pipeline.workers.read=2",
        "metrics.every_batches=5",
    )


@pytest.fixture(scope="module")
def uninterrupted(config, tmp_path_factory):
    return bits(training.train(config, tmp_path_factory.mktemp("whole") / "run").summary)


def bits(summary):
    """What must be equal: tables, dense parameters, and everything that follows from them."""
    timing = ("seconds", "examples_per_second", "rss", "machine", "replaced", "refused", "cache")
    return {key: value for key, value in summary.items() if not any(part in key for part in timing)}


def resumed(path, **options):
    return bits(training.resume(path, **options).summary)


@pytest.mark.parametrize(
    "stage",
    [each if each in ("read", "compute", "write") else pytest.param(each, marks=pytest.mark.slow) for each in STAGES],
)
def test_an_error_in_a_stage_surfaces_and_the_run_goes_on_to_the_same_bits(config, uninterrupted, tmp_path, stage):
    def probe(at, batch_index):
        if (at, batch_index) == (stage, 30):
            raise OSError(f"injected in {stage}")

    before = threading.active_count()
    with pytest.raises(OSError, match=f"injected in {stage}") as caught:
        training.train(config, tmp_path / "run", probe=probe)
    assert any(entry.name == "probe" for entry in caught.traceback)
    assert threading.active_count() == before
    assert max(Checkpoints(tmp_path / "run" / "checkpoints").names()) >= f"{28 if stage != 'plan' else 25:010d}"
    assert resumed(tmp_path / "run") == uninterrupted


@pytest.mark.parametrize("what", ["error", "ctrl-c"])
def test_full_channels_at_shutdown(config, uninterrupted, tmp_path, what):
    """Batch 10 is not written before the planners have filled every channel up to it."""
    config = config.replace("checkpoint.every_batches=0")
    full = threading.Event()

    def probe(stage, batch_index):
        if stage == "plan" and batch_index == 10 + 4 + 5:  # in flight, and planned beyond: `planned` is full
            full.set()
        if (stage, batch_index) == ("write", 10):
            assert full.wait(30)
            if what == "error":
                raise OSError("injected before full channels")
            os.kill(os.getpid(), signal.SIGINT)

    before = threading.active_count()
    with pytest.raises(OSError if what == "error" else Interrupted, match="injected|go on with"):
        training.train(config, tmp_path / "run", probe=probe)
    assert threading.active_count() == before
    assert resumed(tmp_path / "run") == uninterrupted


def test_a_second_ctrl_c_stops_at_once(config, uninterrupted, tmp_path):
    """Of another kind, since the same one at once would be the same request."""

    def probe(stage, batch_index):
        if (stage, batch_index) == ("write", 17):
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGTERM)

    before = threading.active_count(), signal.getsignal(signal.SIGINT)
    with pytest.raises(Interrupted, match="stopped; go on with: marius-oac resume"):
        training.train(config, tmp_path / "run", probe=probe)
    assert (threading.active_count(), signal.getsignal(signal.SIGINT)) == before
    assert resumed(tmp_path / "run") == uninterrupted


@pytest.mark.parametrize("split", ["valid", "test"])
def test_ctrl_c_stops_an_evaluation_at_once(config, uninterrupted, tmp_path, monkeypatch, split):
    real, seen = Session.evaluate, []

    def evaluate(session, asked, **options):
        seen.append(asked)
        if asked == split:
            os.kill(os.getpid(), signal.SIGINT)
            seen.append("went on")
        return real(session, asked, **options)

    before = threading.active_count(), signal.getsignal(signal.SIGINT)
    with monkeypatch.context() as patch:
        patch.setattr(Session, "evaluate", evaluate)
        with pytest.raises(Interrupted, match="stopped at batch .*; go on with: marius-oac resume"):
            training.train(config, tmp_path / "run")
    assert seen[-1] == split and "went on" not in seen
    assert (threading.active_count(), signal.getsignal(signal.SIGINT)) == before
    assert resumed(tmp_path / "run") == uninterrupted


def test_a_full_disk_is_named_and_spares_the_older_checkpoints(config, uninterrupted, tmp_path, monkeypatch):
    real = os.fsync

    def full(descriptor):
        if "0000000021" in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match=r"checkpoints/0000000021: can't be written: No space left"):
        training.train(config, tmp_path / "run")
    monkeypatch.undo()
    checkpoints = Checkpoints(tmp_path / "run" / "checkpoints")
    assert checkpoints.names() == ["0000000007", "0000000014"]
    assert sorted(path.name for path in checkpoints.folder.iterdir()) == checkpoints.names()
    assert resumed(tmp_path / "run") == uninterrupted


def test_an_error_while_evaluating_loses_nothing(config, uninterrupted, tmp_path, monkeypatch):
    def broken(self, split, **options):
        raise MemoryError("injected")

    with monkeypatch.context() as patch, pytest.raises(MemoryError):
        patch.setattr(Session, "evaluate", broken)
        training.train(config, tmp_path / "run")
    assert Checkpoints(tmp_path / "run" / "checkpoints").names()[-1] == "0000000025"
    assert resumed(tmp_path / "run") == uninterrupted


@pytest.mark.parametrize("mode", ["oac", "async"])
def test_resuming_with_other_workers_keeps_the_promise_of_oac_alone(config, uninterrupted, tmp_path, mode):
    """The scripts above would not notice a resume that starts again from the first batch; batches are counted here."""
    seen = []

    def stop(stage, batch_index):
        if (stage, batch_index) == ("compute", 30):
            raise OSError

    def watch(stage, batch_index):
        if stage == "compute":
            seen.append(batch_index)

    with pytest.raises(OSError):
        training.train(config.replace(f"pipeline.mode={mode}"), tmp_path / "run", probe=stop)
    found = resumed(tmp_path / "run", overrides=["pipeline.in_flight=9", "pipeline.workers.write=3"], probe=watch)
    assert sorted(seen) == list(range(28, BATCHES))
    if mode == "oac":
        assert found == uninterrupted


def script(number, *moments, last="resume"):
    """Train until the signal, resume until the one at each further moment, and go on to the end."""
    commands = ["train"] + ["resume"] * (len(moments) - 1)
    faults = [{"command": command, "signal": number, "at": at} for command, at in zip(commands, moments, strict=True)]
    return {"starts": [*faults, {"command": last}]}


SCRIPTS = {
    **{("kill", moment): script(signal.SIGKILL, moment) for moment in KILL_MOMENTS},
    **{("ctrl-c", moment): script(signal.SIGINT, moment) for moment in CTRL_C_MOMENTS},
    ("kill", "four times"): script(signal.SIGKILL, ("write", 16), ("fsync", 4), ("rename", 1), ("compute", 40)),
    ("ctrl-c", "four times"): script(signal.SIGINT, ("write", 16), ("fsync", 8), ("rename", 1), ("compute", 40)),
    ("kill", "before the folder"): script(signal.SIGKILL, ("rename", 1), last="train"),
    ("ctrl-c", "before the folder"): script(signal.SIGINT, ("rename", 1), last="train"),
}
MORE_SCRIPTS = {
    **{("kill", moment): script(signal.SIGKILL, moment) for moment in MORE_KILL_MOMENTS},
    **{("ctrl-c", moment): script(signal.SIGINT, moment) for moment in MORE_CTRL_C_MOMENTS},
}


def play(scripts, config, folder):
    """What the fork server made of all scripts."""
    source = folder / "config.yaml"
    source.write_text(config.dump())
    for number, each in enumerate(scripts.values()):
        each["folder"] = str(folder / f"{number:02d}")
        argv = {"train": ["train", str(source), "--out", each["folder"]], "resume": ["resume", each["folder"]]}
        for start in each["starts"]:
            start["argv"] = argv[start["command"]]
    request = {"warm_up": ["train", str(source), "--out", str(folder / "warm")], "scripts": list(scripts.values())}
    done = subprocess.run(
        [sys.executable, "-m", "tests.runs.fault_driver"],
        input=json.dumps(request), capture_output=True, text=True, cwd=ROOT, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return dict(zip(scripts, json.loads(done.stdout), strict=True))


@pytest.fixture(scope="module")
def outcomes(config, tmp_path_factory):
    return play(SCRIPTS, config, tmp_path_factory.mktemp("scripts"))


@pytest.fixture(scope="module")
def more_outcomes(config, tmp_path_factory):
    return play(MORE_SCRIPTS, config, tmp_path_factory.mktemp("more"))


def label(moment):
    return moment if isinstance(moment, str) else "{} {}".format(*moment)


def assert_same_end(outcome, uninterrupted):
    assert outcome["ended"][-1]["code"] == 0, outcome["ended"][-1]["said"]
    assert bits(outcome["summary"]) == uninterrupted


def assert_killed(outcome, uninterrupted):
    assert {end["code"] for end in outcome["ended"][:-1]} == {-signal.SIGKILL}
    assert_same_end(outcome, uninterrupted)


def assert_stopped(outcome, uninterrupted, said="marius-oac: stopped at batch"):
    for end in outcome["ended"][:-1]:
        assert end["code"] == 130 and "Traceback" not in end["said"], end["said"]
        assert said in end["said"] and "on with: marius-oac resume" in end["said"]
    assert_same_end(outcome, uninterrupted)


@pytest.mark.parametrize("moment", [*KILL_MOMENTS, "four times", "before the folder"], ids=label)
def test_kill_9(outcomes, uninterrupted, moment):
    assert_killed(outcomes["kill", moment], uninterrupted)


@pytest.mark.slow
@pytest.mark.parametrize("moment", MORE_KILL_MOMENTS, ids=label)
def test_kill_9_at_more_moments(more_outcomes, uninterrupted, moment):
    assert_killed(more_outcomes["kill", moment], uninterrupted)


@pytest.mark.parametrize("moment", [*CTRL_C_MOMENTS, "four times"], ids=label)
def test_ctrl_c(outcomes, uninterrupted, moment):
    said = ["marius-oac: stopped; go on with"] if moment == BEFORE_TRAINING else []
    assert_stopped(outcomes["ctrl-c", moment], uninterrupted, *said)


@pytest.mark.slow
@pytest.mark.parametrize("moment", MORE_CTRL_C_MOMENTS, ids=label)
def test_ctrl_c_at_more_moments(more_outcomes, uninterrupted, moment):
    assert_stopped(more_outcomes["ctrl-c", moment], uninterrupted)


def test_ctrl_c_before_the_run_has_its_folder(outcomes, uninterrupted):
    outcome = outcomes["ctrl-c", "before the folder"]
    assert outcome["ended"][0]["code"] == 130 and "marius-oac: stopped" in outcome["ended"][0]["said"]
    assert_same_end(outcome, uninterrupted)


def test_a_signal_in_the_last_batch_leaves_the_evaluation_to_the_next_start(config, uninterrupted, tmp_path):
    def probe(stage, batch_index):
        if (stage, batch_index) == ("write", BATCHES - 1):
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Interrupted, match=f"stopped at batch {BATCHES}; go on with") as caught:
        training.train(config, tmp_path / "run", probe=probe)
    assert caught.value.exit_code == 143 and not (tmp_path / "run" / "summary.json").exists()
    assert resumed(tmp_path / "run") == uninterrupted
