"""Trainers of the run's own that carry no rows: where batches are dispatched the run goes on without those that die."""

import os
import secrets
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from benchmarks.generate.log import LogSpec, write_day
from marius_oac.config.link_prediction import Config
from marius_oac.nodes.gba.modes import make_mode
from marius_oac.nodes.launch.agent import LocalProcesses, _spared
from marius_oac.nodes.shards.dispatched_shard import make_dispatched_shard
from marius_oac.nodes.training.rowless import staying
from marius_oac.nodes.transport.messages import Kind
from marius_oac.runs.folder.folder import RunFolder
from tests.nodes.dispatched_world import AHEAD, everything, make_dispatching, make_tables
from tests.nodes.wire import framed, tell
from tests.ports import free_ports

pytestmark = pytest.mark.usefixtures("forked_programs_of_one_thread")
EXAMPLES, BATCH = 60 * 30, 60
PATIENCE = 240


class Two:
    """Two shards; trainer 0 has them, trainer 1 carries no rows. M = 2, of which 3 steps are dispatched."""

    def __init__(self):
        self.tables = [make_tables(node, 1) for node in (0, 1)]
        dispatching = replace(make_dispatching(make_mode("gba", 2, 2, 1), 2, 2, dense=False), carriers=[0, 0], own=2)
        self.shards = [make_dispatched_shard(t, 1, AHEAD, dispatching, (0, 3), n) for n, t in enumerate(self.tables)]
        for shard in self.shards:
            shard.begin(0)

    def says(self, peer, kind, number=0, *arrays, node=0, **about):
        out = tell(self.shards[node], peer, framed(kind, number, arrays, **about))
        return {(to, message.kind): message for to, message in out}

    def dispatch(self, peer):
        """The next batch and its token; None: there is none left."""
        dispatched = self.says(peer, Kind.RESERVE)[peer, Kind.DISPATCH]
        return None if dispatched.final else (dispatched.batch_index, self.enter(peer, dispatched.batch_index))

    def enter(self, peer, number):
        token = self.says(peer, Kind.ENTER, number, step=5)[peer, Kind.TOKEN]
        for node in (0, 1):
            self.says(peer, Kind.PULL, number, np.arange(3), node=node)
        return token.token

    def push(self, peer, number, token, nodes=(0, 1)):
        """What each of these shards says to it."""
        about = {"step": token, "share": 0.5}
        return [self.says(peer, Kind.PUSH, number, np.ones((3, 3), np.float32), node=node, **about) for node in nodes]

    def train(self, peer, number, token):
        told = self.push(peer, number, token)
        steps = np.array([each[peer, Kind.APPLIED].step for each in told])
        return self.says(peer, Kind.DONE, number, steps, np.zeros(1))

    def dies(self, peer, late=lambda: None):
        """It is gone for the first shard, which holds the roll call; `late`: what the second one hears meanwhile."""
        for _, message in self.shards[0].gone(peer):
            worker, batches = message.worker, message.batches
        answers = [shard.refuse(batches.tolist()) for shard in self.shards]
        late()
        assert self.shards[1].gone(peer) == []
        fills = {}
        for node, (settled, step) in enumerate(answers):
            fills |= self.says(0, Kind.ANSWER, worker, np.array(settled), table=node, step=step)
        for (_, kind), message in fills.items():
            assert kind == Kind.FILL
            self.says(0, Kind.FILLED, worker, table=1, step=self.shards[1].fill(message.tokens.tolist()))


@pytest.mark.parametrize(
    ("moment", "pushed", "lost"), [("token", (), 1), ("torn", (0,), 1), ("unacknowledged", (0, 1), 0)]
)
def test_no_token_of_the_dead_is_lost_and_none_counts_twice(moment, pushed, lost):
    two = Two()
    own = two.dispatch(0)
    number, token = two.dispatch(1)
    two.push(1, number, token, pushed)

    def late():
        if moment != "unacknowledged":
            before = everything(two.tables[1])
            assert two.push(1, number, token, (1,)) == [{}], "its place is taken by somebody else's"
            assert all(np.array_equal(*each) for each in zip(before[0], everything(two.tables[1])[0], strict=True))

    two.dies(1, late)
    tokens, dispatch = [], own
    while dispatch is not None:
        tokens.append(dispatch[1])
        two.train(0, *dispatch)
        dispatch = two.dispatch(0)
    assert tokens == ([0, 0, 1, 1, 2] if moment == "token" else [0, 1, 1, 2, 2])
    counts = two.shards[0].metrics()
    assert counts["batches_lost"] == lost and counts["examples"] == 5 * (6 - lost) and counts["guests"] == 0
    for shard in two.shards:
        shard.flush()
    assert {shard.refuse([])[1] for shard in two.shards} == {3}


def test_who_stays_in_the_group():
    def of(**nodes):
        return staying(Config.build({"data": {"path": "codex-s"}, "nodes": nodes}), [0, 1, 0, 2])

    assert of(mode="gba") == of(mode="hop-bs", switch=[{"at": 5, "mode": "gba"}]) == [0, 1, 3]
    for lockstep in ({}, {"mode": "auto"}, {"mode": "gba", "switch": [{"at": 5, "mode": "sync"}]}):
        assert of(**lockstep) == [0, 1, 2, 3]


def test_an_agent_loses_a_process_in_peace_only_if_it_may_and_a_signal_ended_it(tmp_path, capsys):
    (tmp_path / "7.spare").touch()
    (tmp_path / "8.met").touch()
    peers = LocalProcesses([], ["c"], "secret", nodes=["a", "c"], index=1)
    ends = [(7, -signal.SIGKILL), (7, -signal.SIGTERM), (7, 1), (7, 0), (8, -signal.SIGKILL)]
    assert [_spared(peers, tmp_path, *each) for each in ends] == [True, False, False, False, False]
    said = "note: node c: process 7 was ended by SIGKILL; the run goes on without it\n"
    assert capsys.readouterr().err == said


@pytest.fixture
def run_of_three(tmp_path):
    """`run(*command)`: on a and b, which have the rows, and c, which has three trainers; what each of them said."""
    spec, secret = LogSpec(categorical=4, numeric=3, keys=3000, skew=1.05), secrets.token_hex(32)
    write_day(tmp_path / "day.parquet", 0, EXAMPLES, spec)
    config = {
        "task": "ctr", "threads": 1, "device": "cpu",
        "data": {"train": str(tmp_path / "day.parquet")} | spec.schema(),
        "model": {"network": "deepfm", "dimension": 4, "hidden": [16]},
        "training": {"batch_size": BATCH, "epochs": 3},
        "checkpoint": {"every_batches": 25, "keep": 9},
        "nodes": {"mode": "gba", "packing": "even"},
    }  # fmt: skip
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    meeting, *ports = free_ports(4)
    nodes = [{"name": n, "address": "127.0.0.1", "port": p} for n, p in zip("abc", (*ports,), strict=True)]
    nodes[2] |= {"shards": False, "trainers": 3}
    (tmp_path / "nodes.yaml").write_text(yaml.safe_dump({"port": meeting, "timeout": 20, "nodes": nodes}))
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RANK")}
    environment = clean | {"MARIUS_OAC_SECRET": secret, "OMP_NUM_THREADS": "1"}

    def run(program, *command, codes=(0, 0, 0)):
        words = [sys.executable, *map(str, program), *map(str, command), "--nodes", str(tmp_path / "nodes.yaml")]
        about = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "env": environment}
        started = [subprocess.Popen([*words, "--node", name], **about) for name in "abc"]
        try:
            said = [each.communicate(timeout=PATIENCE)[0] for each in started]
        finally:
            for each in started:
                each.kill()
        assert tuple(each.returncode for each in started) == codes, said
        return said

    return tmp_path, run


@pytest.mark.slow
def test_trainers_die_with_a_token_torn_and_unacknowledged_and_the_run_goes_on(run_of_three):
    folder, run = run_of_three
    dying = [Path(__file__).with_name("dying.py"), "c", 5]
    first, _, third = run(dying, "train", folder / "config.yaml", "--out", folder / "run")
    for name in ("c", "c/1", "c/2"):
        assert first.count(f"trainer {name} has ended: its tokens are dispatched to the others;") == 1, first
    assert "2 of 5 trainers are left" in first and third.count("was ended by SIGKILL; the run goes on without it") == 3
    summary = RunFolder.open(folder / "run").summary()
    batches = 3 * EXAMPLES // BATCH
    assert summary["training.batches"] == batches and summary["dealt.trainers_lost"] == 3
    assert summary["dealt.guests"] == 0 < summary["dealt.batches_lost"] <= 9
    assert summary["dealt.examples"] == 12 * (5 * batches - summary["dealt.batches_lost"])
    assert summary["dealt.dense_gradients"] <= 5 * batches - summary["dealt.batches_lost"] + 1  # half of a torn one
    assert len(list((folder / "run" / "nodes").iterdir())) == 1
    whole = ("-m", "marius_oac")
    run(whole, "resume", folder / "run", "--checkpoint", "0000000050")
    again = RunFolder.open(folder / "run").summary()
    assert again["training.batches"] == batches and again["dealt.trainers_lost"] == 0
    assert again["dealt.examples"] == 60 * (batches - 50) and again["dealt.batches_lost"] == 0
