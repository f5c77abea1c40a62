"""Rows of a loop of the user's own have the bits of one batch at a time, whatever is in flight and is drawn."""

import random
import threading

import numpy as np
import pytest
import torch

import marius_oac.torch as mt
from marius_oac.storage.memory import MemoryStore
from tests.own_loop.loops import Loop, after, key_batches, trained
from tests.threads import in_thread, joined, watched


@pytest.mark.parametrize("in_flight", [1, 4, 16])
def test_rows_have_the_bits_of_one_batch_at_a_time(in_flight):
    assert torch.equal(trained(key_batches(60), in_flight=in_flight), after(60))


def test_a_table_trains():
    loop, losses = Loop(), []
    with loop.engine as engine:
        for _ in range(3):
            losses.append(sum(loop.train(batch) for batch in engine.batches(key_batches(30))))
    assert losses[0] > losses[1] > losses[2]


def test_every_batch_comes_once_in_order():
    loop, batches = Loop(), key_batches(40)
    with loop.engine as engine:
        assert [id(batch) for batch in engine.batches(batches)] == [id(batch) for batch in batches]
        assert list(engine.batches([])) == []


def test_batches_are_as_many_as_the_loader_has():
    with (loop := Loop()).engine as engine:
        assert len(engine.batches(key_batches(7))) == 7 and not loop.items.rows
        with pytest.raises(TypeError):
            len(engine.batches(iter(key_batches(7))))


def test_a_batch_without_step_leaves_its_rows():
    loop = Loop()
    with loop.engine as engine:
        for number, batch in enumerate(engine.batches(key_batches(20))):
            if number < 10:
                loop.train(batch)
            else:
                loop.items(batch["item"]).sum().backward()
        assert torch.equal(loop.table(), after(10))


@pytest.mark.parametrize("given", [{"in_flight": 1}, {"in_flight": 8}, {"mode": "sync"}])
def test_rows_that_no_step_has_changed_are_not_written(monkeypatch, given):
    written, commit = [], MemoryStore.commit
    monkeypatch.setattr(MemoryStore, "commit", lambda self, *rest: written.append(rest[2]) or commit(self, *rest))
    batches, loop = key_batches(40, keys=30), Loop(**given)
    with loop.engine as engine:
        for number, batch in enumerate(engine.batches(batches)):
            if number % 3:
                loop.train(batch)
        assert written == [number for number in range(40) if number % 3]
        found = loop.table(30)
    assert torch.equal(found, trained([batch for number, batch in enumerate(batches) if number % 3]).narrow(0, 0, 30))


def test_rows_can_be_read_between_batches():
    loop = Loop(in_flight=8)
    with loop.engine as engine:
        for number, batch in enumerate(engine.batches(key_batches(12))):
            if number in (3, 9):
                assert torch.equal(loop.table(), after(number))
            loop.train(batch)


def test_reading_waits_for_the_batches_that_were_handed_back(monkeypatch):
    loop, gate, commit = Loop(in_flight=4), threading.Event(), MemoryStore._commit

    def late(*given):
        assert gate.wait(30)
        return commit(*given)

    monkeypatch.setattr(MemoryStore, "_commit", late)
    with loop.engine as engine:
        batches = engine.batches(key_batches(3))
        loop.train(next(batches))
        next(batches)
        waited = watched(engine._loop._way)._changed
        reading = in_thread(loop.table)
        try:
            waited.parked()
        finally:
            gate.set()
        assert torch.equal(joined(*reading), after(1))


@pytest.mark.parametrize("count", [1, 2, 3, 16, 17])
def test_rows_are_told_apart_by_all_their_bits(count):
    """Rows are sorted by the bits that the last one has."""
    loop = Loop(mode="sync", std=0.0, optimizer=mt.SGD, lr=1.0)
    with loop.engine as engine:
        for batch in engine.batches([{"item": torch.arange(count)}, {"item": torch.arange(count).flip(0)}]):
            (loop.items(batch["item"]) * batch["item"][:, None]).sum().backward()
            loop.rows.step()
            loop.rows.zero_grad()
        assert loop.table(count)[:, 0].tolist() == [-2 * key for key in range(count)]


def test_a_batch_may_be_longer_than_all_before():
    draw = torch.Generator().manual_seed(2)
    batches = [{"item": torch.randint(0, 5000, (size,), generator=draw)} for size in (1, 300, 0, 5, 4000, 1200)] * 3
    assert torch.equal(trained(batches, in_flight=4), trained(batches, mode="sync"))


def test_sums_over_a_batch_do_not_depend_on_the_batches_drawn_before_a_break():
    """Their keys get rows, in an order of their own; a norm over a batch's rows sums in the batch's order."""

    def clipped(loop, batch):
        (loop.items(batch["item"]) * torch.linspace(-1, 3, len(batch["item"]))[:, None]).pow(2).sum().backward()
        torch.nn.utils.clip_grad_norm_(loop.rows.param_groups[0]["params"], 0.5)
        loop.rows.step()
        loop.rows.zero_grad()

    batches, rows = key_batches(30, keys=2000, most=200), []
    for drawn_before in (batches[:0], batches[::-1]):
        with (loop := Loop(in_flight=8)).engine as engine:
            for _ in engine.batches(drawn_before):
                break
            for batch in engine.batches(batches):
                clipped(loop, batch)
        rows.append(loop.table(2000))
    assert torch.equal(*rows)


def test_an_engine_goes_on_with_the_rows_of_the_last_one():
    batches, loop = key_batches(20), Loop()
    with loop.engine as engine:
        for batch in engine.batches(batches[:10]):
            loop.train(batch)
    with mt.Engine(loop.model, keys={loop.items: "item"}, optimizers=[loop.rows]) as engine:
        for batch in engine.batches(batches[10:]):
            loop.train(batch)
    assert torch.equal(loop.table(), after(20))


def drawing(count):
    for batch in key_batches(count):
        yield {**batch, "drawn": (random.random(), np.random.rand(), float(torch.rand(())))}


@pytest.mark.parametrize("in_flight", [1, 8])
def test_what_loader_and_model_draw_does_not_depend_on_the_batches_in_flight(in_flight):
    def drawn(in_flight):
        random.seed(1), np.random.seed(1), torch.manual_seed(1)
        with (loop := Loop(in_flight=in_flight)).engine as engine:
            return [
                (batch["drawn"], random.random(), np.random.rand(), float(torch.rand(())))
                for batch in engine.batches(drawing(20))
            ] * bool(loop)

    found = drawn(in_flight)
    assert found == drawn(3) and len({numbers for numbers in found}) == 20
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    plain = (random.random(), np.random.rand(), float(torch.rand(())))
    assert found[0][0] == plain, "the first batch is drawn as without an engine"


def test_the_loader_is_at_most_so_far_ahead():
    drawn, loop = [], Loop(in_flight=4)

    def loader():
        for number, batch in enumerate(key_batches(30)):
            drawn.append(number)
            yield batch

    with loop.engine as engine:
        for number, _ in enumerate(engine.batches(loader())):
            assert min(29, number + 4 + 2 - 1) <= drawn[-1] <= number + 2 * 4 + 2 - 1
