"""What every transport must do; `Conformance` is inherited by one test class for each."""

import threading

import numpy as np
import pytest

from marius_oac.errors import NodeLost, NodeRefused
from marius_oac.nodes.transport.contract import TAKEN, Limits, Request
from marius_oac.runtime.channel import Closed
from tests.threads import PATIENCE

NAMES = {0: "red", 1: "green", 2: "blue"}
SERVER = "shard-0"
STILL = 0.2
"""Seconds for which a call that must wait is watched; a call that wrongly returns does so at once."""


def beside(work):
    """Runs `work` beside the test; returns (thread, list that gets its result or the expected errors)."""
    outcome = []

    def run():
        try:
            outcome.append(work())
        except (Closed, NodeLost, RuntimeError, ValueError) as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, outcome


def outcome_of(thread, outcome):
    thread.join(PATIENCE)
    assert not thread.is_alive()
    return outcome[0]


def content(frames):
    return [bytes(frame) for frame in frames]


class Wires:
    """Makes servers and clients of one kind and closes them after the test."""

    def __init__(self):
        self._open = []

    def server(self, limits=Limits(), **options):  # noqa: B008
        return self._kept(self.make_server(limits, **options))

    def client(self, server, rank, limits=Limits()):  # noqa: B008
        return self._kept(self.make_client(server, rank, limits))

    def pair(self, *ranks, limits=Limits()):  # noqa: B008
        """A server and connected clients of the ranks."""
        server = self.server(limits)
        return server, *(self.connect(server, rank, limits) for rank in ranks)

    def connect(self, server, rank, limits=Limits()):  # noqa: B008
        """A client that is connected, and whom the server has heard."""
        client = self.client(server, rank, limits)
        assert client.name == SERVER
        client.send([b"here"])
        assert server.receive() == Request(rank, [b"here"])
        return client

    def refused(self, server, rank, limits=Limits(), error=NodeRefused):  # noqa: B008
        """What a client is told that may not connect: for good, or now, which is NodeLost."""
        with pytest.raises(NodeLost) as lost:
            self.client(server, rank, limits)
        assert type(lost.value) is error
        return str(lost.value)

    def _kept(self, end):
        self._open.append(end)
        return end

    def close(self):
        for end in reversed(self._open):
            end.close()


class Conformance:
    """Subclasses have a fixture `wires`."""

    def test_any_buffer_travels_unchanged(self, wires):
        server, client = wires.pair(0)
        frames = [b"", b"a", np.arange(7), np.zeros((3, 0), np.float32), bytearray(b"xyz"), memoryview(b"12345678")[1:]]
        frames += [np.arange(100_000, dtype=np.float32).reshape(10, -1), b"q" * 65_535, b"r" * 65_536]
        expected = [bytes(memoryview(frame).tobytes()) for frame in frames]
        client.send(frames)
        request = server.receive()
        assert request.peer == 0
        assert content(request.frames) == expected
        server.send(0, request.frames)
        received = client.receive()
        assert content(received) == expected
        for frame in (*received, *request.frames):
            view = np.frombuffer(frame, np.uint8)
            assert frame.readonly and frame.format == "B" and frame.ndim == 1
            assert not view.size or view.ctypes.data % 8 == 0

    @pytest.mark.parametrize("count", [0, 1, 256])
    def test_any_number_of_frames(self, wires, count):
        server, client = wires.pair(0)
        frames = [b"%d" % number * (number % 50) for number in range(count)]
        client.send(frames)
        server.send(0, server.receive().frames)
        assert content(client.receive()) == frames

    def test_64_megabytes(self, wires):
        server, client = wires.pair(1)
        sent = np.random.default_rng(0).integers(0, 1 << 62, 1 << 23)
        client.send([b"one", sent])
        request = server.receive()
        assert np.array_equal(np.frombuffer(request.frames[1], np.int64), sent)
        server.send(1, [sent[: 1 << 22], sent[1 << 22 :]])
        assert np.array_equal(np.concatenate([np.frombuffer(f, np.int64) for f in client.receive()]), sent)

    def test_messages_outlive_their_connection(self, wires):
        server, client = wires.pair(0)
        client.send([np.arange(100_000)])
        frames = server.receive().frames
        client.close()
        server.close()
        assert np.array_equal(np.frombuffer(frames[0], np.int64), np.arange(100_000))

    def test_many_threads_send_and_each_one_is_heard_in_order(self, wires):
        server, first, second = wires.pair(0, 1)
        count, threads = 100, 3

        def send(client, thread):
            for number in range(count):
                client.send([b"%d" % thread, b"%d" % number, b"x" * (number * 997 % 70_000)])

        def heard(receive):
            numbers = {}
            for _ in range(count * threads):
                thread, number, body = content(receive())
                assert len(body) == int(number) * 997 % 70_000
                numbers.setdefault(thread, []).append(int(number))
            return numbers

        in_order = {b"%d" % thread: list(range(count)) for thread in range(threads)}
        senders = [beside(lambda c=c, t=t: send(c, t)) for c in (first, second) for t in range(threads)]
        requests = [server.receive() for _ in range(2 * count * threads)]
        for rank in (0, 1):
            mine = iter([request.frames for request in requests if request.peer == rank])
            assert heard(lambda mine=mine: next(mine)) == in_order
        for sender in senders:
            outcome_of(*sender)

        def reply(thread):
            for number in range(count):
                for rank in (0, 1):
                    server.send(rank, [b"%d" % thread, b"%d" % number, b"x" * (number * 997 % 70_000)])

        senders = [beside(lambda t=t: reply(t)) for t in range(threads)]
        hearing = [beside(lambda c=c: heard(c.receive)) for c in (first, second)]
        assert [outcome_of(*one) for one in hearing] == [in_order, in_order]
        for sender in senders:
            outcome_of(*sender)

    # --- back-pressure -----------------------------------------------------------------------------------------------

    def test_a_sender_waits_for_the_receiver(self, wires):
        limits = Limits(queue=4)
        server, client = wires.pair(0, limits=limits)
        sent, more = [], threading.Semaphore(0)

        def flood(send):
            for number in range(20):
                send([b"%d" % number])
                sent.append(number)
                more.release()

        thread, _ = beside(lambda: flood(client.send))
        for _ in range(limits.queue // 2):
            assert more.acquire(timeout=PATIENCE)
        thread.join(STILL)
        assert len(sent) <= limits.queue
        for number in range(20):
            assert content(server.receive().frames) == [b"%d" % number]
            assert len(sent) <= number + 1 + limits.queue
        thread.join(PATIENCE)

        sent.clear()
        more = threading.Semaphore(0)
        thread, _ = beside(lambda: flood(lambda frames: server.send(0, frames)))
        for _ in range(limits.queue):
            assert more.acquire(timeout=PATIENCE)
        thread.join(STILL)
        assert len(sent) == limits.queue
        for number in range(20):
            assert content(client.receive()) == [b"%d" % number]
        thread.join(PATIENCE)
        assert len(sent) == 20

    def test_bytes_on_their_way_are_bounded_too(self, wires):
        limits = Limits(max_bytes=1000, queue=16)
        server, client = wires.pair(0, limits=limits)
        sizes = [400, 600, 1, 1000, 499, 1000, 1000, 2, 3] * 5
        thread, _ = beside(lambda: [client.send([b"x" * size]) for size in sizes])
        thread.join(STILL)
        assert thread.is_alive()
        assert [len(server.receive().frames[0]) for _ in sizes] == sizes
        thread.join(PATIENCE)

    def test_one_slow_trainer_keeps_nobody_else_waiting(self, wires):
        limits = Limits(queue=2)
        server, slow, quick = wires.pair(0, 1, limits=limits)
        thread, _ = beside(lambda: [server.send(0, [b"%d" % number]) for number in range(5)])
        for number in range(50):
            quick.send([b"%d" % number])
            request = server.receive()
            server.send(1, request.frames)
            assert content(quick.receive()) == [b"%d" % number]
        assert [content(slow.receive()) for _ in range(5)] == [[b"%d" % number] for number in range(5)]
        thread.join(PATIENCE)

    # --- stopping ----------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("stop", ["abort", "close"])
    @pytest.mark.parametrize("end", ["client", "server"])
    def test_who_waits_is_let_go(self, wires, stop, end):
        limits = Limits(queue=1)
        server, client = wires.pair(0, limits=limits)
        stopped = {"client": client, "server": server}[end]
        send = client.send if end == "client" else lambda frames: server.send(0, frames)
        sending = [beside(lambda: [send([b"x"]) for _ in range(3)]) for _ in range(2)]
        receiving = beside(stopped.receive)
        sending[0][0].join(STILL)
        getattr(stopped, stop)()
        assert all(isinstance(outcome_of(*one), Closed) for one in (*sending, receiving))
        for call in (lambda: send([b"x"]), stopped.receive):
            with pytest.raises(Closed):
                call()
        getattr(stopped, stop)()
        stopped.close()

    def test_what_was_sent_before_close_arrives(self, wires):
        server, client = wires.pair(0)
        for number in range(10):
            client.send([b"%d" % number, np.zeros(100_000)])
        client.close()
        assert [content(server.receive().frames)[0] for _ in range(10)] == [b"%d" % number for number in range(10)]

    def test_what_was_sent_before_the_server_closed_arrives(self, wires):
        server, client = wires.pair(0)
        for number in range(10):
            server.send(0, [b"%d" % number, np.zeros(100_000)])
        server.close()
        assert [content(client.receive())[0] for _ in range(10)] == [b"%d" % number for number in range(10)]
        with pytest.raises(NodeLost, match=SERVER):
            client.receive()

    # --- peers that are gone -----------------------------------------------------------------------------------------

    def test_a_trainer_that_left_is_not_lost(self, wires):
        server, first, second = wires.pair(0, 1)
        first.close()
        second.send([b"still here"])
        assert server.receive() == Request(1, [b"still here"])
        waiting = beside(server.receive)
        waiting[0].join(STILL)
        second.send([b"and now"])
        assert outcome_of(*waiting) == Request(1, [b"and now"])
        with pytest.raises(NodeLost, match="red.*left"):
            server.send(0, [b"where are you"])

    def test_a_trainer_that_left_may_come_again(self, wires):
        server, first = wires.pair(0)
        first.send([b"last"])
        first.close()
        assert server.receive() == Request(0, [b"last"])
        again = wires.connect(server, 0)
        server.send(0, [b"welcome"])
        assert content(again.receive()) == [b"welcome"]

    def test_a_trainer_that_ends_without_a_word_is_lost(self, wires):
        server, first, second = wires.pair(0, 1)
        waiting = beside(server.receive)
        first.abort()
        first.close()
        lost = outcome_of(*waiting)
        assert isinstance(lost, NodeLost) and lost.node == "red"
        with pytest.raises(NodeLost, match="node red"):
            server.receive()
        with pytest.raises(NodeLost, match="node red"):
            server.send(0, [b"x"])
        server.send(1, [b"we are alone"])
        assert content(second.receive()) == [b"we are alone"]

    def test_a_blocked_send_to_a_lost_trainer_ends(self, wires):
        limits = Limits(queue=1)
        server, client = wires.pair(0, limits=limits)
        blocked = [beside(lambda: [server.send(0, [b"x"]) for _ in range(2)]) for _ in range(2)]
        blocked[0][0].join(STILL)
        client.abort()
        client.close()
        assert all(isinstance(outcome_of(*one), NodeLost) for one in blocked)

    def test_a_server_that_ends_is_lost_to_all_who_wait(self, wires):
        limits = Limits(queue=1)
        server, first, second = wires.pair(0, 1, limits=limits)
        waiting = [beside(first.receive), beside(second.receive)]
        waiting += [beside(lambda: [first.send([b"x"]) for _ in range(3)]) for _ in range(2)]
        waiting[-1][0].join(STILL)
        server.abort()
        server.close()
        for lost in (outcome_of(*one) for one in waiting):
            assert isinstance(lost, NodeLost) and lost.node == SERVER

    def test_a_server_that_fails_says_why_to_all(self, wires):
        limits = Limits(queue=1)
        server, first, second = wires.pair(0, 1, limits=limits)
        server.send(0, [b"before"])
        waiting = [beside(second.receive), beside(lambda: [second.send([b"x"]) for _ in range(3)])]
        stopped = [beside(lambda: [server.send(0, [b"x"]) for _ in range(2)])]
        stopped[0][0].join(STILL)
        server.fail("a reason\nof two lines")
        stopped += [beside(server.receive), beside(lambda: server.send(0, [b"x"]))]
        assert all(isinstance(outcome_of(*one), Closed) for one in stopped)
        why = f"node {SERVER}: it can't go on: a reason of two lines"
        assert [str(outcome_of(*one)) for one in waiting] == [why] * 2
        assert content(first.receive()) == [b"before"]
        for call in (first.receive, lambda: first.send([b"x"])):
            with pytest.raises(NodeLost, match=why):
                call()
        assert "a reason of two lines" in wires.refused(server, 2, limits, NodeLost)
        server.fail("another one")

    # --- who may connect, what may be sent ---------------------------------------------------------------------------

    def test_unknown_ranks_are_refused(self, wires):
        assert "unknown rank" in wires.refused(wires.server(), 7)

    def test_a_rank_connects_once(self, wires):
        server, client = wires.pair(0)
        assert TAKEN in wires.refused(server, 0, error=NodeLost)

    def test_a_reply_to_nobody(self, wires):
        server = wires.server()
        with pytest.raises(NodeLost, match="node green: it is not connected"):
            server.send(1, [b"x"])

    def test_what_may_not_be_sent_is_said(self, wires):
        limits = Limits(max_bytes=1000, max_frames=3)
        server, client = wires.pair(0, limits=limits)
        for send in (client.send, lambda frames: server.send(0, frames)):
            with pytest.raises(ValueError, match="3 frames, not 4"):
                send([b""] * 4)
            with pytest.raises(ValueError, match="1000 bytes, not 1001"):
                send([b"x" * 1000, b"y"])
            with pytest.raises(ValueError, match="frame 1 is not contiguous"):
                send([b"", np.zeros((4, 4))[:, 0]])
        client.send([b"x" * 1000])
        assert len(server.receive().frames[0]) == 1000
