"""Strangers, recorded handshakes and false servers: no crash, no effect, counted, and an honest trainer goes on."""

import socket
import threading
import time

import pytest
import zmq

from marius_oac.errors import InputError, NodeLost, NodeRefused
from marius_oac.nodes.transport import zmq_client
from marius_oac.nodes.transport.contract import Security
from marius_oac.nodes.transport.handshake import MAC_BYTES, NONCE_BYTES
from marius_oac.nodes.transport.wire import Kind, head
from marius_oac.nodes.transport.zmq_client import ZmqClient
from marius_oac.nodes.transport.zmq_gate import FOREIGN, SLOW
from marius_oac.nodes.transport.zmq_server import ZmqServer
from tests.nodes.transport.conformance import NAMES, SERVER, beside, outcome_of
from tests.nodes.transport.guarded import LIMITS, Guarded, all_said
from tests.nodes.transport.strangers import counted, place, replay, throw
from tests.nodes.transport.test_zmq import SECRET

NOISE = [
    b"",
    b"\0",
    b"GET / HTTP/1.1\r\nHost: shard\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
    b"\xff" * 1000,
    bytes(10_000),
    b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\x01NULL" + bytes(48),
    b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\x01PLAIN" + bytes(47) + b"\x04\xff\xff\xff\xff\xff\xff\xff\xff" + bytes(100),
    b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\x01PLAIN" + bytes(47) + b"\x04\x09\x05HELLO\x01",
]


def other(security, **changes):
    fields = {"secret": security.secret, "run": security.run, "encrypted": security.encrypted}
    return Security(**(fields | changes))


# --- strangers -------------------------------------------------------------------------------------------------------


@pytest.fixture
def once(monkeypatch):
    """A client that is broken off does not try again."""
    monkeypatch.setattr(zmq_client, "_TRIES", 1)
    monkeypatch.setattr(zmq_client, "_CROWDED", 0.0)


@pytest.mark.parametrize("changes", [{"secret": bytes(32)}, {"run": "another"}], ids=["secret", "run"])
def test_another_secret_or_run(guarded, once, changes):
    with pytest.raises(NodeRefused, match=f"node {SERVER}: .* another secret, or another run|secret or run"):
        ZmqClient(guarded.address, SERVER, 1, other(guarded.security, **changes), LIMITS)
    guarded.counted(FOREIGN if guarded.security.encrypted else "wrong secret")
    assert len(guarded.wires.lines) == 1 and guarded.wires.lines[0].startswith("refused a connection")


def test_the_secret_of_this_run_for_another_server(guarded, once):
    with pytest.raises(NodeRefused):
        ZmqClient(guarded.address, "shard-1", 1, guarded.security, LIMITS)
    guarded.counted(FOREIGN if guarded.security.encrypted else "wrong secret")


def test_encrypted_at_one_end_only(guarded, once):
    changed = other(guarded.security, encrypted=not guarded.security.encrypted)
    with pytest.raises(NodeRefused, match="encrypted at one end only"):
        ZmqClient(guarded.address, SERVER, 1, changed, LIMITS)
    guarded.counted(FOREIGN)


def test_who_is_broken_off_tries_again_a_few_times(guarded, monkeypatch):
    """As a server that strangers crowd does."""
    monkeypatch.setattr(zmq_client, "_CROWDED", 0.0)
    begin = time.monotonic()
    with pytest.raises(NodeRefused, match="it closed the connection at"):
        ZmqClient(guarded.address, SERVER, 1, other(guarded.security, encrypted=not guarded.security.encrypted), LIMITS)
    assert time.monotonic() - begin > 0.7
    guarded.counted(FOREIGN, 6)
    with pytest.raises(NodeLost, match="within 0.2 s"):  # and no longer than it has patience
        changed = other(guarded.security, encrypted=not guarded.security.encrypted)
        ZmqClient(guarded.address, SERVER, 1, changed, LIMITS, patience=0.2)


def test_a_secret_is_no_text_and_is_not_shown():
    with pytest.raises(InputError, match="must have 32 bytes, not 3"):
        Security(secret=b"abc", run="run")
    assert "secret" not in repr(Security(secret=SECRET, run="run"))


def test_noise_on_the_port(guarded):
    for data in NOISE:
        throw(guarded.address, data)
    guarded.counted(FOREIGN, len(NOISE))


def test_a_stranger_with_the_same_library(guarded):
    with zmq.Context() as context, context.socket(zmq.DEALER) as stranger:
        stranger.setsockopt(zmq.LINGER, 0)
        stranger.connect(f"tcp://{guarded.address}")
        for kind in Kind:
            stranger.send_multipart([head(kind), b"x"])
        counted(guarded.server, FOREIGN, 1)
    guarded.go_on()


def test_connections_that_say_nothing_are_ended(request):
    guarded = Guarded(timeout=0.6)
    request.addfinalizer(guarded.close)
    idle = [socket.create_connection(place(guarded.address), timeout=10) for _ in range(50)]
    guarded.go_on()
    for connection in idle:
        with connection:
            while connection.recv(1000):
                continue
    while guarded.server.refused[SLOW] + guarded.server.refused[FOREIGN] < 50:  # ZeroMQ's time is up as well
        guarded.go_on()
    assert guarded.server.refused.total() == 50


# --- recorded handshakes ---------------------------------------------------------------------------------------------


def test_replayed_handshakes_open_nothing(guarded, recorded):
    for _ in range(3):
        assert not replay(guarded.address, recorded)
    guarded.counted(FOREIGN if guarded.security.encrypted else "replayed token", 3)
    throw(guarded.address, all_said(recorded))
    guarded.all_counted(4)


def test_a_handshake_replayed_to_the_next_server_of_the_run(guarded, recorded):
    server = ZmqServer("127.0.0.1:0", SERVER, NAMES, guarded.security, LIMITS)
    replaying = beside(lambda: replay(server.address, recorded))
    if guarded.security.encrypted:
        counted(server, FOREIGN, 1)
    else:
        counted(server, "wrong proof", 1)  # this server's random bytes are others
        server.close()  # it says nothing more to the other end, which waits
    assert outcome_of(*replaying) is False
    server.close()


def test_truncated_handshakes(guarded, recorded):
    data = all_said(recorded)
    lengths = sorted({*range(0, 130, 7), *range(130, len(data), 41)})
    for length in lengths:
        throw(guarded.address, data[:length])
    guarded.all_counted(len(lengths))
    assert set(guarded.server.refused) <= {FOREIGN, "replayed token"}


# --- false servers ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ([head(Kind.CHALLENGE), bytes(NONCE_BYTES + MAC_BYTES)], "doesn't have the run's secret"),
        ([head(Kind.CHALLENGE), b""], "doesn't have the run's secret"),
        ([head(Kind.CHALLENGE)], "doesn't have the run's secret"),
        ([head(Kind.WELCOME)], "doesn't have the run's secret"),
        ([head(Kind.DATA, 1), b"x"], "doesn't have the run's secret"),
        ([head(Kind.FAILED), b"x"], "doesn't have the run's secret"),
        ([b"nonsense"], "malformed message"),
        ([head(Kind.REFUSED), b"\xff go away"], "refused at .* go away"),
    ],
)
def test_a_client_talks_to_no_false_server(answer, said):
    with zmq.Context() as context, context.socket(zmq.ROUTER) as false, context.socket(zmq.REP) as gate:
        gate.bind("inproc://zeromq.zap.01")
        false.setsockopt(zmq.PLAIN_SERVER, 1)
        false.setsockopt(zmq.LINGER, 0)
        port = false.bind_to_random_port("tcp://127.0.0.1")

        def lie():
            version, request, *_ = gate.recv_multipart()
            gate.send_multipart([version, request, b"200", b"OK", b"", b""])
            route, *_ = false.recv_multipart()
            false.send_multipart([route, *answer])

        thread = threading.Thread(target=lie)
        thread.start()
        with pytest.raises(NodeRefused, match=said):
            ZmqClient(f"127.0.0.1:{port}", SERVER, 0, Security(secret=SECRET, run="run"), timeout=10)
        thread.join()
