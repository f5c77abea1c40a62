"""What the emulated cluster does, before anything is measured in it: rates, round trips, bytes of an all-reduce.

    python -m benchmarks.nodes.cluster_check  # as root; about two minutes

Links: bulk transfers of `--seconds` between two hosts over bare TCP, one way and both ways at once, and the round trip
of 64 bytes; the limit of a payload is the link's rate less headers, 1448 / 1514 of it. All-reduce: gloo of
torch.distributed over tcp://, `--repeats` times a tensor of `--size` bytes; bytes are what leaves the busiest host in
all that time, start included, of 2 (N - 1) / N of the tensors, which is what a ring has to send.
"""

from __future__ import annotations

import argparse
import sys

from benchmarks.machine import machine
from benchmarks.nodes.cluster import INTERFACE, Cluster, Host, Process, why_not

PORT = 5000
PAYLOAD = 1448 / 1514
_SERVER = f"""
import socket, sys, time
server = socket.create_server(("0.0.0.0", {PORT}))
print("listening", flush=True)
peer, _ = server.accept()
peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
if sys.argv[1] == "echo":
    while data := peer.recv(64):
        peer.sendall(data)
else:
    room, size, begin = bytearray(1 << 20), 0, 0.0
    while got := peer.recv_into(room):
        begin, size = begin or time.perf_counter(), size + got
    print(size / (time.perf_counter() - begin))
"""
_CLIENT = f"""
import socket, sys, time
peer = socket.create_connection((sys.argv[2], {PORT}))
peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
begin, times = time.perf_counter(), []
if sys.argv[1] == "echo":
    for _ in range(4000):
        begin = time.perf_counter()
        peer.sendall(bytes(64))
        peer.recv(64)
        times.append(time.perf_counter() - begin)
    print(sorted(times)[2000], sorted(times)[3960])
else:
    data = bytes(1 << 18)
    while time.perf_counter() < begin + float(sys.argv[3]):
        peer.sendall(data)
"""
ALL_REDUCE = """
import os, sys, time, torch, torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"tcp://{os.environ['MASTER_ADDR']}:29500",
                        rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]))
tensor, times = torch.ones(int(sys.argv[1]) // 4), []
for _ in range(int(sys.argv[2])):
    tensor.fill_(dist.get_rank() + 1)
    dist.barrier()
    begin = time.perf_counter()
    dist.all_reduce(tensor)
    times.append(time.perf_counter() - begin)
assert (tensor == dist.get_world_size() * (dist.get_world_size() + 1) // 2).all()
dist.barrier()
dist.destroy_process_group()
print("seconds", sorted(times)[len(times) // 2])
"""


def _python(host: Host, code: str, *arguments: object) -> Process:
    return host.run([sys.executable, "-S", "-c", code, *map(str, arguments)])


def _ended(process: Process, timeout: float) -> list[str]:
    """The words of its last line."""
    if process.wait(timeout):
        raise RuntimeError(process.output())
    return process.output().splitlines()[-1].split() if process.output() else []


def links(rate_mbit: float, seconds: float) -> None:
    with Cluster(2, rate_mbit) as cluster:
        one, two = cluster.hosts

        def bulk(ways: list[tuple[Host, Host]]) -> list[float]:
            servers = [_python(to, _SERVER, "bulk") for _, to in ways]
            for server in servers:
                server.wait_for("listening", 10)
            clients = [_python(sender, _CLIENT, "bulk", to.address, seconds) for sender, to in ways]
            for client in clients:
                _ended(client, seconds + 20)
            return [float(_ended(server, 20)[0]) * 8 / 1e6 / rate_mbit / PAYLOAD for server in servers]

        alone, both = bulk([(one, two)]), bulk([(one, two), (two, one)])
        server = _python(two, _SERVER, "echo")
        server.wait_for("listening", 10)
        median, slow = (1e6 * float(word) for word in _ended(_python(one, _CLIENT, "echo", two.address), 60))
    print(f"| {rate_mbit:,} | {alone[0]:.3f} | {both[0]:.3f}, {both[1]:.3f} | {median:.0f} | {slow:.0f} |", flush=True)


def all_reduce(hosts: int, rate_mbit: float, size: int, repeats: int) -> tuple[float, float]:
    """Bytes of the busiest host of what a ring sends, and the median seconds of a call of what they would take."""
    with Cluster(hosts, rate_mbit) as cluster:
        environment = {
            "MASTER_ADDR": cluster.hosts[0].address, "WORLD_SIZE": str(hosts), "GLOO_SOCKET_IFNAME": INTERFACE,
            "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        argv = [sys.executable, "-c", ALL_REDUCE, str(size), str(repeats)]
        members = [host.run(argv, environment | {"RANK": str(i)}) for i, host in enumerate(cluster.hosts)]
        seconds = max(float(_ended(member, 300)[-1]) for member in members)
        sent = max(host.bytes_sent() for host in cluster.hosts)
    least = 2 * (hosts - 1) / hosts * size
    return sent / (least * repeats), seconds / (least / PAYLOAD * 8 / rate_mbit / 1e6)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--size", type=int, default=1 << 24)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    if reason := why_not():
        sys.exit(reason)
    print(f"{machine()}\n")
    print("| Mbit/s | bulk, of the limit | both ways at once | round trip, us | 99 % |\n|---|---|---|---|---|")
    for rate_mbit in (10, 100, 500, 1000, 2500, 10_000):
        links(rate_mbit, arguments.seconds)
    print("\n| hosts | Mbit/s | bytes of 2 (N - 1) / N | seconds of the limit |\n|---|---|---|---|")
    for hosts, rate_mbit in ((2, 100), (3, 100), (3, 1000), (4, 1000), (8, 100)):
        sent, seconds = all_reduce(hosts, rate_mbit, arguments.size, arguments.repeats)
        print(f"| {hosts} | {rate_mbit:,} | {sent:.3f} | {seconds:.2f} |", flush=True)


if __name__ == "__main__":
    main()
