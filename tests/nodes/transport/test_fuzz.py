"""Random and broken heads, tokens and messages: refused and counted, and an honest trainer beside them goes on."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marius_oac.errors import NodeLost
from marius_oac.nodes.transport import zmq_server
from marius_oac.nodes.transport.contract import Security
from marius_oac.nodes.transport.handshake import Hello, Keys, ServerSide, Tokens
from marius_oac.nodes.transport.wire import HEAD, Kind, Malformed, head, parse
from tests.nodes.transport.conformance import SERVER
from tests.nodes.transport.guarded import LIMITS, Guarded, all_said
from tests.nodes.transport.strangers import throw
from tests.nodes.transport.test_zmq import SECRET

LONG = 3600.0  # seconds: longer than any of these tests


@pytest.fixture
def guarded(monkeypatch):
    """Its insiders never prove their rank. If they were cut for it, what they say after that would not be counted."""
    monkeypatch.setattr(zmq_server, "PROVING", LONG)
    guarded = Guarded(timeout=LONG)
    yield guarded
    guarded.close()


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


def test_each_end_says_32_random_bytes_and_a_proof_of_32():
    keys, hello = Keys(Security(secret=SECRET, run="run"), SERVER), Hello.new(3, LIMITS)
    assert len(bytes.fromhex(keys.token(3))) == len(ServerSide(keys, hello).challenge()) == 64
    # A number used once that is shorter would be padded with zeros.
    assert {Hello.new(3, LIMITS).body[-1] for _ in range(64)} != {0}


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


@pytest.fixture
def seed(request):
    """Another one with each `make fuzz`, else always the same."""
    return int(request.config.getoption("--hypothesis-seed") or 0)


def run_fuzz(guarded, recorded, messages, seed):
    sent, thrown = fuzz(guarded, recorded, messages, seed)
    guarded.all_counted(thrown, sent)
    assert len(guarded.wires.lines) <= 20 * len(guarded.server.refused)


@pytest.mark.hypothesis
def test_some_thousand_fuzzed_messages(guarded, recorded, seed):
    run_fuzz(guarded, recorded, 3000, seed)


@pytest.mark.hypothesis
@pytest.mark.parametrize("connections", [10, pytest.param(500, marks=pytest.mark.slow)])
def test_fuzzed_messages_of_authenticated_peers_end_their_connections(connections, seed):
    random_source = random.Random(seed)
    for _ in range(connections):
        guarded = Guarded()
        insider, message = guarded.insider().enter(), any_message(random_source)
        while fits(message[0]):
            message = any_message(random_source)
        insider.say(*message)
        with pytest.raises(NodeLost, match="^node green: it sent an invalid message: "):
            guarded.server.receive()
        assert guarded.server.refused.total() == 1
        guarded.close()


@pytest.mark.hypothesis
@pytest.mark.slow
def test_100_000_fuzzed_messages(guarded, recorded, seed):
    run_fuzz(guarded, recorded, 100_000, seed)
