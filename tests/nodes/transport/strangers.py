"""Who should not get in: recorded and broken connections, and insiders who have the secret but not the manners."""

import select
import socket
import threading
import time

import zmq

from marius_oac.nodes.transport.contract import Limits
from marius_oac.nodes.transport.handshake import ClientSide, Keys
from marius_oac.nodes.transport.wire import Kind, head, parse
from tests.nodes.transport.conformance import SERVER
from tests.threads import PATIENCE


def place(address):
    host, port = address.rsplit(":", 1)
    return host, int(port)


def throw(address, data):
    """Sends raw bytes on a connection of their own, and waits until the server has had enough of it."""
    with socket.create_connection(place(address), timeout=PATIENCE) as connection:
        try:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(1 << 16):
                continue
        except OSError:
            return


def replay(address, turns):
    """Says again what a client said (a `Recorder`'s turns), each time when the server has said as much as it did then.

    Returns whether the server kept the connection to the end.
    """
    with socket.create_connection(place(address), timeout=PATIENCE) as connection:
        for said, answered in turns:
            connection.sendall(said)
            left = answered
            while left:
                try:
                    data = connection.recv(left)
                except ConnectionResetError:
                    data = b""
                if not data:
                    return False
                left -= len(data)
    return True


class Recorder:
    """A proxy in front of a server that keeps what the client of its only connection says, turn by turn.

    A turn is what the client said, and how many bytes the server said then.
    """

    def __init__(self, address):
        self._server = place(address)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.turns = []
        self._thread = threading.Thread(target=self._accept)
        self._thread.start()

    def _accept(self):
        client, _ = self._listener.accept()
        server = socket.create_connection(self._server)
        with client, server:
            over = False
            while not over:
                for source in select.select([client, server], [], [])[0]:
                    data = source.recv(1 << 16)
                    over = over or not data
                    if source is server:
                        if not self.turns:  # ZeroMQ's server may greet first
                            self.turns.append([b"", 0])
                        self.turns[-1][1] += len(data)
                        client.sendall(data)
                    else:
                        if not self.turns or self.turns[-1][1]:
                            self.turns.append([b"", 0])
                        self.turns[-1][0] += data
                        server.sendall(data)

    def close(self):
        self._listener.close()
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()


class Insider:
    """Has the secret (`limits` must be the server's) and says what it likes, over a plain ZeroMQ socket."""

    def __init__(self, address, security, rank, limits=Limits(), routing_id=None):  # noqa: B008
        keys = Keys(security, SERVER)
        self.side = ClientSide(keys, rank, limits)
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.DEALER)
        for option, value in ((zmq.LINGER, 1000 * PATIENCE), (zmq.SNDHWM, 0), (zmq.RCVTIMEO, 1000 * PATIENCE)):
            self.socket.setsockopt(option, value)
        if routing_id is not None:
            self.socket.setsockopt(zmq.ROUTING_ID, routing_id)
        self.socket.setsockopt(zmq.PLAIN_USERNAME, b"%d" % rank)
        self.socket.setsockopt(zmq.PLAIN_PASSWORD, keys.token(rank).encode())
        self.socket.connect(f"tcp://{address}")

    def say(self, *frames):
        self.socket.send_multipart(frames)

    def hear(self):
        """The kind of the next message, and its body."""
        first, *rest = self.socket.recv_multipart()
        return parse(first).kind, b"".join(rest)

    def hello(self):
        """Returns the proof that would be right."""
        self.say(head(Kind.HELLO), self.side.hello)
        kind, challenge = self.hear()
        assert kind is Kind.CHALLENGE
        return self.side.answer(challenge)

    def enter(self):
        self.say(head(Kind.PROOF), self.hello())
        assert self.hear()[0] is Kind.WELCOME
        return self

    def close(self):
        self.socket.close()
        self.context.term()


def counted(server, reason, count):
    """Waits until that many were refused for that reason."""
    end = time.monotonic() + PATIENCE
    while server.refused[reason] < count:
        assert time.monotonic() < end, server.refused
        threading.Event().wait(0.01)
    assert server.refused[reason] == count
