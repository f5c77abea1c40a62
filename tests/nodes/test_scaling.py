"""Trainers that join and leave in the middle of a run: what the first process decides, requests, and real runs."""

import json
import os
import re
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from marius_oac.cli import commands as cli
from marius_oac.config.cluster import START_VARIABLE
from marius_oac.errors import InputError
from marius_oac.nodes.groups.thread_group import ThreadGroup
from marius_oac.nodes.launch.agent import PARENT
from marius_oac.nodes.launch.cluster import Place
from marius_oac.nodes.launch.launch import local_cluster
from marius_oac.runs.sharded import scaling as files
from marius_oac.runs.sharded.peers import ClusterPeers
from marius_oac.runs.sharded.scaling import Change, read_state, write_request
from marius_oac.training import scaling
from tests.nodes.test_node_training import BATCHES, configs, digests, run, start
from tests.nodes.test_parts_training import NETS
from tests.run_folders import says

__all__ = ["configs"]
PARTS = 6
EPOCH = BATCHES * 64 // 128  # batches of `NETS["clicks"]`


def place_of(rank, count):
    cluster = local_cluster(count)
    return Place(cluster, cluster.nodes[rank], rank, 0, None)


def loop_of(**others):
    training = SimpleNamespace(early_stopping=others.get("early_stopping"))
    config = SimpleNamespace(nodes=SimpleNamespace(parts=PARTS), training=training)
    pipeline = SimpleNamespace(request_pause=others.get("pause", lambda: None), request_stop=others.get("stop"))
    session, position = SimpleNamespace(pipeline=pipeline), SimpleNamespace(batch_index=7)
    peers = ClusterPeers(others.get("group", *ThreadGroup.members(1)))
    return SimpleNamespace(config=config, position=position, session=session, change=None, peers=peers)


class Held:
    """In place of a checkpoint in memory."""

    def __init__(self):
        self.closed = False

    def close(self):
        self.closed = True


class Joining:
    """In place of processes: each start succeeds after `looks` looks, or fails."""

    def __init__(self, run):
        self.there, self.starts, self.looks, self.fails, self.reads = set(), [], 0, False, True

    def start(self, ranks, count, start):
        assert start not in self.starts and not self.there & {*ranks}
        self.starts.append(start)
        self.new, self.left_looks = {*ranks}, self.looks

    def wait(self, seconds):
        if self.new and self.fails:
            raise ChildProcessError("trainer 3 has not started: no memory")
        self.left_looks -= 1
        if self.left_looks > 0:
            return False
        self.there |= self.new
        return True

    def late(self):
        return []

    def left(self, count):
        self.there = {rank for rank in self.there if rank < count}

    def close(self, count):
        self.there = set()


class Changes(RuleBasedStateMachine):
    """Requests, starts that fail and boundaries in any order; every process of the run is told the same."""

    @initialize(count=st.integers(1, PARTS))
    def begin(self, count):
        os.environ |= {PARENT: "1", START_VARIABLE: "start 0"}
        self.folder = self.tmp.mktemp("run")
        write_request(self.folder, count % PARTS + 1)  # of a run that was killed
        self.founders, self.count, self.token, self.wanted = count, count, "", None
        self.paused, self.released, self.put_offs = threading.Event(), [], 0
        scaling.stop_on_interrupt = self.put_off
        scaling.release = lambda name, timeout: self.released.append(name)
        scaling.await_release = lambda name, timeout: self.released.append(f"for {name}")
        self.joining = Joining(None)
        scaling.Joining = lambda run: self.joining
        self.members = {rank: scaling.Scaling(place_of(rank, count)) for rank in range(count)}
        self.serve()

    @contextmanager
    def put_off(self, request):
        """Each process that changes may be asked to stop meanwhile."""
        self.put_offs += 1
        if self.stops:
            request()
        yield
        self.put_offs -= 1

    def serve(self):
        groups = dict(zip(self.members, ThreadGroup.members(len(self.members)), strict=True))
        self.stopped = []
        self.loops = {
            rank: loop_of(pause=self.paused.set, group=group, stop=lambda rank=rank: self.stopped.append(rank))
            for rank, group in groups.items()
        }
        self.all(lambda rank: self.members[rank].serve(self.folder, self.loops[rank]))

    def all(self, work):
        """What each process does at once."""
        with ThreadPoolExecutor(len(self.members)) as pool:
            return [*pool.map(work, self.members)]

    def answer(self):
        """Waits until the last request is answered, or a change is decided."""
        asked = self.folder / files.REQUEST
        while (read_state(self.folder).answered != self.token or asked.exists()) and not self.paused.wait(0.001):
            pass

    @rule(trainers=st.integers(-1, PARTS + 1), looks=st.integers(0, 3), fails=st.booleans())
    @precondition(lambda self: self.wanted is None)
    def ask(self, trainers, looks, fails):
        self.joining.looks, self.joining.fails = looks, fails
        self.token = write_request(self.folder, trainers)
        self.answer()
        refused = not 1 <= trainers <= PARTS or (fails and trainers > self.count)
        if refused or trainers == self.count:
            state = read_state(self.folder)
            assert (state.answered, state.failed, state.trainers) == (self.token, refused, self.count)
            assert self.members[0]._decided is None and not self.paused.is_set()
        else:
            self.wanted = trainers

    @rule(in_memory=st.booleans(), stops=st.booleans())
    def boundary(self, in_memory, stops):
        found, *others = self.all(lambda rank: self.loops[rank].change())
        assert others == [found] * len(others) and (found is None) == (self.wanted is None)
        if found is None:
            return
        joining = max(0, self.wanted - self.count)
        assert found == Change(self.wanted, found.start, joining, self.joining.reads)
        self.paused.clear()
        held = {rank: Held() if in_memory else None for rank in self.members}
        self.stops = stops
        stay = {rank: each for rank, each in self.members.items() if each.changed(found, held[rank])}
        assert stay.keys() == {rank for rank in self.members if rank < self.wanted}
        leave = [f"for {found.start}" for rank in held if rank >= self.wanted] if in_memory else []
        assert self.put_offs == len(held) * in_memory
        assert self.released == leave and not any(each and each.closed for each in held.values())
        new = {rank: scaling.Scaling(place_of(rank, self.wanted)) for rank in range(self.count, self.wanted)}
        self.members, self.count, self.wanted = stay | new, self.wanted, None
        assert os.environ[START_VARIABLE] == found.start and os.environ["WORLD_SIZE"] == str(self.count)
        self.serve()
        assert self.put_offs == len(leave) and sorted(self.stopped) == [*stay] * (in_memory and stops)
        self.put_offs = 0
        for each in self.members.values():
            each._stop_asked = False  # a run would have stopped
        assert self.released == leave + [found.start] * in_memory
        assert not in_memory or all(held[rank].closed for rank in stay)
        assert all(each.held is None for each in self.members.values())
        self.released.clear()
        state = read_state(self.folder)
        assert (state.answered, state.failed, state.said) == (self.token, False, state.said)
        assert state.said == f"{self.count} trainer{'s' * (self.count > 1)} from batch 7 on"

    @invariant()
    def all_are_there(self):
        assert sorted(self.members) == list(range(self.count))
        assert all(each.place == place_of(rank, self.count) for rank, each in self.members.items())

    def teardown(self):
        if hasattr(self, "members"):
            self.members[0].__exit__()
            assert os.listdir(self.folder) == []


@pytest.fixture
def quickly(tmp_path_factory, monkeypatch):
    monkeypatch.setattr(scaling, "_LOOK", 0.001)
    for name in ("Joining", "release", "await_release", "stop_on_interrupt"):
        monkeypatch.setattr(scaling, name, None)
    for name in (PARENT, START_VARIABLE, "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.setenv(name, "")
    Changes.tmp = tmp_path_factory


def test_each_kind_of_request_once(quickly, monkeypatch):
    watched, frozen_end = [], scaling.frozen_end
    monkeypatch.setattr(scaling, "frozen_end", lambda *given: watched.append(given) or frozen_end(*given))
    made = Changes()
    made.begin(2)
    try:
        for trainers, looks, fails in ((2, 0, False), (4, 2, True), (7, 0, False), (4, 2, False), (1, 0, False)):
            made.joining.reads = looks == 0
            made.ask(trainers, looks, fails)
            made.boundary(in_memory=not fails, stops=looks > 0)
        assert watched == [(made.joining.late, made.members[0].place.cluster.timeout)] * 3
        assert len(made.joining.starts) == 3  # the last one starts nobody; what was asked before the run, nothing
        made.ask(4, 0, False)  # those who joined before have left
        made.boundary(in_memory=True, stops=False)
        made.all_are_there()
    finally:
        made.teardown()


def test_requests_and_changes_in_any_order(quickly):
    Changes.TestCase.settings = settings(max_examples=8, stateful_step_count=8, deadline=None)
    Changes.TestCase("runTest").runTest()


@pytest.mark.parametrize(
    ("trainers", "change", "said"),
    [
        (0, {}, "1 to 6 trainers, as nodes.parts says"),
        (7, {}, "1 to 6 trainers, as nodes.parts says"),
        (2, None, "no run that can be scaled trains here; it needs nodes.parts and --local-nodes"),
        (2, {"started": 1.0}, "no run that can be scaled trains here"),
        (2, {"pid": 1 << 22}, "no run that can be scaled trains here"),
        (2, {"trainers": "two"}, "trainers"),
    ],
)
def test_what_cannot_be_asked_is_told_in_a_line(tmp_path, capsys, trainers, change, said):
    if change is not None:
        files.write_state(tmp_path, 2, PARTS)
        path = tmp_path / files.STATE
        path.write_text(json.dumps(json.loads(path.read_text()) | change))
    assert cli.main(["scale", str(tmp_path), str(trainers)]) == 2
    assert says(capsys.readouterr().err.splitlines(), said)
    assert not (tmp_path / files.REQUEST).exists()


def test_one_request_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_LOOK", 0.001)
    files.write_state(tmp_path, 2, PARTS)
    write_request(tmp_path, 4)
    with pytest.raises(InputError, match="has been asked for and is not there yet"):
        files.scale(tmp_path, 3)
    (tmp_path / files.REQUEST).unlink()
    made = files.write_request
    monkeypatch.setattr(files, "write_request", lambda *about: (made(*about), made(*about))[0])
    with pytest.raises(InputError, match="another request has taken the place"):
        files.scale(tmp_path, 3)


def test_a_run_with_early_stopping_or_not_on_this_machine_keeps_its_trainers(tmp_path, monkeypatch):
    monkeypatch.setattr(scaling, "_LOOK", 0.001)
    monkeypatch.setattr(files, "_LOOK", 0.001)
    loop = loop_of(early_stopping=True)
    with scaling.Scaling(place_of(0, 2)) as one:  # not started by our agent
        one.serve(tmp_path, loop)
    assert loop.change is None and read_state(tmp_path) is None
    monkeypatch.setenv(PARENT, "1"), monkeypatch.setenv(START_VARIABLE, "start 0")
    with scaling.Scaling(place_of(0, 2)) as one:
        (tmp_path / files.REQUEST).write_text('{"trainers": 3}')  # of a run that was killed
        one.serve(tmp_path, loop)
        with pytest.raises(InputError, match="early_stopping"):
            files.scale(tmp_path, 3)
        assert loop.change() is None
    other = replace(place_of(0, 2), cluster=local_cluster(2).model_copy(update={"timeout": 5.0}))
    loop = loop_of()
    with scaling.Scaling(other) as one:
        one.serve(tmp_path, loop)
    assert loop.change is None


@pytest.mark.slow
@pytest.mark.parametrize("on_disk", [False, True])
@pytest.mark.usefixtures("forked_programs", "all_code_is_known")
def test_trainers_join_and_leave_a_run_with_the_bits_of_one_that_did_all(on_disk, configs, tmp_path):
    """With batch norm, dropout and keys; the joined processes are started as a user's are. Rows in memory are in no
    checkpoint of a change, those on disk are."""
    task = configs / "clicks.yaml"
    sets = ["nodes.parts=4", "evaluation.every=0", *NETS["clicks"], *["storage.memory=1MiB"] * on_disk]
    keys = [word for key in sets for word in ("--set", key)]
    path = tmp_path / "live"
    process = start("train", task, "--local-nodes", 2, "--out", path, *keys, "--set", "training.epochs=9999")
    try:
        while read_state(path) is None:
            assert process.poll() is None, process.communicate()[0]
        for count, before in ((4, 2), (1, 4)):
            said = run("scale", path, count)
            batch = int(re.search(f"{count} trainers? from batch ([0-9,]+) on", said)[1].replace(",", ""))
            assert (
                batch % EPOCH == 0 or bool([*path.glob(f"nodes/{before}-*/node0/checkpoints/{batch:010d}")]) == on_disk
            )
        assert "1 are training" in run("scale", path, 1)
    finally:
        process.send_signal(signal.SIGINT)
        text, _ = process.communicate(timeout=120)
    assert process.returncode == 130 and not (path / files.STATE).exists(), text
    batches = int(re.search(r"stopped at batch ([0-9,]+)", text)[1].replace(",", ""))
    epochs = ["--set", f"training.epochs={batches // EPOCH + 1}"]
    run("resume", path, "--local-nodes", 3, *epochs)
    run("train", task, "--local-nodes", 1, "--out", tmp_path / "one", *keys, *epochs)
    assert digests(path) == digests(tmp_path / "one")
