"""The emulated cluster that other tests and benchmarks stand on: rates, bytes, isolation, kills, nothing left over."""

import os
import signal
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from benchmarks.nodes import cluster as module
from benchmarks.nodes.cluster import Cluster, remove_stale, why_not
from benchmarks.nodes.cluster_check import all_reduce

_WHY_NOT = why_not()
pytestmark = pytest.mark.skipif(_WHY_NOT is not None, reason=_WHY_NOT or "")

PORT = 5000
COMMON = f"import errno, os, socket, subprocess, sys, time\nPORT = {PORT}\n"
# Takes one connection, says that it listens, and how many bytes came in how many seconds, or what else happened.
SINK = """
server = socket.create_server(("0.0.0.0", PORT))
print("listening", flush=True)
peer, _ = server.accept()
peer.settimeout(20)
begin, size = time.perf_counter(), 0
try:
    while part := peer.recv(1 << 16):
        size += len(part)
        if size == len(part):
            begin, first = time.perf_counter(), size
            print("first", flush=True)
    print(size, size - first, time.perf_counter() - begin)
except OSError as error:
    print(type(error).__name__)
"""
SOURCE = """
size = int(sys.argv[2])
while True:
    try:
        socket.create_connection((sys.argv[1], PORT), timeout=20).sendall(bytes(size))
        break
    except OSError as error:
        if error.errno != errno.EHOSTUNREACH:  # which takes seconds: a host that was unplugged has to be found again
            raise
"""
# Sends a byte and then nothing, for ever.
MUTE = """
peer = socket.create_connection((sys.argv[1], PORT), timeout=20)
peer.sendall(b"x")
print("sent", flush=True)
while True:
    time.sleep(100)
"""


def start(host, code, *arguments):
    return host.run([sys.executable, "-S", "-c", COMMON + textwrap.dedent(code), *arguments])


def left():
    return module._named(module._NAMESPACES, module._PREFIX + str(os.getpid()))


def transfer(sender, receiver, size):
    """Bytes and seconds of a transfer after its first part, as the receiver saw it."""
    sink = start(receiver, SINK)
    sink.wait_for("listening", 20)
    source = start(sender, SOURCE, receiver.address, str(size))
    assert source.wait(30) == 0, source.output()
    assert sink.wait(30) == 0
    whole, rest, seconds = sink.output().split()[-3:]
    assert int(whole) == size
    return int(rest), float(seconds)


def test_a_link_has_its_rate_and_bytes_are_counted():
    size, rate_mbit = 2_000_000, 20
    with Cluster(3, rate_mbit) as cluster:
        one, two, three = cluster.hosts
        for _ in range(4):  # a crowded machine may fall behind, but a link is never faster than it is
            sent, received = one.bytes_sent(), two.bytes_received()
            rest, seconds = transfer(one, two, size)
            sent, received = one.bytes_sent() - sent, two.bytes_received() - received
            assert 1.04 * size < sent < 1.07 * size  # segments of 1,448 bytes with headers of 66
            assert abs(sent - received) < 1000
            rate = rest * 8 / seconds / 1e6
            assert rate < 1.1 * rate_mbit
            if rate > 0.9 * rate_mbit:
                break
        assert rate > 0.9 * rate_mbit
        assert three.bytes_received() < 10_000 and three.bytes_sent() < 10_000


def test_links_differ_where_they_are_told_to():
    with Cluster(2, [8, 80]) as cluster:
        rest, seconds = transfer(cluster.hosts[1], cluster.hosts[0], 500_000)
    assert rest * 8 / seconds / 1e6 < 8.8


def test_hosts_have_names_and_interfaces_and_see_nothing_else():
    code = """
        print(socket.gethostname(), socket.gethostbyname(socket.gethostname()), socket.gethostbyname("h1"))
        print(*sorted(os.listdir("/sys/class/net")), os.environ["GREETING"])
        print(os.path.isdir("/sys/fs/cgroup/" + os.listdir("/sys/fs/cgroup")[0]))
        try:
            socket.create_connection(("192.0.2.1", 80), timeout=5)
        except OSError as error:
            print(error.strerror)
    """
    interfaces, routes = sorted(os.listdir("/sys/class/net")), Path("/proc/net/route").read_text()
    with Cluster(2, 100) as cluster:
        host = cluster.hosts[0]
        process = host.run([sys.executable, "-c", COMMON + textwrap.dedent(code)], {"GREETING": "hello"})
        assert process.wait(20) == 0, process.output()
        sink = start(cluster.hosts[1], SINK)
        sink.wait_for("listening", 20)
        assert sorted(os.listdir("/sys/class/net")) == interfaces
        assert Path("/proc/net/route").read_text() == routes
        listening = [line.split()[1] for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        assert f"00000000:{PORT:04X}" not in listening
        in_switch = module._command("ip", "-n", cluster._hub, "-br", "link").split("\n")
        assert sorted(line.split("@")[0].split()[0] for line in in_switch if line) == ["lo", "port0", "port1", "switch"]
        assert not module._command("ip", "-n", cluster._hub, "-o", "addr", "show")
    said = process.output().splitlines()
    assert said[0] == f"h0 {host.address} {cluster.hosts[1].address}"
    assert said[1:] == ["eth0 lo hello", "True", "Network is unreachable"]
    assert socket.gethostname() != "h0"


def test_a_killed_process_ends_its_connections_and_is_known_by_its_code():
    with Cluster(2, 100) as cluster:
        one, two = cluster.hosts
        sink = start(two, SINK)
        sink.wait_for("listening", 20)
        mute = start(one, MUTE, two.address)
        sink.wait_for("first", 20)
        mute.kill()
        assert mute.wait(5) == -signal.SIGKILL
        assert sink.wait(20) == 0 and sink.output().split()[-3:-1] == ["1", "0"]


def test_a_host_that_is_unplugged_and_killed_is_gone_without_a_word():
    with Cluster(2, 100) as cluster:
        one, two = cluster.hosts
        sink = start(two, SINK.replace("settimeout(20)", "settimeout(0.5)"))
        sink.wait_for("listening", 20)
        mute = start(one, MUTE, two.address)
        sink.wait_for("first", 20)
        one.unplug()
        one.kill()
        assert mute.wait(5) == -signal.SIGKILL
        assert sink.wait(20) == 0 and sink.output().split()[-1] == "TimeoutError"
        one.plug()
        transfer(one, two, 1000)


def test_killing_a_host_kills_what_left_its_session():
    daemon = 'subprocess.Popen(["sleep", "1000"], start_new_session=True); print("left", flush=True); time.sleep(1000)'
    with Cluster(1, 100) as cluster:
        (host,) = cluster.hosts
        process = start(host, daemon)
        process.wait_for("left", 20)
        process.kill()
        (pid,) = module._command("ip", "netns", "pids", host.namespace).split()
        host.kill()
        assert not module._command("ip", "netns", "pids", host.namespace).split()
        assert not Path(f"/proc/{pid}").exists() or "\tZ" in Path(f"/proc/{pid}/status").read_text()


def test_what_is_waited_for_in_vain_is_said():
    with Cluster(1, 100) as cluster:
        process = start(cluster.hosts[0], 'print("so far", flush=True); time.sleep(100)')
        process.wait_for("far", 20)
        with pytest.raises(TimeoutError, match="still running after 0.2 s; it said: so far"):
            process.wait(0.2)
        with pytest.raises(TimeoutError, match="it runs for 0.2 s without saying 'farther', but: so far"):
            process.wait_for("farther", 0.2)
        short = start(cluster.hosts[0], 'sys.exit("no")')
        with pytest.raises(RuntimeError, match="it has ended, code 1, without saying 'yes', but: no"):
            short.wait_for("yes", 20)
        with pytest.raises(RuntimeError, match="code 1, without saying 'yes'"):  # and again, when it is long gone
            short.wait_for("yes", 20)


def test_nothing_is_left_after_an_error():
    with pytest.raises(ZeroDivisionError), Cluster(3, 100) as cluster:
        folder = cluster.hosts[0]._folder
        process = start(cluster.hosts[1], "time.sleep(1000)")
        assert len(left()) == 4
        raise ZeroDivisionError
    assert left() == [] and not folder.exists()
    assert process.wait(0) == -signal.SIGKILL


def test_nothing_is_left_where_building_fails(monkeypatch):
    command = module._command

    def failing(*words, text=""):
        if words[0] == "tc" and "port1" in words:
            raise RuntimeError("no more")
        return command(*words, text=text)

    monkeypatch.setattr(module, "_command", failing)
    with pytest.raises(RuntimeError, match="no more"), Cluster(2, 100):
        raise AssertionError("it was built after all")
    assert left() == []


OWNER = """
import signal
import sys
from benchmarks.nodes.cluster import Cluster
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has its background jobs ignore it
with Cluster(2, 100) as cluster:
    process = cluster.hosts[0].run(["setsid", "--wait", "sh", "-c", "echo $$ sleeps; exec sleep 1000"])
    process.wait_for("sleeps", 20)
    print(cluster.hosts[0]._folder, process.output().split()[0], flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["Ctrl-C", "kill -9"])
def test_nothing_is_left_of_an_owner_that_is_stopped(number):
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", OWNER], cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as owner:
        folder, pid = owner.stdout.readline().decode().split()
        folder, runs = Path(folder), Path(f"/proc/{pid}/exe")  # which a zombie doesn't have
        prefix = f"{module._PREFIX}{owner.pid}-"
        names = module._named(module._NAMESPACES, prefix)
        assert len(names) == 3 and folder.is_dir() and runs.exists()
        owner.send_signal(number)
        errors = owner.communicate()[1].decode()
    if number == signal.SIGINT:
        assert errors.rstrip().endswith("KeyboardInterrupt")
    else:
        assert module._named(module._NAMESPACES, prefix) == names
        assert runs.exists()
        remove_stale()
    assert module._named(module._NAMESPACES, prefix) == [] and not folder.exists() and not runs.exists()


@pytest.mark.parametrize("arguments", [(0, 100), (201, 100), (2, 0), (2, [100]), (2, [100, -1])])
def test_impossible_clusters_are_refused(arguments):
    with pytest.raises(ValueError, match="must be"):
        Cluster(*arguments)


@pytest.mark.slow
def test_members_of_torch_meet_and_an_all_reduce_is_counted():
    sent, _ = all_reduce(3, 1000, 1 << 22, 2)
    assert 1.03 < sent < 1.1
