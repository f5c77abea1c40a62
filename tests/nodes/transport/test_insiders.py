"""Those who have the secret but not the manners: they are lost, alone, and an honest trainer beside them goes on."""

import pytest

from marius_oac.errors import NodeLost
from marius_oac.nodes.transport.contract import TAKEN, failed, passes
from marius_oac.nodes.transport.handshake import HELLO_BYTES, MAC_BYTES
from marius_oac.nodes.transport.wire import Kind, head
from tests.nodes.transport.conformance import SERVER, STILL, beside, content
from tests.nodes.transport.guarded import EARLY, LIMITS, Guarded
from tests.nodes.transport.strangers import counted
from tests.threads import PATIENCE


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


def test_what_passes_is_no_refusal_for_good():
    assert all(passes(reason) for reason in (TAKEN, failed("a reason")))
    assert not any(passes(reason) for reason in ("unknown rank", "other limits of messages", ""))


def test_handshakes_in_progress_expire(request):
    guarded = Guarded(timeout=0.4)
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
    with pytest.raises(NodeLost, match=f"^node green: it sent an invalid message: {reason}$"):
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


def test_a_server_that_has_failed_says_no_goodbye(request):
    """One that came after a trainer's answer would be kept for `timeout` seconds, and `close` would wait for that."""
    guarded = Guarded()
    request.addfinalizer(guarded.close)
    insider = guarded.insider().enter()
    guarded.server.fail("it is over")
    assert insider.hear() == (Kind.FAILED, b"it is over")
    closing, _ = beside(guarded.server.close)  # which waits for the answer
    assert not insider.socket.poll(1000 * STILL)
    insider.say(head(Kind.BYE))
    guarded.honest.close()
    closing.join(PATIENCE)
    assert not closing.is_alive() and not insider.socket.poll(1000 * STILL)


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
