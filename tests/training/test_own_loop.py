"""A loop of the user's own: batches change hands one at a time, and every way in which a loop ends leaves the rows that
its trained batches gave, and no thread."""

import random
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch

from marius_oac.errors import DivergedError, InputError
from marius_oac.runtime.channel import Closed
from marius_oac.storage.memory import MemoryStore
from marius_oac.training.own_loop.hand_over import HandOver
from tests.house.test_house import ROOT
from tests.threads import in_thread, joined, watched
from tests.training.loops import Loop, key_batches, patience, trained


@pytest.fixture(autouse=True)
def no_thread_is_left():
    before = threading.active_count()
    with patience():
        yield
    assert threading.active_count() == before


def after(count, **given):
    """Rows after the first `count` batches, trained one at a time."""
    return trained(key_batches(count), mode="sync", **given)


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


@pytest.mark.parametrize("in_flight", [1, 8])
@pytest.mark.parametrize("last", [0, 1, 17, 29])
def test_break_leaves_what_was_trained(in_flight, last):
    loop = Loop(in_flight=in_flight)
    with loop.engine as engine:
        for number, batch in enumerate(engine.batches(key_batches(30))):
            loop.train(batch)
            if number == last:
                break
        assert torch.equal(loop.table(), after(last + 1))


def test_a_loop_after_a_break_goes_on_with_the_bits_of_one_that_saw_no_other_batches():
    batches, loop, plain = key_batches(30), Loop(in_flight=8), Loop(mode="sync")
    with loop.engine as engine:
        for number, batch in enumerate(engine.batches(batches)):
            loop.train(batch)
            if number == 9:
                break
        for batch in engine.batches(batches[10:]):
            loop.train(batch)
    with plain.engine as engine:
        for batch in engine.batches(batches):
            plain.train(batch)
    assert torch.equal(loop.table(), plain.table())


def test_an_error_of_the_loop_leaves_what_was_trained():
    loop = Loop()
    with pytest.raises(ZeroDivisionError), loop.engine as engine:
        for number, batch in enumerate(engine.batches(key_batches(30))):
            if number == 7:
                raise ZeroDivisionError
            loop.train(batch)
    assert torch.equal(loop.table(), after(7))


def test_an_error_of_the_loader_comes_in_its_turn():
    def loader():
        yield from key_batches(11)
        raise OSError("no more")

    loop, seen = Loop(in_flight=4), 0
    with loop.engine as engine:
        with pytest.raises(OSError, match="no more"):
            for batch in engine.batches(loader()):
                loop.train(batch)
                seen += 1
        assert seen == 11 and torch.equal(loop.table(), after(11))
        assert len(list(engine.batches(key_batches(2)))) == 2


def test_a_batch_without_step_leaves_its_rows():
    loop = Loop()
    with loop.engine as engine:
        for number, batch in enumerate(engine.batches(key_batches(20))):
            if number < 10:
                loop.train(batch)
            else:
                loop.items(batch["item"]).sum().backward()
        assert torch.equal(loop.table(), after(10))


def test_an_unfinished_loop_ends_with_the_engine_or_by_another_one():
    loop = Loop()
    with loop.engine as engine:
        first = engine.batches(key_batches(30))
        loop.train(next(first))
        second = engine.batches(key_batches(30)[1:])
        loop.train(next(second))
        with pytest.raises(InputError, match="ended by another one"):
            next(first)
    assert torch.equal(loop.table(), after(2))


def test_ctrl_c_ends_a_loop_like_an_error():
    loop = Loop()
    with pytest.raises(KeyboardInterrupt), loop.engine as engine:
        for number, batch in enumerate(engine.batches(key_batches(30))):
            loop.train(batch)
            if number == 7:
                signal.raise_signal(signal.SIGINT)
    assert torch.equal(loop.table(), after(8))


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
        waited = watched(engine._loop)._changed
        reading = in_thread(loop.table)
        waited.parked()
        gate.set()
        assert torch.equal(joined(*reading), after(1))


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
    import marius_oac.torch as mt

    with mt.Engine(loop.model, keys={loop.items: "item"}, optimizers=[loop.rows]) as engine:
        for batch in engine.batches(batches[10:]):
            loop.train(batch)
    assert torch.equal(loop.table(), after(20))


def test_the_engine_is_of_no_use_after_a_divergence():
    loop = Loop()
    with loop.engine as engine:
        with pytest.raises(DivergedError, match="gradient of table"):
            for number, batch in enumerate(engine.batches(key_batches(30))):
                if number == 5:
                    (loop.items(batch["item"]).sum() * float("inf")).backward()
                    loop.rows.step()
                loop.train(batch)
        with pytest.raises(DivergedError):
            engine.batches([])


def test_rows_that_are_too_large_stop_the_loop():
    loop = Loop()
    with pytest.raises(DivergedError, match="rows of table"), loop.engine as engine:
        for batch in engine.batches(key_batches(30)):
            loop.items(batch["item"]).sum().backward()
            loop.rows.param_groups[0]["lr"] = 1e30
            loop.rows.step()


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
            assert drawn[-1] == min(29, number + 4 + 2 - 1)


def test_a_hand_over_waits_until_the_batch_is_back():
    place = HandOver()
    offering = in_thread(lambda: place.offer("one"))
    assert place.take() == "one" and offering[0].is_alive()
    place.give_back()
    assert joined(*offering) is True
    place.drain()
    assert place.offer("two") is False and place.take() is None
    place.abort()
    with pytest.raises(Closed):
        place.offer("three")


def test_an_aborted_hand_over_wakes_both_sides():
    for wakes in ("abort", "end"):
        place = HandOver()
        taking = in_thread(place.take)
        getattr(place, wakes)()
        assert joined(*taking) is None
    place = HandOver()
    offering = in_thread(lambda: place.offer("one"))
    assert place.take() == "one"
    place.abort()
    assert isinstance(joined(*offering), Closed)


PROGRAM = """
import os, signal, sys, threading, warnings
warnings.simplefilter("ignore")  # of forks beside threads
signal.alarm(20)  # not faulthandler, whose own thread a forked child waits for
from tests.training.loops import Loop, key_batches
loop = Loop()
batches = loop.engine.batches(key_batches(30))
loop.train(next(batches))
"""
ENDS = {
    "unfinished": "",
    "an error": "raise SystemExit(3)",
    "forked": "\n".join(
        [
            "child = os.fork()",
            "if not child: signal.alarm(15), batches.close(), sys.exit(0)",
            "assert os.waitpid(child, 0)[1] == 0",
            "next(batches)",
        ]
    ),
    "another thread": "\n".join(
        ["def goes_on():", "    print(sum(1 for each in batches))", "threading.Thread(target=goes_on).start()"]
    ),
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.usefixtures("forked_programs")
def test_the_interpreter_exits_with_a_loop_unfinished(end):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM + ENDS[end]], capture_output=True, text=True, timeout=60, cwd=ROOT
    )
    assert done.returncode == (3 if end == "an error" else 0), done.stderr
    assert done.stderr == "" and done.stdout == ("29\n" if end == "another thread" else "")
