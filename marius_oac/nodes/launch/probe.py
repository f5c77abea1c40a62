"""Describes a node to `nodes check`, and measures its connection to another one.

`python -m marius_oac.nodes.launch.probe` runs it.

It reads requests from standard input and writes answers to standard output, each a line of JSON, and ends when the
input ends. It listens on the node's own address and port alone, and serves only nodes that know the check's secret:

- `{"secret", "address", "ports", "path"}`: comes first. Listens at the first free one of the ports. Answers with the
  facts: versions, clock, memory, disk, ports that are taken.
- `{"do": "clock"}`: answers with the time.
- `{"do": "receive"}`: takes part in one measurement of another node. Answers with the bytes that came.
- `{"do": "send", "address", "port", "num_bytes"}`: measures. Answers with bytes, seconds, and the round trip's seconds.
"""

from __future__ import annotations

import hmac
import json
import os
import socket
import sys
import time
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import psutil

from marius_oac import __version__
from marius_oac.nodes.launch.cluster import disk_sizes, this_machine
from marius_oac.runtime.console import answer
from marius_oac.types import present

PATIENCE = 20.0  # seconds that a measurement may take
_BLOCK = 1 << 20
_TRIPS = 20


def main() -> None:
    """Answers requests until standard input ends."""
    asked = json.loads(sys.stdin.readline() or "{}")
    if not asked:
        return
    secret = asked["secret"].encode()
    server, taken = None, {}
    for port in asked["ports"]:
        try:
            family = socket.AF_INET6 if ":" in asked["address"] else socket.AF_INET
            opened = socket.create_server((asked["address"], port), family=family)
        except OSError as error:
            number = error.errno or 0
            taken[port] = (os.strerror(number) if number > 0 else str(error)).lower()
            continue
        if server is None:
            server = opened
            server.settimeout(PATIENCE)
        else:
            opened.close()
    _answer(_facts(asked) | {"port": server.getsockname()[1] if server else None, "taken": taken})
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            if asked["do"] == "clock":
                _answer({"clock": time.time()})
            elif asked["do"] == "receive":
                _answer({"num_bytes": _receive(present(server), secret)})
            else:
                _answer(_send(asked, secret))
        except (OSError, ValueError) as error:
            _answer({"problem": str(error) or type(error).__name__})
    if server is not None:
        server.close()


def _facts(asked: Mapping[str, Any]) -> dict[str, Any]:
    machine = this_machine()
    try:
        torch = version("torch").partition("+")[0]
    except PackageNotFoundError:
        torch = None
    return {
        "versions": {"marius_oac": __version__, "torch": torch},
        "clock": time.time(),
        "host": machine.host,
        "machine": f"{machine.host} {machine.boot}",
        "addresses": {name: list(own) for name, own in machine.addresses.items()},
        "cores": machine.cores,
        "memory": machine.memory,
        "free_memory": psutil.virtual_memory().available,
        "free_disk": sum(disk_sizes(asked["path"] or ["."], "free").values()),
    }


def _receive(server: socket.socket, secret: bytes) -> int:
    """Serves one measurement and returns its bytes; drops connections that don't know the secret."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        connection, _ = server.accept()
        with connection:
            connection.settimeout(PATIENCE)
            if not hmac.compare_digest(_exactly(connection, len(secret)), secret):
                continue
            for _ in range(_TRIPS):
                connection.sendall(_exactly(connection, 1))
            total = int.from_bytes(_exactly(connection, 8), "little")
            left, block = total, bytearray(_BLOCK)
            while left:
                count = connection.recv_into(block, min(left, _BLOCK))
                if not count:
                    raise ConnectionError("the other node has closed the connection")
                left -= count
            connection.sendall(b"1")
            return total
    raise TimeoutError("no node has come")


def _send(asked: Mapping[str, Any], secret: bytes) -> dict[str, Any]:
    with socket.create_connection((asked["address"], asked["port"]), PATIENCE) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(secret)
        trips = []
        for _ in range(_TRIPS):
            begin = time.perf_counter()
            connection.sendall(b"0")
            _exactly(connection, 1)
            trips.append(time.perf_counter() - begin)
        total, block = asked["num_bytes"], bytes(_BLOCK)
        begin = time.perf_counter()
        connection.sendall(total.to_bytes(8, "little"))
        for first in range(0, total, _BLOCK):
            connection.sendall(block[: total - first])
        _exactly(connection, 1)
        return {"num_bytes": total, "seconds": time.perf_counter() - begin, "trip": sorted(trips)[_TRIPS // 2]}


def _exactly(connection: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        more = connection.recv(count - len(found))
        if not more:
            raise ConnectionError("the other node has closed the connection")
        found += more
    return found


def _answer(value: Mapping[str, Any]) -> None:
    answer(json.dumps(value))


if __name__ == "__main__":
    main()
