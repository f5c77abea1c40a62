"""Processes that join a run over nodes and leave, or die: the run never stops, and only what they had is lost."""

import os
import secrets
import signal
import subprocess
import sys
from contextlib import ExitStack
from types import SimpleNamespace

import pytest
import yaml

from benchmarks.generate.log import LogSpec, write_day
from marius_oac import __version__
from marius_oac.config.cluster import SECRET_VARIABLE, ClusterConfig
from marius_oac.config.link_prediction import Config
from marius_oac.config.modes import NodesConfig
from marius_oac.errors import InputError, NodeLost, NodeRefused
from marius_oac.nodes.groups.thread_group import ThreadGroup
from marius_oac.nodes.sharded.home import NodesHome
from marius_oac.nodes.shards.connections import Connections
from marius_oac.nodes.shards.table import NumberedTable
from marius_oac.nodes.shards.values import ValueFormat
from marius_oac.nodes.training.detached import outside
from marius_oac.nodes.training.elastic import _ElasticWorker, attach
from marius_oac.nodes.transport import zmq_client
from marius_oac.nodes.transport.zmq_client import ZmqClient
from marius_oac.nodes.transport.zmq_endpoint import LEFT
from marius_oac.runs.folder.folder import RunFolder
from marius_oac.tasks.link_prediction.task import GraphTask
from tests.nodes.test_protocol_simulation import DIMENSION, OPTIMIZER, store
from tests.ports import free_ports

pytestmark = pytest.mark.usefixtures("forked_programs_of_one_thread")
EXAMPLES, BATCH = 64 * 400, 64
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
    path.write_text(yaml.safe_dump({"elastic_workers": 3, "port": meeting, "timeout": 20, "nodes": nodes}))
    with ExitStack() as stack:

        def start(*command):
            return [Command(stack, secret, *command, "--nodes", path, "--node", node) for node in "ab"]

        yield tmp_path, start, lambda: Command(stack, secret, "attach", path, "--set", "threads=1")


@pytest.mark.slow
def test_guests_come_and_die_and_come_back_and_the_run_never_stops(run_of_two):
    folder, start, join = run_of_two
    elastic_workers = [join(), join()]
    nodes = start("train", folder / "config.yaml", "--out", folder / "run")
    for elastic_worker in elastic_workers:
        elastic_worker.wait_for("batches")
    elastic_workers[0].process.kill()
    elastic_workers += [join(), join()]
    for elastic_worker in elastic_workers[2:]:
        elastic_worker.wait_for("joined the run")
    elastic_workers[1].process.send_signal(signal.SIGINT)
    assert "trained" in elastic_workers[1].end()
    for node in nodes:
        node.end()
    for elastic_worker in elastic_workers[2:]:
        assert "trained" in elastic_worker.end()
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
    elastic_worker, nodes = join(), start("train", folder / "config.yaml", "--out", folder / "run")
    elastic_worker.wait_for("batches")
    nodes[1].process.kill()
    assert "node b" in nodes[0].end(code=1)
    elastic_worker.wait_for("waiting for the run to go on")
    nodes = start("resume", folder / "run")
    elastic_worker.wait_for("joined the run")
    for node in nodes:
        node.end()
    assert "trained" in elastic_worker.end()
    assert RunFolder.open(folder / "run").summary()["training.batches"] == 3 * EXAMPLES // BATCH


def test_nobody_joins_where_none_may(tmp_path, command):
    path = tmp_path / "nodes.yaml"
    path.write_text("nodes: [{address: 127.0.0.1}]")
    code, _, said = command("attach", path)
    assert (code, said) == (2, ["marius-oac: nodes.yaml: no worker may attach: `elastic_workers` is 0"])


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("nodes.mode=sync", "--set nodes.mode: the run decides it; an elastic worker may set threads, device, "),
        ("pipeline.in_flight=1", "--set pipeline.in_flight: the run decides it; "),
        ("pipeline={workers: {plan: 2}}", "--set pipeline: the run decides it; "),
        ("threadsx=1", "--set threadsx: the run decides it; "),
        ("threads", "--set threads: must look like key.path=value"),
        ("threads=-1", "--set threads: must be"),
        ("pipeline.workers.plann=1", "--set pipeline.workers.plann: "),
    ],
)
def test_a_guest_changes_nothing_that_is_the_runs(joining, override, said):
    with pytest.raises(InputError) as refused:
        joining(overrides=["device=cpu", "data.path=codex-s", override])
    assert str(refused.value).startswith(said) and "\n" not in str(refused.value)


@pytest.fixture
def told(graph):
    """What a lead on another machine tells its guests."""
    config = Config.build({"data": {"path": "nowhere"}, "threads": 99, "device": "cuda:7", "seed": 5})
    return NodesHome(GraphTask(config, graph), *ThreadGroup.members(1), [1.0], None, None)._told()


def test_a_guest_has_threads_a_device_and_a_folder_of_its_own(graph, told, one_node):
    cluster, path = one_node(told), str(graph.path)
    with _ElasticWorker(cluster, ()).connected() as (_, _, run):
        assert told.items() <= run.items()
    config = _ElasticWorker(cluster, [f"data.path={path}"])._task(run).config
    assert (config.threads, config.device, config.seed, config.data.path) == (0, "auto", 5, path)
    config = _ElasticWorker(cluster, [f"data.path={path}", "threads=2", "device=cpu"])._task(run).config
    assert (config.threads, config.device) == (2, "cpu")
    with pytest.raises(InputError, match="the data here are not those of the run"):
        _ElasticWorker(cluster, [f"data.path={path}"])._task(run | {"fingerprint": "another"})


@pytest.mark.parametrize("trains", [[True, False], [False, True]])  # also where the run's first process only serves
def test_a_guest_cuts_batches_as_the_runs_own_trainers_do(graph, told, trains):
    config = Config.build({"data": {"path": str(graph.path)}, "device": "cpu", "binding": "off", "threads": 1})
    run = told | {"weights": [1.0, 2.0], "trains": trains, "trainers": 5}
    with outside(GraphTask(config, graph), [], run, NodesConfig(), True) as (session, source):
        assert source.dispatching.parts == 5 and source.dispatching.elastic_worker
        assert session.home.peers.trains and source.trains and not session.home.peers.serves


@pytest.fixture
def one_node(monkeypatch):
    """`one_node(told)`: the nodes.yaml of a run on one node, which tells guests that and has no batches for them."""
    monkeypatch.setenv(SECRET_VARIABLE, secrets.token_hex(32))
    with ExitStack() as stack:

        def start(told=None, address="127.0.0.1", **keys):
            (port,) = free_ports(1, address)
            node = {"name": "a", "address": address, "port": port}
            cluster = ClusterConfig.model_validate({"elastic_workers": 2, "timeout": 5, "nodes": [node]} | keys)
            place = SimpleNamespace(cluster=cluster, rank=0, node=cluster.nodes[0], port=port)
            (group,) = ThreadGroup.members(1)
            tables = [NumberedTable(store(0), OPTIMIZER)]
            source = Connections(place, group, True, 4)(stack, tables, [ValueFormat(DIMENSION)], lambda plan: 1.0)
            source.announce({"version": __version__} if told is None else told)
            return cluster

        yield start


@pytest.mark.parametrize("encryption", [False, True])
@pytest.mark.parametrize("other", ["secret", "nodes.yaml"])
def test_who_is_refused_does_not_wait(one_node, monkeypatch, encryption, other):
    cluster = one_node(encryption=encryption)
    if other == "secret":
        monkeypatch.setenv(SECRET_VARIABLE, secrets.token_hex(32))
    else:
        cluster = cluster.model_copy(update={"restarts": 1})
    monkeypatch.setattr(_ElasticWorker, "pause", lambda self: pytest.fail("it waits"))
    monkeypatch.setattr(zmq_client, "_TRIES", 2)
    monkeypatch.setattr(zmq_client, "_CROWDED", 0.0)
    with pytest.raises(NodeRefused, match="node a: .* secret") as refused:
        attach(cluster)
    assert refused.value.exit_code == 2 and "\n" not in str(refused.value)


@pytest.fixture
def joining(monkeypatch):
    """`joining(*attempts)`: joins a run where each attempt ends so: why, and whether a batch was trained before."""

    def start(*attempts, overrides=()):
        left = iter(attempts)

        def connected(elastic_worker):
            error, elastic_worker.joined = next(left)
            elastic_worker.known = elastic_worker.known or elastic_worker.joined
            elastic_worker.batches += elastic_worker.joined
            raise error

        monkeypatch.setattr(_ElasticWorker, "connected", connected)
        monkeypatch.setattr(_ElasticWorker, "pause", lambda self: None)
        monkeypatch.setenv(SECRET_VARIABLE, secrets.token_hex(32))
        cluster = {"elastic_workers": 1, "nodes": [{"address": "127.0.0.1", "name": "a"}]}
        return attach(ClusterConfig.model_validate(cluster), overrides)

    return start


def test_a_run_that_answers_a_guest_with_nonsense_is_a_line(one_node, monkeypatch):
    cluster = one_node({})
    monkeypatch.setattr(ZmqClient, "receive", lambda client: [b"nonsense"])
    with (
        pytest.raises(NodeLost, match=r"^node a: it sent an invalid message: [^\n]*$"),
        _ElasticWorker(cluster, ()).connected(),
    ):
        pass


def test_a_guest_of_another_version_is_told_so(one_node):
    with pytest.raises(InputError) as refused:
        attach(one_node({"version": "0.0.1"}))
    assert str(refused.value) == f"node a: its marius_oac is 0.0.1, this one is {__version__}"


def test_who_has_trained_once_waits_whatever_it_hears(joining):
    """A run that is started again is not there at once, nor is every node."""
    gone, refused, left = NodeLost("a", "gone"), NodeRefused("a", "refused"), NodeLost("a", LEFT)
    assert joining((gone, True), (refused, False), (left, True)) == 2


def test_why_a_guest_waits_is_said_once(joining, capsys):
    silent, full, left = (NodeLost("a", why) for why in ("silent", "full", LEFT))
    before, after = [(silent, False), (full, False), (silent, False)], [(silent, True), (silent, False), (full, False)]
    joining(*before, *after, (left, True))
    assert capsys.readouterr().err.splitlines() == [
        "waiting for the run of a, 600 s at most",
        "node a: silent; waiting for the run",
        "node a: full; waiting for the run",
        "node a: silent; waiting for the run to go on",
        "node a: full; waiting for the run to go on",
    ]


def test_a_guest_takes_the_next_place_and_waits_where_there_is_none(one_node):
    cluster = one_node()
    with _ElasticWorker(cluster, ()).connected() as first, _ElasticWorker(cluster, ()).connected() as second:
        assert (first[1], second[1]) == (1, 2)
        with (
            pytest.raises(NodeLost, match="node a: it has 2 elastic workers already") as full,
            _ElasticWorker(cluster, ()).connected(),
        ):
            pass
        assert type(full.value) is NodeLost


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_a_guest_reaches_a_run_at_an_address_of_either_kind(one_node, address):
    with _ElasticWorker(one_node(address=address), ()).connected() as (lines, rank, run):
        assert (len(lines), rank, run["version"]) == (1, 1, __version__)
