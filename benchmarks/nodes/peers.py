"""What a process with many peers costs: handshakes, descriptors, threads, and processor time while nobody says a word.

    python -m benchmarks.nodes.peers [--peers 8 64 256 1000] [--seconds 24]

One process is measured. As a trainer of a run over nodes it has a server, to which each peer connects, and a client at
each peer's server, all received from by one thread. Its peers are in `PROCESSES` other processes, a server and a client
each. All connections are over loopback. First all peers connect to the process at the same moment, which tells how many
are let in, and within which time. Then it connects to them, one after the other, as a trainer does; then all wait, and
the process is measured, for two periods of its heartbeats.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing, suppress
from multiprocessing.connection import Connection
from typing import NamedTuple

import psutil

from marius_oac.errors import MariusOacError
from marius_oac.nodes.transport.contract import Security
from marius_oac.nodes.transport.receiver import Receiver
from marius_oac.nodes.transport.zmq_client import ZmqClient
from marius_oac.nodes.transport.zmq_server import ZmqServer
from marius_oac.runtime.channel import Closed

PROCESSES, TIMEOUT, OURS = 4, 30.0, "ours"
_SECURITY = Security(secret=bytes(32), run="peers")


class Usage(NamedTuple):
    """What a process has, and the part of a core that it takes."""

    descriptors: int
    threads: int
    busy: float


class Measured(NamedTuple):
    """What was found: how many peers were let in, within how many seconds; how long connecting to all of them took; and
    what the process took while nobody said anything, beyond what it had without peers."""

    there: int
    took: float
    connecting: float
    idle: Usage


def _usage(seconds: float) -> Usage:
    """What this process has, and takes in so many seconds in which it waits."""
    process, began = psutil.Process(), time.process_time()
    time.sleep(seconds)
    return Usage(process.num_fds(), process.num_threads(), (time.process_time() - began) / seconds)


def _serve(server: ZmqServer) -> None:
    with suppress(MariusOacError, Closed):
        while True:
            server.receive()


def _serving(stack: ExitStack, name: str, peers: dict[int, str]) -> ZmqServer:
    """Returns a server with a thread that receives, until the stack is closed."""
    server = ZmqServer("127.0.0.1:0", name, peers, _SECURITY, timeout=TIMEOUT)
    thread = threading.Thread(target=_serve, args=(server,))
    thread.start()
    for each in (server.close, thread.join, server.abort):  # in the opposite order
        stack.callback(each)
    return server


def _receive(clients: Sequence[ZmqClient], ready: threading.Event) -> None:
    with closing(Receiver(clients)) as receiver:
        ready.set()
        while receiver.receive() is not None:
            pass


def _receiving(stack: ExitStack, clients: Sequence[ZmqClient]) -> None:
    ready = threading.Event()
    thread = threading.Thread(target=_receive, args=(clients, ready))
    thread.start()
    stack.callback(thread.join)
    for client in clients:
        stack.callback(client.close)
        stack.callback(client.abort)
    ready.wait()


class Peers:
    """Some peers, with a server each; `connect` connects all of them to the measured process at once."""

    def __init__(self, stack: ExitStack, address: str, ranks: Sequence[int]):
        self._stack, self._address, self._ranks = stack, address, ranks
        self.addresses = {rank: _serving(stack, f"n{rank}", {0: OURS}).address for rank in ranks}
        self._made: list[ZmqClient] = []

    def connect(self) -> int:
        """Returns how many were let in."""
        threads = [threading.Thread(target=self._connect, args=(rank,)) for rank in self._ranks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        _receiving(self._stack, self._made)
        return len(self._made)

    def _connect(self, rank: int) -> None:
        with suppress(MariusOacError):
            self._made.append(ZmqClient(self._address, OURS, rank, _SECURITY, timeout=TIMEOUT))


def _child(line: Connection, address: str, ranks: Sequence[int]) -> None:
    with ExitStack() as stack:
        peers = Peers(stack, address, ranks)
        line.send(peers.addresses)
        line.recv()
        line.send(peers.connect())
        line.recv()


def _children(stack: ExitStack, address: str, count: int) -> list[Connection]:
    context, lines, processes = multiprocessing.get_context("spawn"), [], min(PROCESSES, count)
    for number in range(processes):
        ours, theirs = context.Pipe()
        child = context.Process(target=_child, args=(theirs, address, range(number, count, processes)))
        child.start()
        stack.callback(child.join)
        stack.callback(ours.send, None)
        lines.append(ours)
    return lines


def measured(count: int, seconds: float = 0.1) -> Measured:
    """Returns what a process with so many peers takes in so many seconds."""
    before = _usage(0.01)
    with ExitStack() as stack:
        server = _serving(stack, OURS, {rank: f"n{rank}" for rank in range(count)})
        lines = _children(stack, server.address, count)
        addresses = {rank: where for line in lines for rank, where in line.recv().items()}
        began = time.monotonic()
        for line in lines:
            line.send(None)
        there = sum(line.recv() for line in lines)
        took, began = time.monotonic() - began, time.monotonic()
        clients = [ZmqClient(where, f"n{rank}", 0, _SECURITY, timeout=TIMEOUT) for rank, where in addresses.items()]
        connecting = time.monotonic() - began
        _receiving(stack, clients)
        found = _usage(seconds)
    about = found.descriptors - before.descriptors, found.threads - before.threads, found.busy
    return Measured(there, took, connecting, Usage(*about))


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints a row of a table for each number of peers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=int, nargs="+", default=[8, 64, 256, 1000])
    parser.add_argument("--seconds", type=float, default=24.0)
    given = parser.parse_args(arguments)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    print("| peers | let in | after s | connected to all after s | descriptors | threads | idle, % of a core |\n"
          "|---|---|---|---|---|---|---|")  # fmt: skip
    for count in given.peers:
        there, took, connecting, idle = measured(count, given.seconds)
        print(f"| {count:,} | {there:,} | {took:.1f} | {connecting:.1f} | {idle.descriptors} | {idle.threads} "
              f"| {100 * idle.busy:.2f} |", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
