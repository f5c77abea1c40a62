"""A server with an honest trainer, for others to try themselves on."""

import time

from marius_oac.nodes.transport.contract import Limits
from marius_oac.nodes.transport.zmq_gate import FOREIGN
from tests.nodes.transport.conformance import content
from tests.nodes.transport.strangers import Insider, counted
from tests.nodes.transport.test_zmq import Zmq
from tests.threads import PATIENCE

LIMITS = Limits(max_bytes=100_000, max_frames=8, queue=8)
EARLY = "message before the handshake"


class Guarded:
    """A server that one honest trainer (rank 0) talks to, while others try."""

    def __init__(self, encrypted=False, timeout=20.0):
        self.wires = Zmq(encrypted, timeout)
        self.server = self.wires.server(LIMITS)
        self.honest = self.wires.connect(self.server, 0, LIMITS)
        self.address, self.security = self.server.address, self.wires.security
        self.words = 0
        self._insiders = []

    def go_on(self):
        """The honest trainer is served, and nobody else was heard."""
        for _ in range(3):
            self.words += 1
            self.honest.send([b"%d" % self.words])
            request = self.server.receive()
            assert (request.peer, content(request.frames)) == (0, [b"%d" % self.words])
            self.server.send(0, request.frames)
            assert content(self.honest.receive()) == [b"%d" % self.words]

    def insider(self, rank=1, **options):
        self._insiders.append(Insider(self.address, self.security, rank, LIMITS, **options))
        return self._insiders[-1]

    def counted(self, reason, count=1):
        counted(self.server, reason, count)
        self.go_on()

    def all_counted(self, connections, messages=0):
        """Waits until so many of each were refused; a connection that a token was shown on may be counted twice."""

        def counts():
            refused = self.server.refused
            tokens = sum(refused[reason] for reason in ("replayed token", "wrong secret", "malformed token"))
            return refused[FOREIGN] + tokens, refused.total() - refused[FOREIGN] - tokens, tokens

        end = time.monotonic() + PATIENCE
        while counts()[0] < connections or counts()[1] < messages:
            assert time.monotonic() < end, self.server.refused
            self.go_on()
        at_the_door, inside, tokens = counts()
        assert inside == messages and at_the_door <= connections + tokens

    def close(self):
        for insider in self._insiders:
            insider.close()
        self.wires.close()


def all_said(turns):
    return b"".join(said for said, _ in turns)
