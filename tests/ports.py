"""Ports that a test may give to a server which starts later.

They lie below the range from which the system gives ports to outgoing connections. A port that the system gave out
(bind to port 0) and took back may belong to another connection by the time that the server listens. Workers of one test
run take from parts of their own.
"""

from __future__ import annotations

import itertools
import os
import socket
from pathlib import Path

FIRST, EACH, WORKERS = 10_000, 700, 16
FIRST_OF_THE_SYSTEM = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
assert FIRST + EACH * WORKERS <= FIRST_OF_THE_SYSTEM, "no room below the system's own ports"
_part = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % WORKERS
# Where it starts is the process's own, so that two test runs at once seldom ask for the same.
_next = itertools.count(os.getpid() * 37)


def free_ports(count: int, address: str = "127.0.0.1") -> list[int]:
    """`count` ports at which nobody listens now, each given out once in this process."""
    found = []
    for number in itertools.islice(_next, EACH):
        port = FIRST + EACH * _part + number % EACH
        if listens(address, port):
            found.append(port)
        if len(found) == count:
            return found
    raise RuntimeError(f"fewer than {count} of {EACH} ports are free")


def listens(address: str, port: int) -> bool:
    """Whether one could listen there."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        socket.create_server((address, port), family=family).close()
    except OSError:
        return False
    return True
