"""What runs on Ray needs of it, and the actors' own work: without Ray. With it: tests/nodes/test_on_ray.py."""

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest

from marius_oac.errors import InputError, NodeLost, how_to_install
from marius_oac.nodes.launch.agent import LOST
from marius_oac.nodes.launch.frozen import is_stopped
from marius_oac.nodes.launch.on_ray import cluster as on_ray_cluster
from marius_oac.nodes.launch.on_ray import driver
from marius_oac.nodes.launch.on_ray.actor import TrainerActor, free_ports
from marius_oac.nodes.launch.on_ray.cluster import running
from marius_oac.nodes.launch.on_ray.placing import RayRequest, made, resources_of
from marius_oac.nodes.launch.on_ray.reaper import reaping, users_of
from marius_oac.runtime.signals import StopSignal
from tests.nodes.outliving import ASKS

PATIENCE = 60


def node(alive=True, **resources):
    return {"Alive": alive, "Resources": resources}


@pytest.mark.parametrize(
    "nodes, how, asked",
    [
        ([node(CPU=2)], {}, {"CPU": 1}),
        ([node(CPU=8), node(CPU=8)], {}, {"CPU": 8}),
        ([node(CPU=8), node(CPU=4)], {}, {"CPU": 4}),
        ([node(CPU=8), node(CPU=8)], {"threads": 3}, {"CPU": 3}),
        ([node(CPU=8, GPU=2)], {}, {"CPU": 4, "GPU": 1}),
        ([node(CPU=8, GPU=2)], {"gpu": False}, {"CPU": 4}),
        ([node(CPU=8, GPU=1)], {}, {"CPU": 4}),
        ([node(CPU=8, memory=300.0)], {"memory": 100}, {"CPU": 4, "memory": 100}),
    ],
)
def test_each_asks_for_its_share(nodes, how, asked):
    assert resources_of(RayRequest(2, {}, **how), nodes) == (asked, 2)


@pytest.mark.parametrize(
    "nodes, trainers, asked, count",
    [
        ([node(CPU=1)] * 3, (2, 3), 1, 3),
        ([node(CPU=1)] * 2, (2, 3), 1, 2),
        ([node(CPU=8)], (2, 4), 2, 4),
        ([node(CPU=4), node(alive=False, CPU=4)], (1, 8), 1, 4),
    ],
)
def test_of_a_range_as_many_are_taken_as_there_is_room_for(nodes, trainers, asked, count):
    assert resources_of(RayRequest(trainers, {}), nodes) == ({"CPU": asked}, count)


@pytest.mark.parametrize(
    "nodes, how, part",
    [
        ([node(CPU=1)], {}, "room for 1 of 2 (1 CPU each)"),
        ([node(CPU=8), node(alive=False, CPU=8)], {"threads": 5}, "room for 1 of 2 (5 CPU each)"),
        ([node(CPU=8, GPU=1)], {"gpu": True}, "1 CPU, a GPU each"),
        ([node(CPU=1)], {"trainers": (2, 4)}, "room for 1 of 2 (1 CPU each)"),
        ([node(CPU=8, memory=1 << 30)], {"memory": 1 << 30}, "1.00 GiB each"),
    ],
)
def test_a_cluster_that_is_too_small_is_refused(nodes, how, part):
    with pytest.raises(InputError) as error:
        resources_of(RayRequest(**{"trainers": 2, "job": {}} | how), nodes)
    assert part in str(error.value) and error.value.exit_code == 2


def test_nodes_are_named_as_those_of_one_machine():
    found = [{"ports": [1, 20001], "cores": 2}, {"ports": [2, 20002], "cores": 8}]
    local = made(RayRequest(2, {}), found, ["127.0.0.1"] * 2, {"CPU": 4.0})
    assert [(each.name, each.port, each.cores, each.gpus) for each in local.nodes] == [
        ("node0", None, 2, None), ("node1", None, 4, None)
    ]  # fmt: skip
    far = made(RayRequest(2, {}, timeout=7, encryption=True), found, ["10.0.0.1", "10.0.0.2"], {"CPU": 1.0, "GPU": 1.0})
    assert [(each.address, each.port, each.gpus) for each in far.nodes] == [
        ("10.0.0.1", 20001, (0,)), ("10.0.0.2", 20002, (0,))
    ]  # fmt: skip
    assert (far.timeout, far.encryption) == (7, True)


def test_ports_are_free_and_no_connection_gets_them():
    first, last = (int(word) for word in Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    found = free_ports("127.0.0.1", 2)
    assert len(set(found)) == 2 and not any(first <= port <= last for port in found)


@pytest.fixture
def started():
    """Starts programs, each in the care of an actor; a program is told where to write to."""
    actors = []

    def start(program, timeout=PATIENCE, secret="s" * 64, **job):
        actor = TrainerActor()
        actors.append(actor)
        return actor, actor.start(["-c", program], job, secret, os.getcwd(), timeout)

    yield start
    for actor in actors:
        actor._process.kill()
        actor._thread.join()
        actor._process.stdout.close()
        actor._process.stderr.close()


def until_the_end(actor, asked=0):
    out, err, code = b"", b"", None
    until = time.monotonic() + PATIENCE
    while code is None:
        assert time.monotonic() < until
        more, errors, code = actor.poll(asked, 0.1)
        out, err = out + more, err + errors
    return out, err, code


def test_a_process_gets_its_job_and_secret_and_all_output_comes(started):
    program = (
        "import json, os, sys; job = json.load(sys.stdin); print(job['a'], os.environ['MARIUS_OAC_SECRET'][:3], "
        f"int(os.environ['MARIUS_OAC_PARENT']) == os.getppid()); {ASKS}\n"
        "print('x' * 300000, file=sys.stderr); sys.exit(7)"
    )
    out, err, code = until_the_end(started(program, a=5)[0])
    assert out == b"5 sss True\n9\n" and err == b"x" * 300000 + b"\n" and code == 7


def test_the_secret_is_on_no_command_line(started):
    actor, pid = started(
        "import sys; sys.stdin.read(); print(1, flush=True); import time; time.sleep(99)", a="secret too"
    )
    until, out = time.monotonic() + PATIENCE, b""
    while not out:
        assert time.monotonic() < until
        out = actor.poll(0, 0.05)[0]
    words = Path(f"/proc/{pid}/cmdline").read_bytes()
    assert b"import sys" in words and b"sss" not in words and b"too" not in words


def test_a_process_that_is_stopped_is_killed(started):
    program = "import os, signal; print('here', flush=True); os.kill(os.getpid(), signal.SIGSTOP)"
    actor, _ = started(program, timeout=1.0)
    assert until_the_end(actor) == (b"here\n", b"", -signal.SIGKILL)


WAITING = """
import signal, sys
def note(number, frame):
    print(signal.Signals(number).name, flush=True)
    if number == signal.SIGTERM:
        sys.exit(143)
signal.signal(signal.SIGINT, note), signal.signal(signal.SIGTERM, note)
print("ready", flush=True)
while True:
    signal.pause()
"""


def test_requests_to_stop_reach_the_process_in_order(started):
    actor, _ = started(WAITING)
    out = b""
    for asked, word in ((0, b"ready\n"), (1, b"SIGINT\n"), (2, b"SIGTERM\n")):
        until = time.monotonic() + PATIENCE
        while word not in out:
            assert time.monotonic() < until
            out += actor.poll(asked, 0.05)[0]
    assert out == b"ready\nSIGINT\nSIGTERM\n"
    assert until_the_end(actor, 2)[2] == 143


def test_a_process_ends_when_the_driver_is_silent(started):
    actor, _ = started(WAITING, timeout=1.0)
    assert actor._ended.wait(PATIENCE)
    out, _, code = until_the_end(actor)
    assert b"SIGINT" in out and code == -signal.SIGKILL  # SIGINT was not enough


def test_a_cluster_that_another_user_or_a_pipe_names_is_passed_over(tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    note = tmp_path / "ray" / "ray_current_cluster"
    note.parent.mkdir()
    assert running() is None
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        note.write_text(f"{address}\n")
        assert running() == address
        with monkeypatch.context() as other:
            other.setattr(os, "geteuid", lambda: note.stat().st_uid + 1)
            assert running() is None
    assert running() is None, "it has ended"
    note.unlink()
    os.mkfifo(note)
    assert running() is None


@pytest.mark.parametrize(
    "given, mode",
    [
        ({}, None),
        ({"token": True}, "token"),
        ({"RAY_AUTH_TOKEN": "secret"}, "token"),
        ({"RAY_AUTH_TOKEN_PATH": "/token"}, "token"),
        ({"token": True, "RAY_AUTH_MODE": "disabled"}, "disabled"),
        ({"token": True, "RAY_ADDRESS": "elsewhere:1"}, None),
    ],
)
def test_a_cluster_of_ray_start_is_given_the_token_that_this_user_has(tmp_path, monkeypatch, given, mode):
    """And a cluster elsewhere is not."""
    seen = []

    def init(**options):
        seen.append((options["address"], os.environ.get("RAY_AUTH_MODE")))
        raise ConnectionError("no")

    errors = SimpleNamespace(RayError=KeyError)
    ray = SimpleNamespace(is_initialized=lambda: False, init=init, shutdown=lambda: None, exceptions=errors)
    monkeypatch.setitem(sys.modules, "ray", ray)
    for name in ("RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    if given.get("token"):
        (tmp_path / ".ray").mkdir()
        (tmp_path / ".ray" / "auth_token").touch()
    for name in given.keys() - {"token"}:
        monkeypatch.setenv(name, given[name])
    monkeypatch.setattr(on_ray_cluster, "running", lambda: "here:1")
    with pytest.raises(InputError) as caught, on_ray_cluster.cluster(2, "token", 60.0):
        pass
    assert seen == [(given.get("RAY_ADDRESS", "here:1"), mode)]
    assert ("RAY_AUTH_MODE=token" in str(caught.value)) == (mode is None)
    assert os.environ.get("RAY_AUTH_MODE") == given.get("RAY_AUTH_MODE")


def test_an_instance_that_does_not_start_is_one_line(monkeypatch):
    def init(**options):
        raise Exception("The current node timed out\nduring startup.")

    shut: list[bool] = []
    ray = SimpleNamespace(init=init, shutdown=lambda: shut.append(True), is_initialized=lambda: False)
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr(on_ray_cluster, "running", lambda: None)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    line = "Ray: has not started: The current node timed out during startup"
    with pytest.raises(NodeLost, match=line), on_ray_cluster.cluster(2, "token", 60.0):
        raise AssertionError("it has started")
    assert shut == [True]


def test_actors_import_nothing_from_the_folder_that_a_run_is_started_in(monkeypatch, tmp_path):
    """Ray gives them the driver's present folder, before everything else on Python's path."""
    seen = []
    ray = SimpleNamespace(init=lambda **_: seen.append(os.getcwd()), shutdown=lambda: None, is_initialized=bool)
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr(on_ray_cluster, "running", lambda: None)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.chdir(tmp_path)
    with on_ray_cluster.cluster(2, "token", 60.0):
        assert seen == ["/"] and os.getcwd() == str(tmp_path)


@pytest.mark.parametrize("code", [int(signal.SIGTERM), 3])
def test_a_signal_while_an_instance_starts_stops_the_run_and_another_end_is_none(monkeypatch, code):
    before, shut = signal.getsignal(signal.SIGTERM), []

    def init(**options):
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(code))  # as Ray does, with the signal's number
        signal.raise_signal(signal.SIGTERM)

    ray = SimpleNamespace(init=init, shutdown=lambda: shut.append(True), is_initialized=lambda: False)
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr(on_ray_cluster, "running", lambda: None)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    error = SystemExit if code == 3 else StopSignal
    with pytest.raises(error, match="3" if code == 3 else "SIGTERM"), on_ray_cluster.cluster(2, "token", 60.0):
        raise AssertionError("it has started")
    assert shut == [True]
    assert signal.getsignal(signal.SIGTERM) is before


def test_processes_of_an_instance_that_are_stopped_are_killed_and_no_others(monkeypatch):
    program = "import os, signal, sys; file = open(*sys.argv[1:]); os.kill(os.getpid(), signal.SIGSTOP)"
    folders, started = [], []

    def init(_temp_dir, **options):
        folders.append(_temp_dir)
        for path, mode in ((f"{_temp_dir}/log", "w"), (os.devnull, "r")):
            started.append(subprocess.Popen([sys.executable, "-c", program, path, mode]))

    ray = SimpleNamespace(init=init, shutdown=lambda: None, is_initialized=lambda: False)
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr(on_ray_cluster, "running", lambda: None)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with on_ray_cluster.cluster(2, "token", PATIENCE):
        for each in started:
            os.waitpid(each.pid, os.WUNTRACED)  # it is stopped by now
        of_ray, of_the_user = started
        assert users_of(folders[0], os.getpid()) == [of_ray.pid]
    assert of_ray.wait(PATIENCE) == -signal.SIGKILL and of_the_user.poll() is None
    with on_ray_cluster.cluster(2, "token", 0.5):
        assert started[2].wait(PATIENCE) == -signal.SIGKILL
    assert [is_stopped(each.pid) for each in started] == [False, True, False, True]
    for each in started:
        each.kill()
        each.wait()


def test_who_uses_a_folder_is_killed_when_the_block_ends(tmp_path):
    folder, other = tmp_path / "folder", tmp_path / "folder2"
    folder.mkdir()
    other.mkdir()
    program = "import sys; print(1, flush=True); file = open(sys.argv[1], 'w'); print(2, flush=True); sys.stdin.read()"
    users = [
        subprocess.Popen([sys.executable, "-c", program, path / "log"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for path in (folder, other)
    ]
    assert [each.stdout.read(4) for each in users] == [b"1\n2\n"] * 2
    with (folder / "own").open("w"), reaping(str(folder)):  # as the library of Ray may, until this process ends
        assert users[0].poll() is None
    assert users[0].wait(PATIENCE) == -signal.SIGKILL and not folder.exists()
    assert users[1].poll() is None and other.exists()
    for each in users:
        each.kill()
        each.communicate()


class Ray:
    """In the place of Ray: actors whose polls answer what a test says."""

    exceptions = SimpleNamespace(RayError=RuntimeError)

    def __init__(self):
        self.killed = []

    def wait(self, references, timeout):
        return references[:1], references[1:]

    def get(self, reference):
        if isinstance(reference, Exception):
            raise reference
        return reference

    def kill(self, actor):
        self.killed.append(actor)


def ends(*codes, restarts=3):
    """A start whose processes have ended so; an exception: the actor is gone."""
    ray = Ray()
    start = driver._Start(ray, RayRequest(len(codes), {}, restarts=restarts), {"CPU": 1.0}, 0, len(codes))
    for number, code in enumerate(codes):
        answer = code if isinstance(code, Exception) else (b"", f"words of {number}\n".encode(), code)
        poll = SimpleNamespace(remote=lambda asked, wait, answer=answer: answer)
        start._trainers.append(driver._Trainer(f"node{number}", SimpleNamespace(poll=poll)))
    start._follow()
    return start


@pytest.mark.parametrize(
    "codes, code",
    [
        ((0, 0), 0),
        ((-9, LOST), None),
        ((LOST, RuntimeError("gone")), None),
        ((0, -11), None),
        ((2, LOST), 2),
        ((LOST, 2), 2),
        ((1, LOST), 1),
        ((130, LOST), None),
        ((130, 130), 130),
        ((-15, -15), 143),
    ],
)
def test_only_a_loss_leads_to_another_start(codes, code, capsys):
    assert ends(*codes)._ended() == code


def test_a_lost_actor_is_named_and_the_others_are_not_asked_to_stop(capsys):
    start = ends(LOST, RuntimeError("the node died\nand more"))
    said = capsys.readouterr().err.splitlines()
    assert "marius-oac: node node1: its actor or its node is gone: the node died" in said
    assert not any("node0:" in line for line in said)
    assert start._watch.asked == 0


def test_what_a_node_has_said_before_it_failed_is_shown(capsys):
    ends(LOST, 1)._ended()
    assert "node1: words of 1" in capsys.readouterr().err
    ends(2, 2)._ended()  # the first has said it
    assert "node1: words" not in capsys.readouterr().err


def test_after_a_signal_nothing_is_started_again():
    start = ends(-9, LOST)
    start._watch.interrupted(signal.SIGINT, None)
    assert start._ended() == 130


def test_all_actors_are_killed():
    start = ends(0, 0)
    start._end_all()
    assert len(start._ray.killed) == 2


@pytest.mark.parametrize(
    "codes, starts, code", [([None, None, 0], 3, 0), ([None] * 4, 4, 1), ([2], 1, 2), ([130], 1, 130)]
)
def test_restarts_are_counted_and_each_has_a_cluster_with_the_same_token(monkeypatch, codes, starts, code, capsys):
    left, attempts, clusters = list(codes), [], []

    class Start:
        def __init__(self, ray, request, resources, attempt, count):
            attempts.append((attempt, count))

        def run(self):
            return left.pop(0)

    class Cluster:
        def __enter__(self):
            return SimpleNamespace(nodes=lambda: [] if attempts else [node(CPU=2)])  # a lost one is not back yet

        def __exit__(self, *error):
            clusters.append("left")

    monkeypatch.setattr(driver, "cluster", lambda *given: clusters.append(given) or Cluster())
    monkeypatch.setattr(driver, "_Start", Start)
    assert driver.run(RayRequest((1, 3), {}, timeout=7.0)) == code
    token = clusters[0][1]
    assert len(token) == 64 and clusters == [(3, token, 7.0), "left"] * starts
    assert attempts == [(0, 2), *((number, 3) for number in range(1, starts))]


class Groups(Ray):
    """In the place of Ray: placement groups, of which those that `held` has room for are ready; time stands still
    but in waits."""

    def __init__(self, monkeypatch, held, alive=2):
        super().__init__()
        self.held, self.tried, self.removed, self.seconds = held, [], [], 0.0
        self.util = SimpleNamespace(placement_group=self.group, remove_placement_group=self.removed.append)
        self.nodes = lambda: [node(CPU=1)] * alive
        monkeypatch.setattr(driver.time, "monotonic", lambda: self.seconds)

    def group(self, bundles, strategy):
        self.tried.append((len(bundles), self.seconds))
        return SimpleNamespace(size=len(bundles), ready=lambda: len(bundles))

    def wait(self, references, timeout):
        ready = references[0] <= self.held
        self.seconds += 0 if ready else timeout
        return references if ready else [], []


@pytest.mark.parametrize(
    "trainers, held, alive, tried, count",
    [
        (3, 3, 3, [(3, 0)], 3),
        ((2, 4), 4, 4, [(4, 0)], 4),
        ((2, 4), 2, 2, [(4, 0), (2, 10)], 2),
        ((2, 4), 2, 4, [(4, 0), (3, 10), (2, 15)], 2),  # others use what there is
        ((2, 4), 1, 1, [(4, 0), (2, 10)], None),
        (3, 2, 2, [(3, 0)], None),
    ],
)
def test_a_start_waits_for_the_most_and_goes_on_with_what_there_is(
    monkeypatch, trainers, held, alive, tried, count, capsys
):
    ray = Groups(monkeypatch, held, alive)
    request = RayRequest(trainers, {}, timeout=10)
    start = driver._Start(ray, request, {"CPU": 1.0}, 1, request.most)
    with ExitStack() as stack:
        group = start._placed(stack)
        assert [(size, pytest.approx(when, abs=0.5)) for size, when in tried] == ray.tried
        assert (group and group.size) == count and len(ray.removed) == len(tried) - 1
    assert len(ray.removed) == len(tried)
    said = capsys.readouterr().err
    assert ("no room" in said) == (len(tried) > 1 or not count)
    if count is None:
        assert ray.seconds == pytest.approx(30, abs=0.5)
    else:
        assert start._count == count


@pytest.mark.parametrize(
    "how, part",
    [
        ({"trainers": 0}, "--trainers: must be at least 1, not 0"),
        ({"trainers": (0, 2)}, "--trainers: must be at least 1, not 0"),
        ({"trainers": (3, 2)}, "--trainers: 3..2 ends before it begins"),
        ({"restarts": -1}, "--restarts: must be at least 0"),
        ({"timeout": 0.0}, "--timeout: must be a number of seconds above 0"),
        ({"timeout": float("nan")}, "--timeout"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(how, part):
    with pytest.raises(InputError) as error:
        driver.run(RayRequest(**{"trainers": 2, "job": {}} | how))
    assert part in str(error.value)


CONFIG = "data: {path: codex-s}\nmodel: {dimension: 8}\n"


@pytest.fixture
def train(command, tmp_path):
    (tmp_path / "config.yaml").write_text(CONFIG)
    return lambda *words: command("train", tmp_path / "config.yaml", "--out", tmp_path / "run", *words)


@pytest.mark.parametrize(
    "words, part",
    [
        (["--on", "ray"], "--on ray: needs --trainers N"),
        (["--trainers", 2], "--trainers: goes with --on ray"),
        (["--restarts", 0], "--restarts: goes with --on ray"),
        (["--encrypt"], "--encrypt: goes with --on ray"),
        (["--on", "ray", "--trainers", 2, "--dry-run"], "--dry-run: does not go with --on ray"),
        (["--on", "ray", "--trainers", 2, "--node", "a"], "--node: does not go with --on ray"),
        (["--on", "ray", "--trainers", 0], "--trainers: must be at least 1"),
        (["--on", "ray", "--trainers", "two"], "--trainers: must be a number, or a range such as 2..4, not 'two'"),
        (["--on", "ray", "--trainers", "1..2..3"], "not '1..2..3'"),
        (["--on", "ray", "--trainers", "1..2"], "--trainers: 1..2 would give other bits with each number"),
        (["--on", "ray", "--trainers", "1..9", "--set", "nodes.parts=8"], "8 parts are too few for 9 trainers"),
        (["--on", "ray", "--trainers", 2, "--set", "pipeline.mode=async-delta"], "async-delta"),
    ],
)
def test_mistakes_are_refused_before_anything_starts(train, words, part):
    code, _, err = train(*words)
    assert code == 2 and len(err) == 1 and part in err[0]


@pytest.mark.skipif(importlib.util.find_spec("ray") is not None, reason="Ray is installed")
def test_without_ray_the_extra_is_named(train, tmp_path):
    code, _, err = train("--on", "ray", "--trainers", 2)
    assert code == 2 and err == [f"marius-oac: --on ray: Ray is not installed: {how_to_install('ray')}"]
    assert not (tmp_path / "run").exists()


def test_a_folder_that_has_a_run_is_refused(train, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text("{}")
    code, _, err = train("--on", "ray", "--trainers", 2)
    assert code == 2 and err[0].endswith(f"go on with: marius-oac resume {tmp_path / 'run'} --on ray --trainers 2")


def test_the_job_is_plain_json(train, tmp_path, monkeypatch):
    from marius_oac.nodes.training import on_ray

    asked = []
    monkeypatch.setattr(on_ray, "run", lambda request: asked.append(request) or 0)
    words = ["--on", "ray", "--trainers", "2..3", "--restarts", 1, "--timeout", 9, "--encrypt", "--trace"]
    sets = ("threads=2", "device=cpu", "nodes.parts=8")
    assert train(*words, *(word for each in sets for word in ("--set", each)))[0] == 0
    (request,) = asked
    assert (request.least, request.most, request.threads, request.gpu) == (2, 3, 2, False)
    assert (request.restarts, request.timeout, request.encryption) == (1, 9, True)
    job = json.loads(json.dumps(request.job))
    assert job["options"] == ["--on", "ray", "--trainers", "2..3", "--restarts", "1", "--timeout", "9", "--encrypt"]
    assert job["do"] == "train" and job["out"] == str(tmp_path / "run") and job["trace"] and "codex-s" in job["config"]
    assert "ray" not in sys.modules
