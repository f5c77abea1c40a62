"""Processes that join a run over nodes and leave, or die: the run never stops, and only what they had is lost."""

import os
import secrets
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack, closing

import pytest
import yaml

from marius_oac.data.log_generate import LogSpec, write_day
from marius_oac.run import RunFolder

EXAMPLES, BATCH = 64 * 1500, 64
PATIENCE = 240


class Command:
    """The command `marius-oac`, whose lines are waited for."""

    def __init__(self, stack, secret, *arguments):
        clean = {name: value for name, value in os.environ.items() if not name.startswith("RANK")}
        self.process = stack.enter_context(
            subprocess.Popen(
                [sys.executable, "-m", "marius_oac", *map(str, arguments)],
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                env=clean | {"MARIUS_OAC_SECRET": secret, "OMP_NUM_THREADS": "1"},
            )
        )  # fmt: skip
        stack.callback(self.process.kill)
        self.said = []

    def wait_for(self, text):
        """Until a line has it; to the end where none does, which is an error."""
        for line in self.process.stdout:
            self.said.append(line)
            if text in line:
                return
        raise AssertionError(f"never said {text!r}: {''.join(self.said)}")

    def end(self, code=0):
        text, _ = self.process.communicate(timeout=PATIENCE)
        assert self.process.returncode == code, "".join(self.said) + text
        return "".join(self.said) + text


def free_ports(count):
    with ExitStack() as stack:
        sockets = [stack.enter_context(closing(socket.create_server(("127.0.0.1", 0)))) for _ in range(count)]
        return [each.getsockname()[1] for each in sockets]


@pytest.fixture
def run_of_two(tmp_path):
    """Starts a command on nodes a and b; `join` starts a guest."""
    spec, secret = LogSpec(categorical=4, numeric=3, keys=3000, skew=1.05), secrets.token_hex(32)
    write_day(tmp_path / "day.parquet", 0, EXAMPLES, spec)
    config = {
        "task": "ctr", "threads": 1, "device": "cpu",
        "data": {"train": str(tmp_path / "day.parquet")} | spec.schema(),
        "model": {"network": "deepfm", "dimension": 4, "hidden": [16]},
        "training": {"batch_size": BATCH, "epochs": 3},
        "checkpoint": {"every_batches": 300},
        "nodes": {"mode": "gba", "packing": "even"},
    }  # fmt: skip
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    meeting, *ports = free_ports(3)
    nodes = [{"name": n, "address": "127.0.0.1", "port": p, "cores": 1} for n, p in zip("ab", ports, strict=True)]
    path = tmp_path / "nodes.yaml"
    path.write_text(yaml.safe_dump({"guests": 3, "port": meeting, "timeout": 20, "nodes": nodes}))
    with ExitStack() as stack:

        def start(*command):
            return [Command(stack, secret, *command, "--nodes", path, "--node", node) for node in "ab"]

        yield tmp_path, start, lambda: Command(stack, secret, "join", path, "--set", "threads=1")


@pytest.mark.slow
def test_guests_come_and_die_and_come_back_and_the_run_never_stops(run_of_two):
    folder, start, join = run_of_two
    guests = [join(), join()]
    nodes = start("train", folder / "config.yaml", "--out", folder / "run")
    for guest in guests:
        guest.wait_for("batches")
    guests[0].process.kill()
    guests += [join(), join()]
    for guest in guests[2:]:
        guest.wait_for("joined the run")
    guests[1].process.send_signal(signal.SIGINT)
    assert "trained" in guests[1].end()
    for node in nodes:
        node.end()
    for guest in guests[2:]:
        assert "trained" in guest.end()
    summary = RunFolder.open(folder / "run").summary()
    parts = 2 * summary["training.batches"]
    assert summary["training.batches"] == 3 * EXAMPLES // BATCH
    assert summary["dealt.guests"] >= 4
    assert 0 <= summary["dealt.batches_lost"] <= 3  # a guest has one to compute, and has reserved two at most
    lost = parts - summary["dealt.examples"] // (BATCH // 2)
    assert lost == summary["dealt.batches_lost"]


@pytest.mark.slow
def test_guests_wait_for_a_run_that_lost_a_shard_and_go_on(run_of_two):
    folder, start, join = run_of_two
    guest, nodes = join(), start("train", folder / "config.yaml", "--out", folder / "run")
    guest.wait_for("batches")
    nodes[0].wait_for("epoch 1, batch")
    nodes[1].process.kill()
    assert "node b" in nodes[0].end(code=1)
    guest.wait_for("waiting for the run to go on")
    nodes = start("resume", folder / "run")
    guest.wait_for("joined the run")
    for node in nodes:
        node.end()
    assert "trained" in guest.end()
    assert RunFolder.open(folder / "run").summary()["training.batches"] == 3 * EXAMPLES // BATCH


def test_nobody_joins_where_none_may(tmp_path):
    path = tmp_path / "nodes.yaml"
    path.write_text("nodes: [{address: 127.0.0.1}]")
    found = subprocess.run([sys.executable, "-m", "marius_oac", "join", path], capture_output=True, text=True)
    assert found.returncode == 2 and found.stderr == "marius-oac: nodes.yaml: nobody may join: `guests` is 0\n"
