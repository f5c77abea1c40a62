"""Heartbeats: members of a group in a simulated network, and what they cost real processes.

    python -m benchmarks.nodes.heartbeats [--members 8 64 256 1000] [--seeds 20]
    python -m benchmarks.nodes.heartbeats --processes 2 4 8 32 [--seconds 20]

The first simulates every trouble of `TROUBLES` with each number of members and each seed, and prints how many messages
a member sends while nothing happens, and within how many seconds every member knows what has happened. It fails if any
of them names anybody else. The protocol is the real one (`marius_oac/nodes/groups/membership.py`); time and network are
made up (`benchmarks/nodes/simulated_members.py`).

The second starts real processes on loopback that are a group and wait, and prints the processor time that one takes,
heartbeats and all else.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import socket
import statistics
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection

import psutil

from benchmarks.nodes.simulated_members import TROUBLES, messages, simulate
from marius_oac.nodes.groups.torch_group import TorchGroup

TIMEOUT = 30.0


def _member(line: Connection, rank: int, size: int, port: int, seconds: float) -> None:
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    with TorchGroup.from_environment(TIMEOUT, "lo") as group:
        group.barrier()
        before = time.process_time()
        time.sleep(seconds)
        spent = time.process_time() - before
        there = psutil.Process()
        line.send((spent / seconds, there.num_fds(), there.num_threads()))
        line.recv()


def measured(size: int, seconds: float) -> tuple[float, int, int]:
    """Returns the median part of a core that one of so many waiting processes takes, and the most descriptors and
    threads of one."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    lines, processes = [], []
    for rank in range(size):
        ours, theirs = context.Pipe()
        with theirs:
            processes.append(context.Process(target=_member, args=(theirs, rank, size, port, seconds)))
            processes[-1].start()
        lines.append(ours)
    found = [line.recv() for line in lines]
    for line in lines:
        line.send(None)
    for process in processes:
        process.join()
    busy, descriptors, threads = zip(*found, strict=True)
    return statistics.median(busy), max(descriptors), max(threads)


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints a row of a table for each number of members, or of processes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, nargs="+", default=[8, 64, 256, 1000])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--processes", type=int, nargs="+")
    parser.add_argument("--seconds", type=float, default=20.0)
    given = parser.parse_args(arguments)
    if given.processes:
        print("| processes | one takes, median, % of a core | descriptors | threads |\n|---|---|---|---|")
        for size in given.processes:
            busy, descriptors, threads = measured(size, given.seconds)
            print(f"| {size} | {100 * busy:.3f} | {descriptors} | {threads} |", flush=True)
        return
    print(f"| members | links | messages a second | {' | '.join(TROUBLES)} |\n|---|---|---|{'---|' * len(TROUBLES)}")
    for size in given.members:
        cells = []
        for trouble in TROUBLES:
            took = [simulate(trouble, size, seed) for seed in range(given.seeds)]
            cells.append(f"{sum(took) / len(took):.3f} ({max(took):.3f})")
        links, sent = messages(size)
        print(f"| {size:,} | {links} | {sent:.1f} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
