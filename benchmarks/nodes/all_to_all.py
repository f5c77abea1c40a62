"""Rows over our sockets against all-to-all of `torch.distributed`, in one phase and in two, on an emulated cluster.

    python -m benchmarks.nodes.all_to_all                              # as root; some ten minutes
    python -m benchmarks.nodes.all_to_all --rates 1000 --hosts 4 --members 2

Each trainer draws 4,000 rows a batch of 64 floats out of a million, row k about as often as 1 / k, pulls each once and
pushes a gradient of each. Pulls are four batches ahead. Nothing is computed and nothing validated. `--members` trainers
are on a host.

sockets      our transport: a message for each shard and its answer; every trainer has a shard
all-to-all   gloo: counts, ids, values and gradients are a collective call each
two phases   the trainers of a host merge rows and gradients in shared memory, and the first of them exchanges them

Bytes are those that the busiest host's link carries one way, with headers and the start; processor time is of all
trainers. That no gradient is lost is checked by sums.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from itertools import product

from benchmarks.machine import machine
from benchmarks.nodes.cluster import INTERFACE, Cluster, why_not

WAYS = (("sockets", 1), ("all-to-all", 1), ("sockets", 2), ("all-to-all", 2))
IN_MEMORY = "/dev/shm"


def measured(hosts: int, members: int, rate: float, way: str, phases: int, batches: int) -> tuple[float, float, float]:
    """Seconds, processor seconds and the busiest link's bytes of a batch."""
    world = hosts * members
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder, Cluster(hosts, rate) as cluster:
        argv = [sys.executable, "-m", "benchmarks.nodes.exchanges", way, "--phases", phases, "--batches", batches]
        processes = []
        for rank in range(world):
            host = cluster.hosts[rank // members]
            scratch = os.path.join(folder, host.name)
            os.makedirs(scratch, exist_ok=True)
            environment = {
                "MASTER_ADDR": cluster.hosts[0].address, "MASTER_PORT": "29500", "RANK": str(rank),
                "WORLD_SIZE": str(world), "MEMBERS": str(members), "HOST": host.address, "TMPDIR": scratch,
                "GLOO_SOCKET_IFNAME": INTERFACE, "OMP_NUM_THREADS": "1",
            }  # fmt: skip
            processes.append(host.run([str(word) for word in argv], environment))
        for process in processes:
            if process.wait(300):
                raise RuntimeError(process.output())
        seconds, cpu, count = map(float, processes[0].output().splitlines()[-1].split())
        sent = max(max(host.bytes_sent(), host.bytes_received()) for host in cluster.hosts)
    return seconds, cpu, sent / count


def compare(hosts: int, members: int, rate: float, rounds: int, batches: int) -> None:
    """Prints a row for each way; they take turns."""
    ways = [each for each in WAYS if each[1] == 1 or members > 1]
    found: dict[tuple[str, int], list[tuple[float, float, float]]] = {way: [] for way in ways}
    for _ in range(rounds):
        for way in ways:
            found[way].append(measured(hosts, members, rate, *way, batches))
    for (way, phases), each in found.items():
        seconds, cpu, size = (statistics.median(values) for values in zip(*each, strict=True))
        figures = f"{1e3 * seconds:.1f} | {size / 1e6:.2f} | {size * 8 / (rate * 1e6) / seconds:.2f} | {1e3 * cpu:.1f}"
        print(f"| {hosts} x {members} | {rate:,.0f} | {way} | {phases} | {figures} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--members", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rates", type=float, nargs="+", default=[1000, 10_000], help="Mbit/s of each host's link")
    parser.add_argument("--batches", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if reason := why_not():
        sys.exit(reason)
    print(f"{machine()}\n")
    print("| hosts x trainers | Mbit/s | rows go by | phases | ms | MB each way | of the link | CPU ms |")
    print("|---|---|---|---|---|---|---|---|")
    for hosts, members, rate in product(options.hosts, options.members, options.rates):
        compare(hosts, members, rate, options.rounds, options.batches)


if __name__ == "__main__":
    main()
