"""Pulls between two hosts: our transport against gRPC, a bare TCP connection and iperf3.

    python -m benchmarks.nodes.transport                        # two processes, loopback
    python -m benchmarks.nodes.transport --hosts                # two network namespaces and a veth pair (as root)
    python -m benchmarks.nodes.transport --hosts --rate 10gbit  # the same, with a link of that rate

All take turns for some seconds; ratios are medians of the ratios within a round.

ours       `ZmqServer` and `ZmqClient`
encrypted  the same, encrypted
grpc       a stream of frames for a pull, a unary call for a small one (where grpcio is installed)
tcp        the limit for small pulls: a socket that is read and written by hand, with no messages, threads or checks
iperf3     the limit for large ones: the server sends for a second (where iperf3 is installed)

A pull: a request of 1 KB, a reply of 16 MiB in four frames, `--ahead` of them on their way (the pipeline pulls batches
ahead). A small pull: 1 KB and back, one after the other. Processor seconds: both processes, with the kernel.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import shutil
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import numpy as np

from benchmarks.machine import machine
from marius_oac.nodes.transport.contract import Security
from marius_oac.nodes.transport.receiver import Receiver
from marius_oac.nodes.transport.zmq_client import ZmqClient
from marius_oac.nodes.transport.zmq_server import ZmqServer
from marius_oac.runtime.channel import Closed

PULL_BYTES = 16 << 20
FRAMES = 4
SMALL = 1 << 10
WARM_UP = 5
SECRET = bytes(32)
NAMESPACES = {"moa-bench-a": "10.213.0.1", "moa-bench-b": "10.213.0.2"}


def reply_frames() -> list[np.ndarray]:
    random = np.random.default_rng(0)
    return [random.integers(0, 1 << 62, PULL_BYTES // FRAMES // 8) for _ in range(FRAMES)]


# --- ours ------------------------------------------------------------------------------------------------------------


def security(kind: str) -> Security:
    return Security(secret=SECRET, run="benchmark", encrypted=kind == "encrypted")


def serve_ours(kind: str, host: str) -> None:
    frames = reply_frames()
    with ZmqServer(f"{host}:0", "server", {0: "client"}, security(kind)) as server:
        print(server.address, flush=True)
        commands = Commands(server.abort)
        try:
            while True:
                request = server.receive()
                server.send(request.peer, request.frames if request.frames[0][0] else frames)
        except Closed:
            commands.join()


class Ours:
    """Receives as a trainer does, which has one thread for all its clients."""

    def __init__(self, kind: str, address: str):
        self.client = ZmqClient(address, "server", 0, security(kind))
        self.receiver = Receiver([self.client])

    def pull(self, count: int, ahead: int) -> None:
        for number in range(count + ahead):
            if number < count:
                self.client.send([bytes(SMALL)])
            if number >= ahead:
                assert sum(map(len, self.receiver.receive().frames)) == PULL_BYTES

    def small(self, count: int) -> None:
        request = b"x" * SMALL
        for _ in range(count):
            self.client.send([request])
            self.receiver.receive()

    def close(self) -> None:
        self.receiver.close()
        self.client.close()


# --- bare TCP --------------------------------------------------------------------------------------------------------


def fill(connection: socket.socket, buffer: memoryview) -> bool:
    while buffer:
        count = connection.recv_into(buffer)
        if not count:
            return False
        buffer = buffer[count:]
    return True


def serve_tcp(kind: str, host: str) -> None:
    frames, request = [memoryview(frame).cast("B") for frame in reply_frames()], bytearray(SMALL)
    with socket.create_server((host, 0)) as listener:
        print(f"{host}:{listener.getsockname()[1]}", flush=True)
        connection, _ = listener.accept()
        commands = Commands(lambda: None)
        with connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while fill(connection, memoryview(request)):
                for frame in [request] if request[0] else frames:
                    connection.sendall(frame)
        commands.join()


class Tcp:
    def __init__(self, kind: str, address: str):
        host, port = address.split(":")
        self.connection = socket.create_connection((host, int(port)))
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def pull(self, count: int, ahead: int) -> None:
        for number in range(count + ahead):
            if number < count:
                self.connection.sendall(bytes(SMALL))
            if number >= ahead:
                assert fill(self.connection, memoryview(np.empty(PULL_BYTES, np.uint8)))

    def small(self, count: int) -> None:
        request, reply = b"x" * SMALL, memoryview(bytearray(SMALL))
        for _ in range(count):
            self.connection.sendall(request)
            assert fill(self.connection, reply)

    def close(self) -> None:
        self.connection.close()


# --- gRPC ------------------------------------------------------------------------------------------------------------


def serve_grpc(kind: str, host: str) -> None:
    from concurrent.futures import ThreadPoolExecutor

    import grpc

    frames = [frame.tobytes() for frame in reply_frames()]
    handlers = {
        "small": grpc.unary_unary_rpc_method_handler(lambda request, _: request),
        "pull": grpc.unary_stream_rpc_method_handler(lambda request, _: iter(frames)),
    }
    server = grpc.server(ThreadPoolExecutor(8), options=[("grpc.max_send_message_length", -1)])
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("pulls", handlers),))
    print(f"{host}:{server.add_insecure_port(f'{host}:0')}", flush=True)
    server.start()
    Commands(lambda: server.stop(0)).join()


class Grpc:
    def __init__(self, kind: str, address: str):
        import grpc

        self._channel = grpc.insecure_channel(address, options=[("grpc.max_receive_message_length", -1)])
        self._pull = self._channel.unary_stream("/pulls/pull")
        self._small = self._channel.unary_unary("/pulls/small")

    def pull(self, count: int, ahead: int) -> None:
        streams = []
        for number in range(count + ahead):
            if number < count:
                streams.append(self._pull(bytes(SMALL)))
            if number >= ahead:
                assert sum(map(len, streams.pop(0))) == PULL_BYTES

    def small(self, count: int) -> None:
        for _ in range(count):
            self._small(b"x" * SMALL, wait_for_ready=True)

    def close(self) -> None:
        self._channel.close()


SERVE = {"ours": serve_ours, "encrypted": serve_ours, "tcp": serve_tcp, "grpc": serve_grpc}
CLIENTS = {"ours": Ours, "encrypted": Ours, "tcp": Tcp, "grpc": Grpc}


# --- processes -------------------------------------------------------------------------------------------------------


class Commands:
    """A thread of the server's process that tells its processor seconds when asked, and its end when there is none."""

    def __init__(self, end: Callable[[], object]):
        def answer() -> None:
            for _ in sys.stdin:
                print(time.process_time(), flush=True)
            end()

        self._thread = threading.Thread(target=answer)
        self._thread.start()

    def join(self) -> None:
        self._thread.join()


def run_client(kind: str, address: str) -> None:
    """Obeys lines "pull COUNT AHEAD" and "small COUNT"; answers seconds and processor seconds."""
    client = CLIENTS[kind](kind, address)
    print("ready", flush=True)
    for line in sys.stdin:
        what, *numbers = line.split()
        cpu, start = time.process_time(), time.perf_counter()
        getattr(client, what)(*map(int, numbers))
        print(time.perf_counter() - start, time.process_time() - cpu, flush=True)
    client.close()


class Process:
    def __init__(self, host: str, *arguments: str, prefix: list[str]):
        command = [*prefix, sys.executable, "-m", "benchmarks.nodes.transport", "--role", *arguments]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def answer(self) -> str:
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.process.args} ended")
        return line.strip()

    def ask(self, line: str) -> list[float]:
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return [float(word) for word in self.answer().split()]

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait(30)
        self.process.stdout.close()


@dataclass
class Hosts:
    """Where servers and clients run: commands that start a process there, and the server's address."""

    address: str = "127.0.0.1"
    server: tuple[str, ...] = ()
    client: tuple[str, ...] = ()


@contextmanager
def namespaces(rate: str | None) -> Iterator[Hosts]:
    """Two network namespaces joined by a veth pair; `rate` as tc understands it."""

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True)

    names = list(NAMESPACES)
    try:
        for name in names:
            ip("netns", "add", name)
        ip("link", "add", "moa-a", "netns", names[0], "type", "veth", "peer", "name", "moa-b", "netns", names[1])
        for name, link in zip(names, ("moa-a", "moa-b"), strict=True):
            ip("-n", name, "addr", "add", f"{NAMESPACES[name]}/24", "dev", link)
            ip("-n", name, "link", "set", link, "up")
            if rate:
                limit = ["root", "tbf", "rate", rate, "burst", "4mb", "latency", "50ms"]
                subprocess.run(["tc", "-n", name, "qdisc", "add", "dev", link, *limit], check=True)
        inside = [("ip", "netns", "exec", name) for name in names]
        yield Hosts(NAMESPACES[names[0]], *inside)
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL)


class Contestant:
    """A server and a client, each in a process on its host."""

    def __init__(self, kind: str, hosts: Hosts):
        self.server = Process("server", "serve", kind, hosts.address, prefix=list(hosts.server))
        self.client = Process("client", "client", kind, self.server.answer(), prefix=list(hosts.client))
        assert self.client.answer() == "ready"

    def run(self, command: str) -> tuple[float, float]:
        """Seconds, and processor seconds of both."""
        (before,) = self.server.ask("cpu")
        seconds, cpu = self.client.ask(command)
        (after,) = self.server.ask("cpu")
        return seconds, cpu + after - before

    def close(self) -> None:
        self.client.close()
        self.server.close()


def iperf(hosts: Hosts, seconds: float) -> tuple[float, float]:
    """Bytes a second, and processor seconds of both a gigabyte, of one stream from the server to the client."""
    server = subprocess.Popen(
        [*hosts.server, "iperf3", "-s", "-1", "-B", hosts.address, "-p", "5281", "--forceflush"],
        stdout=subprocess.PIPE,
        text=True,
    )
    while "listening" not in server.stdout.readline():
        continue
    command = [*hosts.client, "iperf3", "-c", hosts.address, "-p", "5281", "-R", "-J", "-t", str(seconds)]
    report = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)["end"]
    server.communicate()
    speed, cpu = report["sum_received"]["bits_per_second"] / 8, report["cpu_utilization_percent"]
    return speed, (cpu["host_total"] + cpu["remote_total"]) / 100 / (speed / 1e9)


# --- the race --------------------------------------------------------------------------------------------------------


def measure(options: argparse.Namespace, hosts: Hosts) -> dict[str, dict[str, list[float]]]:
    """Per contestant and figure, one number a round."""
    kinds = [kind for kind in SERVE if kind != "grpc" or importlib.util.find_spec("grpc")]
    figures = {kind: {"speed": [], "cpu": [], "one": [], "small": [], "small cpu": []} for kind in kinds}
    if shutil.which("iperf3"):
        figures["iperf3"] = {"speed": [], "cpu": []}
    with ExitStack() as stack:
        contestants = {kind: Contestant(kind, hosts) for kind in kinds}
        for contestant in contestants.values():
            stack.callback(contestant.close)
        gigabytes = options.pulls * PULL_BYTES / 1e9
        for number in range(options.rounds + 1):
            for kind, contestant in contestants.items():
                contestant.run(f"pull {WARM_UP} {options.ahead}")
                seconds, cpu = contestant.run(f"pull {options.pulls} {options.ahead}")
                one, _ = contestant.run(f"pull {options.pulls} 1")
                small, small_cpu = contestant.run(f"small {options.small}")
                if number:
                    mine = figures[kind]
                    mine["speed"].append(gigabytes / seconds)
                    mine["one"].append(gigabytes / one)
                    mine["cpu"].append(cpu / gigabytes)
                    mine["small"].append(1e6 * small / options.small)
                    mine["small cpu"].append(1e6 * small_cpu / options.small)
            if number and "iperf3" in figures:
                speed, cpu = iperf(hosts, options.seconds)
                figures["iperf3"]["speed"].append(speed / 1e9)
                figures["iperf3"]["cpu"].append(cpu)
    return figures


def ratio(mine: list[float], limit: list[float]) -> str:
    return f"{statistics.median(a / b for a, b in zip(mine, limit, strict=True)):.2f}"


def show(figures: dict[str, dict[str, list[float]]]) -> None:
    limit, echo = figures.get("iperf3"), figures["tcp"]["small"]
    print("| | GB/s | of iperf3 | one at a time | CPU s/GB | small pull | / bare TCP | CPU |")
    print("|---|---|---|---|---|---|---|---|")
    for kind, mine in figures.items():
        middle = {name: statistics.median(values) for name, values in mine.items()}
        cells = [f"{middle['speed']:.2f}", ratio(mine["speed"], limit["speed"]) if limit else ""]
        cells += [f"{middle['one']:.2f}" if "one" in mine else "", f"{middle['cpu']:.2f}"]
        if "small" in mine:
            cells += [f"{middle['small']:.0f} us", ratio(mine["small"], echo), f"{middle['small cpu']:.0f} us"]
        print(f"| {kind} | " + " | ".join([*cells, *[""] * (7 - len(cells))]) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--pulls", type=int, default=40, help="large ones a round")
    parser.add_argument("--small", type=int, default=1000, help="small ones a round")
    parser.add_argument("--ahead", type=int, default=4, help="pulls on their way at once")
    parser.add_argument("--seconds", type=float, default=1.0, help="of iperf3 a round")
    parser.add_argument("--hosts", action="store_true", help="two network namespaces instead of loopback")
    parser.add_argument("--rate", help="of the link between them, as tc understands it")
    parser.add_argument("--role", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.role:
        role, kind, where = options.role
        (SERVE[kind] if role == "serve" else run_client)(kind, where)
        return
    here = machine()  # with the load before the benchmark's own
    with namespaces(options.rate) if options.hosts else ExitStack() as hosts:
        show(measure(options, hosts if options.hosts else Hosts()))
    print(here)


if __name__ == "__main__":
    main()
