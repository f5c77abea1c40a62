"""The memory of portions is not lent again while a connection still sends them, or the other end has not taken them."""

import select
import socket
import threading
from contextlib import ExitStack, closing

import numpy as np
import pytest

from marius_oac.data.logs.lent import LentMemory
from marius_oac.nodes.transport.contract import Limits
from marius_oac.nodes.transport.in_process import Network
from marius_oac.nodes.transport.messages import Examples, parse
from marius_oac.nodes.transport.zmq_client import ZmqClient
from tests.nodes.transport.conformance import SERVER
from tests.nodes.transport.strangers import place
from tests.nodes.transport.test_zmq import Zmq
from tests.threads import PATIENCE

SIZE = 48 << 20  # more than the system's buffers of a connection take


class Valve:
    """A proxy in front of a server, for one connection. While `flows` is not set, nothing more passes."""

    def __init__(self, address):
        self._server, self._listener = place(address), socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.flows = threading.Event()
        self.flows.set()
        self._thread = threading.Thread(target=self._pass)
        self._thread.start()

    def _pass(self):
        client, _ = self._listener.accept()
        with client, socket.create_connection(self._server) as server:
            others = {client: server, server: client}
            while others:
                for source in select.select([*others], [], [])[0]:
                    data = source.recv(1 << 16)
                    assert self.flows.wait(PATIENCE)
                    if not data:
                        return
                    others[source].sendall(data)

    def close(self):
        self.flows.set()
        self._listener.close()
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()


def portion(memory, value, size=SIZE):
    """A message with a part of memory that is borrowed, and where that is."""
    content = memory.borrow(size)
    content[:] = value
    return Examples(1, 2, np.zeros(16, np.uint8), content[64:]), content.ctypes.data


@pytest.mark.parametrize("encrypted", [False, True])
def test_what_is_still_being_sent_stays_as_it_is(encrypted):
    with ExitStack() as stack:
        wires = stack.enter_context(closing(Zmq(encrypted, PATIENCE)))
        server = wires.server(Limits())
        valve = stack.enter_context(closing(Valve(server.address)))
        client = stack.enter_context(closing(ZmqClient(valve.address, SERVER, 1, wires.security, Limits())))
        memory = LentMemory(1)
        valve.flows.clear()
        message, first = portion(memory, 1)
        server.send(1, message.frames())
        del message
        for value in (2, 3):
            other, at = portion(memory, value)
            assert at != first or encrypted  # a message that has been encrypted is a copy
            del other
        valve.flows.set()
        assert (parse(client.receive()).content == 1).all()


def test_what_a_trainer_of_this_process_has_not_taken_or_views_stays_as_it_is():
    network, memory = Network(), LentMemory(1)
    with network.server("node0", {0: "node0"}) as server, network.client("node0", 0) as client:
        message, first = portion(memory, 1, 1000)
        server.send(0, message.frames())
        del message
        assert portion(memory, 2, 1000)[1] != first
        content = parse(client.receive()).content
        assert portion(memory, 3, 1000)[1] != first
        assert (content == 1).all()
        del content
        assert portion(memory, 4, 1000)[1] == first
