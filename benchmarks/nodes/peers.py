"""What a server's connections cost as trainers are added: handshakes of all at once, descriptors, threads, idle time.

    python -m benchmarks.nodes.peers [--peers 8 64 256 1000] [--seconds 10]

All clients connect to one server at the same time, from `PROCESSES` processes, each client from a thread of its own,
which then waits for a message, as a trainer's does. The table has how many are let in, within which time; then, while
nobody says anything, the server's descriptors, threads and processor time, and those of its clients, by client. A
trainer of a run with N nodes has N - 1 clients and a server with N - 1 connections.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import psutil

from marius_oac.errors import MariusOacError
from marius_oac.nodes.transport.contract import Security
from marius_oac.nodes.transport.zmq_client import ZmqClient
from marius_oac.nodes.transport.zmq_server import ZmqServer
from marius_oac.runtime.channel import Closed

PROCESSES, TIMEOUT, SERVER = 4, 30.0, "server"
_SECURITY = Security(secret=bytes(32), run="peers")


class _Clients:
    """Some clients, each with a thread that connects and then waits."""

    def __init__(self, address: str, ranks: Sequence[int]):
        self._made: list[ZmqClient] = []
        self._threads = [threading.Thread(target=self._connect, args=(address, rank)) for rank in ranks]
        self._ready = threading.Barrier(len(ranks) + 1)
        for thread in self._threads:
            thread.start()
        self._ready.wait()

    def _connect(self, address: str, rank: int) -> None:
        client = None
        with suppress(MariusOacError):
            client = ZmqClient(address, SERVER, rank, _SECURITY, timeout=TIMEOUT)
            self._made.append(client)
        self._ready.wait()
        with suppress(MariusOacError, Closed):
            if client is not None:
                client.receive()

    @property
    def count(self) -> int:
        return len(self._made)

    def close(self) -> None:
        for client in self._made:
            client.close()
        for thread in self._threads:
            thread.join()


def _measured(seconds: float) -> tuple[int, int, float]:
    """Descriptors, threads, and the part of a core that this process takes in so many seconds in which it waits."""
    process, began = psutil.Process(), time.process_time()
    time.sleep(seconds)
    return process.num_fds(), process.num_threads(), (time.process_time() - began) / seconds


def _child(line: Connection, address: str, ranks: Sequence[int], seconds: float) -> None:
    before = _measured(0.01)
    line.send(None)
    line.recv()
    clients = _Clients(address, ranks)
    line.send(clients.count)
    line.recv()
    found = _measured(seconds)
    line.send((found[0] - before[0], found[1] - before[1], found[2]))
    line.recv()
    clients.close()


def _serve(server: ZmqServer) -> None:
    with suppress(MariusOacError, Closed):
        while True:
            server.receive()


def all_at_once(
    count: int, processes: int = PROCESSES, seconds: float = 0.0, found: dict[str, Any] | None = None
) -> Any:
    """Returns the seconds that handshakes of so many clients at once took, and how many were let in.

    `processes` 0: the clients are in this process. `found`: gets what server and clients take while they wait.
    """
    before = _measured(0.01)
    server = ZmqServer("127.0.0.1:0", SERVER, {rank: f"n{rank}" for rank in range(count)}, _SECURITY, timeout=TIMEOUT)
    serving = threading.Thread(target=_serve, args=(server,))
    serving.start()
    try:
        if not processes:
            began = time.monotonic()
            clients = _Clients(server.address, range(count))
            took, there = time.monotonic() - began, clients.count
            clients.close()
            return took, there
        return _from_processes(server, count, processes, seconds, before, {} if found is None else found)
    finally:
        server.abort()
        serving.join()
        server.close()


def _from_processes(
    server: ZmqServer, count: int, processes: int, seconds: float, before: tuple[int, int, float], found: dict[str, Any]
) -> tuple[float, int]:
    context = multiprocessing.get_context("spawn")
    lines, children = [], []
    for number in range(min(processes, count)):
        ours, theirs = context.Pipe()
        ranks = range(number, count, min(processes, count))
        children.append(context.Process(target=_child, args=(theirs, server.address, ranks, seconds)))
        children[-1].start()
        lines.append(ours)
    for line in lines:
        line.recv()
    began = time.monotonic()
    for line in lines:
        line.send(None)
    there = sum(line.recv() for line in lines)
    took = time.monotonic() - began
    for line in lines:
        line.send(None)
    descriptors, threads, idle = _measured(seconds)
    found["server"] = descriptors - before[0], threads - before[1], idle
    found["clients"] = [sum(each) / count for each in zip(*(line.recv() for line in lines), strict=True)]
    for line in lines:
        line.send(None)
    for child in children:
        child.join()
    return took, there


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints a row of a table for each number of peers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", type=int, nargs="+", default=[8, 64, 256, 1000])
    parser.add_argument("--seconds", type=float, default=10.0)
    given = parser.parse_args(arguments)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    print("| peers | let in | after s | server: descriptors | threads | idle, % of a core "
          "| a client: descriptors | threads | idle, % of a core |\n|---|---|---|---|---|---|---|---|---|")  # fmt: skip
    for count in given.peers:
        found: dict[str, Any] = {}
        took, there = all_at_once(count, seconds=given.seconds, found=found)
        fds, threads, idle = found["server"]
        own = found["clients"]
        print(f"| {count:,} | {there:,} | {took:.1f} | {fds} | {threads} | {100 * idle:.2f} "
              f"| {own[0]:.1f} | {own[1]:.1f} | {100 * own[2]:.3f} |", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
