"""Trainers ask each other for the examples of a log, over connections."""

import threading
from contextlib import ExitStack
from types import SimpleNamespace

import numpy as np
import pytest

from marius_oac.data.batches.rank_slice import RankSlice, with_share
from marius_oac.data.logs import batches as log_batches
from marius_oac.data.logs import spans as log_spans
from marius_oac.data.logs.pieces import Pieces
from marius_oac.data.logs.together import Portion
from marius_oac.errors import InputError, NodeLost
from marius_oac.nodes.shards.exchange import RemoteSource
from marius_oac.nodes.shards.serving import ShardServer
from marius_oac.nodes.shards.shard import Shard
from marius_oac.nodes.shards.spans import SpanClient, SpanServer
from marius_oac.nodes.shards.values import ValueFormat
from marius_oac.nodes.transport import messages
from marius_oac.nodes.transport.in_process import Network
from marius_oac.runtime.channel import Closed
from tests.data.test_log_batches import BATCH
from tests.data.test_log_together import ROWS, reader, slices, write
from tests.threads import PATIENCE, in_thread, joined

SPANS = 6


class Own:
    """In the place of `OwnSpans`: spans of one reading, of trainers in turn. `decoded` are those that were."""

    def __init__(self, trainer, trainers, bad=()):
        self.trainer, self.trainers, self.bad = trainer, trainers, bad
        self.decoded, self.changed, self.closed = [], threading.Condition(), False

    def owns(self, visit, span):
        return visit == 0 and span < SPANS and span % self.trainers == self.trainer

    def following(self, visit, span):
        later = range(span + 1, SPANS)
        return next(((0, each) for each in later if self.owns(0, each)), None)

    def portions(self, visit, span):
        if span in self.bad:
            raise InputError("row 7: the label is 7", "log.parquet")
        with self.changed:
            self.decoded.append(span)
            self.changed.notify_all()
        return [
            Portion(np.full(16, span, np.uint8), np.array([span, trainer], np.uint8))
            for trainer in range(self.trainers)
        ]

    def until(self, count):
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.decoded) >= count, PATIENCE), self.decoded
            return list(self.decoded)

    def close(self):
        self.closed = True


class World:
    """Trainers of this process, each with a server and connections to all."""

    def __init__(self, stack, count):
        network, names = Network(), {rank: f"node{rank}" for rank in range(count)}
        self.errors = [[] for _ in names]
        self.servers, self.sources, self.clients = [], [], []
        for rank in names:
            shard = SimpleNamespace(dispatch_server=None)
            endpoints = [(network.server(names[rank], names), list(names))]
            self.servers.append(stack.enter_context(ShardServer(shard, endpoints, self._failing(rank))))
        for rank in names:
            lines = [network.client(names[other], rank) for other in names]
            source = RemoteSource(lines, [ValueFormat(2)], True, 4, lambda *stretch: None, lambda: None)
            self.sources.append(stack.enter_context(source))
            self.clients.append(SpanClient(source, list(names)))
        self._stack, self._count = stack, count

    def _failing(self, rank):
        def fail(error):
            self.errors[rank].append(error)
            self.sources[rank].fail(error)
            self.servers[rank].fail(error)

        return fail

    def serve(self, owns, held=9):
        return [
            self._stack.enter_context(SpanServer(server, own, self._count, held, lambda role: None))
            for server, own in zip(self.servers, owns, strict=True)
        ]

    def fetch(self, trainer, *spans, parse=lambda number, portion: portion.content.tolist()):
        wanted = [(span % self._count, 0, span) for span in spans]
        return self.clients[trainer].fetch(wanted, parse)


@pytest.fixture
def world():
    with ExitStack() as stack:
        yield World(stack, 2)


def owns_of(**of_first):
    return [Own(0, 2, **of_first), Own(1, 2)]


def test_each_trainer_gets_its_portions_in_the_order_it_asked_and_a_span_is_decoded_once(world):
    owns = owns_of()
    servers = world.serve(owns)
    for span in (1, 3, 5):
        for trainer in (0, 1):
            assert world.fetch(trainer, span, span - 1) == [[span, trainer], [span - 1, trainer]]
    assert [own.until(3) for own in owns] == [[0, 2, 4], [1, 3, 5]]
    assert not any(server._made for server in servers), "kept until all have it, no longer"


def test_one_span_is_decoded_ahead_of_the_newest_that_was_asked_for(world):
    owns = owns_of()
    (server, _) = world.serve(owns)
    world.fetch(0, 0)
    assert owns[0].until(2) == [0, 2]
    world.fetch(1, 2)  # was there already
    assert owns[0].until(3) == [0, 2, 4]
    world.fetch(1, 0)  # an older one
    assert world.fetch(0, 2, 4) == [[2, 0], [4, 0]] and owns[0].decoded == [0, 2, 4]
    assert not owns[1].decoded
    with server._changed:
        assert [*server._made] == [(0, 4)]


def test_no_more_are_kept_than_allowed_and_a_late_trainer_gets_what_was_dropped(world):
    owns = owns_of()
    (server, _) = world.serve(owns, held=1)
    for span in (0, 2, 4):
        world.fetch(0, span)
    assert owns[0].until(3) == [0, 2, 4]
    for span in (0, 2, 4):
        assert world.fetch(1, span) == [[span, 1]]
        with server._changed:
            assert len(server._made) <= 1


def test_the_oldest_is_dropped(world):
    (server, _) = world.serve(owns_of(), held=2)
    for span in (0, 2, 4):
        world.fetch(0, span)
    with server._changed:
        assert [*server._made] == [(0, 2), (0, 4)]


def test_who_asks_again_gets_it_again(world):
    owns = owns_of()
    world.serve(owns)
    assert world.fetch(0, 0) == world.fetch(0, 0) == [[0, 0]] and world.fetch(1, 0) == [[0, 1]]
    assert owns[0].decoded.count(0) == 2


def test_what_is_asked_for_again_has_nothing_decoded_ahead(world):
    own = Own(0, 2)
    with SpanServer(world.servers[0], own, 2, 9, lambda role: None) as server:
        for span in (0, 2):
            for trainer in (0, 1):
                world.fetch(trainer, span)
        own.until(3)
        world.fetch(0, 0)
        with server._changed:
            assert server._changed.wait_for(lambda: server._ahead_of == server._newest, PATIENCE)
    assert own.decoded == [0, 2, 4, 0]


def test_who_asks_again_and_who_asks_then_both_get_it(world, monkeypatch):
    sent = []
    monkeypatch.setattr(world.servers[0], "answer", lambda peer, message: sent.append((peer, message.number)))
    server = SpanServer(world.servers[0], Own(0, 2), 2, 9, lambda role: None)  # decodes when the test says so
    assert not server.ask(0, messages.Read(1, 0, 0))
    server._decode((0, 0))
    assert sent == [(0, 1)]
    assert not server.ask(0, messages.Read(2, 0, 0)) and not server.ask(1, messages.Read(3, 0, 0))
    server._decode((0, 0))
    assert sent == [(0, 1), (0, 2), (1, 3)] and not server._made


def test_a_span_that_cant_be_read_fails_its_owner_when_a_trainer_asks_and_not_ahead(world):
    owns = owns_of(bad=[2])
    (server, _) = world.serve(owns)
    world.fetch(0, 0)
    assert world.fetch(1, 0) == [[0, 1]]
    with server._changed:  # it has been tried
        assert server._changed.wait_for(lambda: server._ahead_of == (0, 0), PATIENCE)
    assert world.fetch(1, 1) == [[1, 1]] and world.errors == [[], []]
    why = "row 7: the label is 7"
    with pytest.raises(NodeLost, match=f"node0: it can't go on: log.parquet: {why}"):
        world.fetch(1, 2)
    ((error,), others) = world.errors
    assert isinstance(error, InputError) and why in str(error) and not others
    with pytest.raises(InputError, match=why):
        world.fetch(0, 4)


@pytest.mark.parametrize("visit, span", [(0, 1), (0, SPANS), (1, 0)])
def test_a_span_of_another_owner_is_no_message_that_is_sent(world, visit, span):
    world.serve(owns_of())
    with pytest.raises(NodeLost, match="it can't go on"):
        world.clients[1].fetch([(0, visit, span)], lambda number, portion: None)
    ((error,), _) = world.errors
    assert isinstance(error, NodeLost) and f"node1: it sent an invalid message: READ: span {span}" in str(error)


def test_a_trainer_that_reads_alone_is_not_asked(world):
    world.servers[1].shard = Shard([], 2, True, None, 4, None)
    with pytest.raises(NodeLost, match="node0: it sent an invalid message: READ is not sent to this shard"):
        world.fetch(0, 1)


def test_examples_that_do_not_fit_are_the_senders_loss(world):
    world.serve(owns_of())

    def parse(number, portion):
        raise ValueError("3 examples, not 4")

    with pytest.raises(NodeLost, match="node1: it sent an invalid message: EXAMPLES: 3 examples, not 4"):
        world.fetch(0, 1, parse=parse)


@pytest.mark.parametrize("trainer, span", [(0, 4), (1, 1)])
def test_examples_of_another_span_or_owner_are_refused(world, trainer, span):
    def ask(peer, message):
        return [(peer, messages.Examples(message.number, span, np.zeros(16, np.uint8), np.zeros(2, np.uint8)))]

    for server in world.servers:
        server.spans = ask
    with pytest.raises(NodeLost, match=f"EXAMPLES of span {span}, which was not asked for"):
        world.fetch(0, trainer, 2)


def test_a_trainer_that_waits_ends_when_its_source_does(world):
    for server in world.servers:
        server.spans = lambda peer, message: []
    waiting = in_thread(lambda: world.fetch(0, 1))
    world.sources[0].fail(Closed("nodes"))
    assert isinstance(joined(*waiting), Closed)


def test_an_owner_that_is_gone_ends_the_wait_in_one_line(world):
    for server in world.servers:
        server.spans = lambda peer, message: []
    waiting = in_thread(lambda: pytest.raises(NodeLost, world.fetch, 0, 1))
    world.servers[1].fail(InputError("no space left on device", "a file"))
    assert "\n" not in str(joined(*waiting).value) and "no space left on device" in str(joined(*waiting).value)


def test_peers_that_are_no_trainers_are_refused(world):
    (server, _) = world.serve(owns_of())
    with pytest.raises(messages.Malformed):
        server.ask(2, messages.Read(0, 0, 0))


def test_it_closes_what_it_decodes_with(world):
    with ExitStack() as stack:
        own = Own(0, 2)
        stack.enter_context(SpanServer(world.servers[0], own, 2, 9, lambda role: None))
    assert own.closed


@pytest.mark.parametrize("shuffle", [0, 64])
def test_planners_that_read_together_have_the_batches_of_one(tmp_path, monkeypatch, shuffle):
    """Real files, three trainers at once, each at its own speed."""
    monkeypatch.setattr(log_batches, "_BLOCK_EXAMPLES", 5 * BATCH)
    monkeypatch.setattr(log_spans, "STRETCH_ROWS", 80)
    path = write(tmp_path / "log.parquet")
    alone, last = reader(path, [Pieces(path)], f"data.shuffle={shuffle}"), 2 * -(-ROWS // BATCH)
    with ExitStack() as stack:
        world, planners, owns = World(stack, 3), [], []
        for trainer, client in enumerate(world.clients):
            mine = reader(path, [Pieces(path)], f"data.shuffle={shuffle}")
            planner, own = mine.read_together(slices(3), trainer, client)
            planners.append(with_share(planner, RankSlice(trainer, 3)))
            owns.append(own)
        world.serve(owns, held=2)
        work = [in_thread(lambda each=each: [each.plan(number) for number in range(last)]) for each in planners]
        found = [joined(*each) for each in work]
        for number in range(last):
            whole = alone.plan(number)
            for name in ("labels", "numbers"):
                parts = [getattr(plans[number].data, name) for plans in found]
                assert np.array_equal(np.concatenate(parts), getattr(whole.data, name))
            (users,) = (keys.keys[: whole.examples] for keys in whole.keys)
            assert np.array_equal(np.concatenate([p[number].keys[0].keys[: p[number].examples] for p in found]), users)
        for plans in found:
            assert len(plans) == last
    alone.close()
