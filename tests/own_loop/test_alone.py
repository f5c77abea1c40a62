"""Small batches pass through the stages in the user's own thread, and others through the pipeline's threads: alike."""

import contextlib
import signal
import threading
import types

import pytest
import torch

import marius_oac.torch as mt
from marius_oac.errors import DivergedError, InputError
from marius_oac.pipeline.rows import LocalRows
from marius_oac.pipeline.stages import Stages
from marius_oac.torch import loop as loops
from marius_oac.torch.alone import Alone
from marius_oac.torch.at_hand import Rows
from marius_oac.torch.beside import Beside
from marius_oac.torch.pipeline import LoopStep
from marius_oac.torch.planner import LoopPlanner
from tests.own_loop.loops import Loop, after, key_batches, trained
from tests.own_loop.test_endings import EVERY_LINE, interrupted_at

NEVER = 1 << 60


@pytest.fixture
def alone(threads):
    threads(NEVER)


@pytest.mark.parametrize("in_flight", [1, 4, 16])
@pytest.mark.parametrize("sample", [0, 1, 7, NEVER])
def test_rows_do_not_depend_on_when_threads_take_over(threads, sample, in_flight):
    threads(sample)
    assert torch.equal(trained(key_batches(40), in_flight=in_flight), after(40))


@pytest.mark.parametrize(("sample", "worth", "changes"), [(3, -1, 3), (3, 1e9, None), (NEVER, -1, None), (0, -1, 0)])
def test_threads_take_over_after_batches_that_took_long_enough(threads, sample, worth, changes):
    threads(sample, worth)
    loop, ways, others = Loop(in_flight=4), [], threading.active_count()
    with loop.engine as engine:
        for batch in engine.batches(key_batches(10)):
            ways.append(type(engine._loop._way))
            assert (threading.active_count() > others) == (ways[-1] is Beside)
            loop.train(batch)
    changes = 10 if changes is None else changes
    assert ways == [Alone] * changes + [Beside] * (10 - changes)


@pytest.mark.parametrize(("step", "stages", "taken_over"), [(2, 2, True), (0.5, 2, False), (2, 0.5, False)])
def test_both_the_step_and_the_stages_must_take_long_enough(threads, monkeypatch, step, stages, taken_over):
    threads(2, worth=1)
    now, take = [0.0], Alone.take

    def passes(seconds):
        now[0] += seconds

    monkeypatch.setattr(Alone, "take", lambda self: (passes(stages), take(self))[1])
    monkeypatch.setattr(loops, "time", types.SimpleNamespace(perf_counter=lambda: now[0]))
    with (loop := Loop()).engine as engine:
        for _ in engine.batches(key_batches(4)):
            passes(step)
            taken = isinstance(engine._loop._way, Beside)
        assert loop and taken == taken_over


def test_every_batch_of_the_sample_must_take_long_enough(threads):
    threads(2, 0.5)
    with (loop := Loop()).engine as engine:
        for _ in engine.batches(key_batches(1)):
            inner = loop.engine._loop
            for seconds, pays in ((0.1, False), (1.0, False), (1.0, True), (0.1, False)):
                inner._seconds.append(seconds)
                assert inner._pay() == pays


def test_a_loop_of_mode_sync_has_no_threads():
    loop, others = Loop(mode="sync"), threading.active_count()
    with loop.engine as engine:
        for _ in engine.batches(key_batches(9)):
            assert threading.active_count() == others


@pytest.mark.parametrize("last", [0, 1, 17])
@pytest.mark.parametrize("sample", [2, NEVER])
def test_break_leaves_what_was_trained(threads, sample, last):
    threads(sample)
    loop, batches = Loop(in_flight=8), key_batches(30)
    with loop.engine as engine:
        for number, batch in enumerate(engine.batches(batches)):
            loop.train(batch)
            if number == last:
                break
        assert torch.equal(loop.table(), after(last + 1))
        for batch in engine.batches(batches[last + 1 :]):
            loop.train(batch)
    assert torch.equal(loop.table(), after(30))


@pytest.mark.usefixtures("alone")
def test_rows_are_read_and_saved_between_batches(tmp_path):
    loop = Loop()
    with loop.engine as engine:
        for number, batch in enumerate(engine.batches(key_batches(12))):
            if number in (3, 9):
                assert torch.equal(loop.table(), after(number))
            loop.train(batch)
            if number == 5:
                engine.save(tmp_path)
                assert torch.equal(loop.table(), after(6))
    resumed = Loop()
    with resumed.engine as engine:
        assert engine.load(tmp_path)
        for batch in engine.batches(key_batches(12)):
            resumed.train(batch)
    assert torch.equal(resumed.table(), loop.table())


@pytest.mark.usefixtures("alone")
def test_the_loader_is_drawn_some_batches_at_once():
    drawn, loop = [], Loop(in_flight=4)

    def loader():
        for number, batch in enumerate(key_batches(30)):
            drawn.append(number)
            yield batch

    with loop.engine as engine:
        for number, _ in enumerate(engine.batches(loader())):
            assert number <= drawn[-1] <= number + 2 * 4 + 2 - 1


STAGES = {
    "plan": (LoopPlanner, "plan"),
    "settle": (LoopPlanner, "assign_rows"),
    "read": (LocalRows, "read"),
    "validate": (LocalRows, "validate"),
    "open": (LoopStep, "open"),
    "take back": (Rows, "take_back"),
    "write": (Stages, "write"),
}


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("stage", STAGES)
def test_an_error_of_a_stage_ends_the_loop_and_is_told(monkeypatch, stage):
    where, name = STAGES[stage]
    original, calls = getattr(where, name), iter(range(100))

    def fails(*given):
        if next(calls) == 5:
            raise OSError("the disk is full")
        return original(*given)

    monkeypatch.setattr(where, name, fails)
    loop, seen = Loop(in_flight=4), 0
    with loop.engine as engine:
        with pytest.raises(OSError, match="the disk is full"):
            for batch in engine.batches(key_batches(30)):
                loop.train(batch)
                seen += 1
        assert seen == 5 + (stage in ("take back", "write"))
        with pytest.raises(InputError, match="the engine has failed and can't be used again: the disk is full"):
            engine.batches([])
        with pytest.raises(InputError, match="the engine has failed"):
            loop.table()
    with pytest.raises(InputError, match="rows of '0' may be lost: an engine has failed: the disk is full"):
        mt.Engine(loop.model, keys={loop.items: "item"}, optimizers=[loop.rows])


@pytest.mark.usefixtures("alone")
def test_rows_that_are_too_large_stop_the_loop():
    loop, seen = Loop(), 0
    with pytest.raises(DivergedError, match="rows of table .* at batch 0"), loop.engine as engine:
        for batch in engine.batches(key_batches(30)):
            seen += 1
            loop.items(batch["item"]).sum().backward()
            loop.rows.param_groups[0]["lr"] = 1e30
            loop.rows.step()
    assert seen == 1


def lines_of_a_loop(line, expected):
    """Runs a loop with Ctrl-C at a line; returns what is left of `line` after it, and checks what it leaves."""
    loop, steps = Loop(in_flight=2), 0
    with interrupted_at(line) as left, contextlib.suppress(KeyboardInterrupt), loop.engine as engine:
        for batch in engine.batches(key_batches(4)):
            loop.train(batch)
            steps += 1
    loop.engine.close()
    assert any(torch.equal(loop.table(), rows) for rows in expected[steps : steps + 2])
    return left[0]


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("first, step", [*EVERY_LINE, (3, 31)])
def test_ctrl_c_at_any_line_of_the_engine_leaves_whole_batches(first, step):
    expected = [after(count) for count in range(5)]
    lines = 100_000 - lines_of_a_loop(100_000, expected)
    assert lines > 300
    for line in range(first, lines, step):
        assert lines_of_a_loop(line, expected) <= 0


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("stage", ["read", "write"])
def test_ctrl_c_within_a_stage_comes_after_it(monkeypatch, stage):
    loop, original, calls = Loop(), getattr(Stages, stage), iter(range(100))

    def pressed(self, batch):
        if next(calls) == 5:
            signal.raise_signal(signal.SIGINT)
        return original(self, batch)

    monkeypatch.setattr(Stages, stage, pressed)
    with pytest.raises(KeyboardInterrupt), loop.engine as engine:
        for batch in engine.batches(key_batches(30)):
            loop.train(batch)
    assert torch.equal(loop.table(), after(5 + (stage == "write")))
