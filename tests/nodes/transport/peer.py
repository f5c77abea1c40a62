"""A trainer, or a server, in a process of its own:

python -m tests.nodes.transport.peer ADDRESS RANK wait|flood|busy|echo|serve ENCRYPTED TIMEOUT
"""

import ctypes
import json
import os
import sys

import numpy as np

from marius_oac.nodes.transport.contract import Security
from marius_oac.nodes.transport.zmq_client import ZmqClient
from marius_oac.nodes.transport.zmq_server import ZmqServer
from tests.nodes.transport.conformance import NAMES, SERVER


def serve(address, security, timeout):
    with ZmqServer(address, SERVER, NAMES, security, timeout=timeout) as server:
        print(server.address, flush=True)
        while request := server.receive():
            refused = json.dumps(server.refused).encode()
            server.send(request.peer, [refused] if request.frames == [b"refused?"] else request.frames)


def train(client, what):
    client.send([b"here"])
    if what == "flood":
        while True:
            client.send([np.zeros(1_000_000), b"x"])
    if what == "busy":
        ctypes.PyDLL(None).usleep(1_500_000)  # PyDLL keeps the interpreter's lock
        client.send([b"done"])
    while True:
        frames = client.receive()
        if what == "echo":
            client.send(frames)
        elif what == "wait":
            sys.stdin.read()


def main():
    address, rank, what, encrypted, timeout = sys.argv[1:]
    security = Security(
        secret=bytes.fromhex(os.environ["MARIUS_OAC_SECRET"]), run="run", encrypted=bool(int(encrypted))
    )
    if what == "serve":
        serve(address, security, float(timeout))
    else:
        with ZmqClient(address, SERVER, int(rank), security, timeout=float(timeout)) as client:
            train(client, what)


if __name__ == "__main__":
    main()
