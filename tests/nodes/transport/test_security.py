"""Strangers and broken peers: no crash, no effect, counted, and an honest trainer beside them goes on."""

import os
import random
import socket
import threading
import time

import pytest
import zmq
from hypothesis import given, settings
from hypothesis import strategies as st

from marius_oac.errors import InputError, NodeLost
from marius_oac.nodes.transport.contract import Limits, Security
from marius_oac.nodes.transport.handshake import HELLO_BYTES, MAC_BYTES, NONCE_BYTES, Hello, Keys, Tokens
from marius_oac.nodes.transport.wire import HEAD, Kind, Malformed, head, parse
from marius_oac.nodes.transport.zmq_client import ZmqClient
from marius_oac.nodes.transport.zmq_server import MOST_PENDING, ZmqServer
from tests.nodes.transport.conformance import NAMES, SERVER, beside, content, outcome_of
from tests.nodes.transport.strangers import Insider, Recorder, counted, place, replay, throw
from tests.nodes.transport.test_zmq import SECRET, Zmq
from tests.threads import PATIENCE

LIMITS = Limits(max_bytes=100_000, max_frames=8, queue=8)
FOREIGN = "no handshake of ours, or another key"
EARLY = "message before the handshake"
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


@pytest.fixture(params=[False, True], ids=["plain", "encrypted"])
def guarded(request):
    guarded = Guarded(request.param)
    yield guarded
    guarded.close()


@pytest.fixture
def plain():
    guarded = Guarded()
    yield guarded
    guarded.close()


def other(security, **changes):
    fields = {"secret": security.secret, "run": security.run, "encrypted": security.encrypted}
    return Security(**(fields | changes))


# --- strangers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("changes", [{"secret": bytes(32)}, {"run": "another"}], ids=["secret", "run"])
def test_another_secret_or_run(guarded, changes):
    with pytest.raises(NodeLost, match=f"node {SERVER}: .* another secret, or another run|secret or run"):
        ZmqClient(guarded.address, SERVER, 1, other(guarded.security, **changes), LIMITS)
    guarded.counted(FOREIGN if guarded.security.encrypted else "wrong secret")
    assert len(guarded.wires.lines) == 1 and guarded.wires.lines[0].startswith("refused a connection")


def test_the_secret_of_this_run_for_another_server(guarded):
    with pytest.raises(NodeLost):
        ZmqClient(guarded.address, "shard-1", 1, guarded.security, LIMITS)
    guarded.counted(FOREIGN if guarded.security.encrypted else "wrong secret")


def test_encrypted_at_one_end_only(guarded):
    changed = other(guarded.security, encrypted=not guarded.security.encrypted)
    with pytest.raises(NodeLost, match="encrypted at one end only"):
        ZmqClient(guarded.address, SERVER, 1, changed, LIMITS)
    guarded.counted(FOREIGN)


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
    guarded = Guarded(timeout=1.0)
    request.addfinalizer(guarded.close)
    idle = [socket.create_connection(place(guarded.address), timeout=10) for _ in range(50)]
    guarded.go_on()
    for connection in idle:
        with connection:
            while connection.recv(1000):
                continue
    guarded.counted(FOREIGN, 50)


# --- recorded handshakes ---------------------------------------------------------------------------------------------


@pytest.fixture
def recorded(guarded):
    """What a client of rank 1 said from its connection to its farewell."""
    recorder = Recorder(guarded.address)
    client = ZmqClient(recorder.address, SERVER, 1, guarded.security, LIMITS)
    client.send([b"delete everything"])
    assert guarded.server.receive().peer == 1
    client.close()
    recorder.close()
    assert guarded.security.encrypted or any(b"delete everything" in said for said, _ in recorder.turns)
    return recorder.turns


def all_said(turns):
    return b"".join(said for said, _ in turns)


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


# --- those who have the secret ---------------------------------------------------------------------------------------


def test_nothing_but_the_handshake_comes_first(plain):
    insider = plain.insider()
    kinds = [kind for kind in Kind if kind is not Kind.HELLO]
    for kind in kinds:
        insider.say(head(kind, 1), b"x" * MAC_BYTES)
    plain.counted(EARLY, len(kinds))


def test_broken_handshakes(plain):
    for body in ([], [b""], [b"x"], [bytes(HELLO_BYTES), b""], [bytes(HELLO_BYTES + 1)]):
        plain.insider().say(head(Kind.HELLO), *body)
    plain.counted("malformed handshake", 5)
    for change in (lambda proof: proof[:-1], lambda proof: b"", lambda proof: bytes(32), lambda proof: proof + b"x"):
        insider = plain.insider()
        insider.say(head(Kind.PROOF), change(insider.hello()))
        insider.say(head(Kind.DATA, 1), b"x")
    plain.counted("wrong proof", 4)
    counted(plain.server, EARLY, 4)
    plain.insider(routing_id=b"mine").say(head(Kind.HELLO), bytes(HELLO_BYTES))
    plain.counted("malformed handshake", 6)


def test_a_proof_belongs_to_its_connection(plain):
    first, second = plain.insider(1), plain.insider(2)
    proof = first.hello()
    second.hello()
    second.say(head(Kind.PROOF), proof)
    plain.counted("wrong proof")
    first.say(head(Kind.PROOF), proof)
    assert first.hear()[0] is Kind.WELCOME


def test_two_at_once_for_one_rank(plain):
    first, second = plain.insider(1), plain.insider(1)
    proofs = [first.hello(), second.hello()]
    first.say(head(Kind.PROOF), proofs[0])
    assert first.hear()[0] is Kind.WELCOME
    second.say(head(Kind.PROOF), proofs[1])
    assert second.hear() == (Kind.REFUSED, b"a rank that is connected already")
    plain.counted("a rank that is connected already")


def test_handshakes_in_progress_are_bounded(plain):
    insiders = [plain.insider() for _ in range(MOST_PENDING)]
    for insider in insiders:
        insider.say(head(Kind.HELLO), insider.side.hello)
    assert {insider.hear()[0] for insider in insiders} == {Kind.CHALLENGE}
    late = plain.insider()
    late.say(head(Kind.HELLO), late.side.hello)
    assert late.hear() == (Kind.REFUSED, b"too many handshakes at once")
    plain.counted("too many handshakes at once")


def test_handshakes_in_progress_expire(request):
    guarded = Guarded(timeout=1.0)
    request.addfinalizer(guarded.close)
    guarded.insider().hello()
    guarded.counted("handshake not finished")


GOOD = head(Kind.DATA, 1)
NONSENSE = {
    "malformed message": [
        (first, b"body")
        for first in (b"", b"x", GOOD[:-1], GOOD + b"x", b"XXXX" + GOOD[4:], GOOD[:5] + b"\1" + GOOD[6:], bytes(24))
    ],
    "too many frames": [(GOOD, *[b""] * (LIMITS.max_frames + 1))],
    "oversized message": [(GOOD, b"x" * LIMITS.max_bytes, b"y")],
    "out of order": [(head(Kind.DATA, number), b"x") for number in (0, 2, 1 << 63)],
    "impossible count": [(head(kind, 1, 5), b"x") for kind in (Kind.TAKEN, Kind.DATA)],
    "unexpected message": [
        (head(kind), b"x") for kind in (Kind.HELLO, Kind.CHALLENGE, Kind.PROOF, Kind.WELCOME, Kind.REFUSED, Kind.FAILED)
    ],
}


def is_lost_for(guarded, insider, reason):
    """The insider's connection is over, and nothing else: whoever has the secret and says that has a defect."""
    with pytest.raises(NodeLost, match=f"^node green: it sent a message that can't be: {reason}$"):
        guarded.server.receive()
    assert guarded.server.refused[reason] == guarded.server.refused.total() == 1
    insider.say(GOOD, b"I am still here")
    guarded.server.send(0, [b"on we go"])
    assert content(guarded.honest.receive()) == [b"on we go"]
    with pytest.raises(NodeLost, match="node green"):
        guarded.server.receive()
    guarded.server.fail("because of green")
    assert insider.hear() == (Kind.FAILED, b"because of green")
    with pytest.raises(NodeLost, match=f"^node {SERVER}: it can't go on: because of green$"):
        guarded.honest.receive()


@pytest.mark.parametrize("reason, message", [(reason, each) for reason, every in NONSENSE.items() for each in every])
def test_an_authenticated_peer_that_says_what_none_says_is_lost(plain, reason, message):
    insider = plain.insider().enter()
    insider.say(*message)
    is_lost_for(plain, insider, reason)


def test_an_authenticated_peer_that_sends_more_than_there_is_room_for_is_lost(plain):
    insider = plain.insider().enter()
    for number in range(1, LIMITS.queue + 4):
        insider.say(head(Kind.DATA, number), b"x")
    counted(plain.server, "more than the queue", 1)
    assert [plain.server.receive().peer for _ in range(LIMITS.queue)] == [1] * LIMITS.queue
    is_lost_for(plain, insider, "more than the queue")


def test_a_frame_beyond_every_limit_ends_its_connection(plain):
    insider = plain.insider().enter()
    insider.say(head(Kind.DATA, 1), bytes(LIMITS.max_bytes + 10_000))
    with pytest.raises(NodeLost, match="node green"):
        plain.server.receive()
    plain.server.send(0, [b"on we go"])
    assert content(plain.honest.receive()) == [b"on we go"]


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
        with pytest.raises(NodeLost, match=said):
            ZmqClient(f"127.0.0.1:{port}", SERVER, 0, Security(secret=SECRET, run="run"), timeout=10)
        thread.join()


# --- pieces ----------------------------------------------------------------------------------------------------------


@given(st.binary(max_size=2 * HEAD.size))
@settings(max_examples=300, deadline=None)
def test_heads_are_read_or_refused(data):
    try:
        kind, number, taken = parse(data)
    except Malformed:
        return
    assert head(kind, number, taken) == data


@given(st.sampled_from(Kind), st.integers(0, (1 << 64) - 1), st.integers(0, (1 << 64) - 1), st.data())
@settings(max_examples=100, deadline=None)
def test_heads_travel(kind, number, taken, data):
    written = head(kind, number, taken)
    assert parse(written) == (kind, number, taken)
    at = data.draw(st.sampled_from([0, 1, 2, 3, 5, 6, 7]))
    with pytest.raises(Malformed):
        parse(written[:at] + bytes([written[at] ^ 1]) + written[at + 1 :])


@given(st.binary(max_size=200))
@settings(max_examples=200, deadline=None)
def test_tokens_that_nobody_made(data):
    assert Tokens(Keys(Security(secret=SECRET, run="run"), SERVER)).why_not(b"0", data) is not None


def test_tokens_are_for_one_rank_server_and_use():
    keys = Keys(Security(secret=SECRET, run="run"), SERVER)
    token = keys.token(3).encode()
    tokens = Tokens(keys)
    assert tokens.why_not(b"2", token) == "wrong secret"
    assert Tokens(Keys(keys.security, "shard-1")).why_not(b"3", token) == "wrong secret"
    assert tokens.why_not(b"3", token) is None
    assert tokens.why_not(b"3", token) == "replayed token"
    assert tokens.why_not(b"3", token.upper()) == "replayed token"
    assert Hello.parse(Hello.new(3, LIMITS).body).limits == LIMITS


# --- fuzz ------------------------------------------------------------------------------------------------------------


def mutated(random_source, data):
    data = bytearray(data)
    for _ in range(random_source.randint(1, 8)):
        at = random_source.randrange(len(data))
        action = random_source.randrange(4)
        if action == 0:
            data[at] ^= 1 << random_source.randrange(8)
        elif action == 1:
            data[at:at] = random_source.randbytes(random_source.randint(1, 20))
        elif action == 2 and len(data) > 20:
            del data[at : at + random_source.randint(1, 20)]
        else:
            data = data[: max(1, at)]
    return bytes(data)


def any_message(random_source):
    """Frames that begin, sometimes, as an honest message does; what is surely refused after a handshake."""
    first = head(
        random_source.choice(list(Kind)), random_source.choice([0, 3, 1 << 40]), random_source.choice([9, 1 << 50])
    )
    if random_source.random() < 0.5:
        first = mutated(random_source, first)
    return [
        first,
        *(random_source.randbytes(random_source.choice([0, 1, 32, 300])) for _ in range(random_source.randrange(6))),
    ]


def fits(first):
    """Whether an insider may say that: mutation makes now and then what an honest peer says, such as "0 taken"."""
    try:
        what = parse(first)
    except Malformed:
        return False
    return what.kind in (Kind.PROBE, Kind.BYE, Kind.HELLO) or (what.kind in (Kind.DATA, Kind.TAKEN) and not what.taken)


def fuzz(guarded, recorded, messages, seed):
    """One message in ten is a connection's raw bytes; the others come from insiders who have not proved their rank."""
    random_source = random.Random(seed)
    early = guarded.insider(1), guarded.insider(2)
    sent = thrown = 0
    for number in range(messages):
        if number % 10 == 0:
            data = (
                mutated(random_source, all_said(recorded))
                if number % 20
                else random_source.randbytes(random_source.randint(0, 500))
            )
            throw(guarded.address, data)
            thrown += 1
        else:
            message = any_message(random_source)
            while fits(message[0]):
                message = any_message(random_source)
            early[number % 2].say(*message)
            sent += 1
        if number % 100 == 0:
            guarded.go_on()
    for insider in early:
        insider.close()
    guarded.go_on()
    return sent, thrown


def run_fuzz(guarded, recorded, messages):
    seed = int.from_bytes(os.urandom(4), "little")
    print(f"seed {seed}")
    sent, thrown = fuzz(guarded, recorded, messages, seed)
    guarded.all_counted(thrown, sent)
    assert len(guarded.wires.lines) <= 20 * len(guarded.server.refused)


@pytest.mark.parametrize("guarded", [False], ids=["plain"], indirect=True)
def test_some_thousand_fuzzed_messages(guarded, recorded):
    run_fuzz(guarded, recorded, 3000)


@pytest.mark.parametrize("connections", [10, pytest.param(500, marks=pytest.mark.slow)])
def test_fuzzed_messages_of_authenticated_peers_end_their_connections(connections):
    seed = int.from_bytes(os.urandom(4), "little")
    print(f"seed {seed}")
    random_source = random.Random(seed)
    for _ in range(connections):
        guarded = Guarded()
        insider, message = guarded.insider().enter(), any_message(random_source)
        while fits(message[0]):
            message = any_message(random_source)
        insider.say(*message)
        with pytest.raises(NodeLost, match="^node green: it sent a message that can't be: "):
            guarded.server.receive()
        assert guarded.server.refused.total() == 1
        guarded.close()


@pytest.mark.slow
@pytest.mark.parametrize("guarded", [False], ids=["plain"], indirect=True)
def test_100_000_fuzzed_messages(guarded, recorded):
    run_fuzz(guarded, recorded, 100_000)
