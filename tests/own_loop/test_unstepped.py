"""Gradients that wait for a step: in every mode, on disk, over passes, with checkpoints; and where they may not."""

import contextlib
import gc
import re
import weakref

import pytest
import torch
from torch import nn
from torch.optim import optimizer as torchs

import marius_oac.torch as mt
from marius_oac.errors import InputError
from marius_oac.pipeline.rows import LocalRows
from marius_oac.torch import unstepped
from marius_oac.torch.beside import Beside
from marius_oac.torch.loop import Loop as OneLoop
from marius_oac.torch.pipeline import LoopStep
from marius_oac.torch.processes.batches import SharedRows
from tests.own_loop.habits import KEYS, Network, Ours, Plain, batches, loss_of
from tests.own_loop.loops import Loop, key_batches
from tests.own_loop.test_endings import interrupted_at

NEVER = 1 << 60


def accumulated(loop, given, every=4, first=0):
    """Trains with a step after every `every` batches; yields each batch's number before its gradients."""
    for number, batch in enumerate(loop.engine.batches(given), first):
        yield number
        (loop.items(batch["item"]) - batch["item"][:, None] % 7).pow(2).sum().backward()
        if number % every == every - 1:
            loop.rows.step()
            loop.rows.zero_grad()


def rows_after(given, keys=200, **options):
    loop = Loop(**options)
    with loop.engine:
        for _ in accumulated(loop, given):
            pass
        return loop.table(keys)


@pytest.mark.parametrize("sample", [0, 5, NEVER])
@pytest.mark.parametrize("in_flight", [1, 8])
def test_rows_do_not_depend_on_what_is_in_flight(threads, sample, in_flight):
    threads(sample)
    given = key_batches(30)
    assert torch.equal(rows_after(given, in_flight=in_flight), rows_after(given, mode="sync"))


def test_rows_are_those_of_batches_that_are_accumulated_by_the_engine():
    loop, given = Loop(), key_batches(32)
    with loop.engine as engine:
        for number, batch in enumerate(engine.batches(given, accumulate=4)):
            (loop.items(batch["item"]) - batch["item"][:, None] % 7).pow(2).sum().backward()
            if number % 4 == 3:
                loop.rows.step()
                loop.rows.zero_grad()
        assert torch.allclose(loop.table(), rows_after(given), rtol=0, atol=1e-6)


def test_rows_on_disk_are_those_in_memory(tmp_path):
    given = key_batches(40, keys=600, most=6)
    options = {"dimension": 64, "optimizer": mt.Adam}
    expected = rows_after(given, 600, **options)
    loop = Loop(memory=20 * (4096 + 77), path=tmp_path, in_flight=4, **options)
    with loop.engine:
        for _ in accumulated(loop, given):
            pass
    assert torch.equal(loop.table(600), expected)
    loop.items.table.close()


def test_batches_are_read_ahead_again_when_gradients_were_dropped(threads, monkeypatch):
    """Skipped steps cost a new pipeline each; steps after several batches cost one in all."""
    made, lay, ways = [], OneLoop._lay, []
    monkeypatch.setattr(OneLoop, "_lay", lambda self, first: (made.append(first), lay(self, first))[1])
    loop = Loop(in_flight=4)
    with loop.engine as engine:
        for number, batch in enumerate(engine.batches(key_batches(20))):
            loop.rows.zero_grad()
            loop.items(batch["item"]).sum().backward()
            ways.append(isinstance(engine._loop._way, Beside))
            if number not in (5, 12):
                loop.rows.step()
        assert len(made) == 3 and ways == [number not in (6, 13) for number in range(20)]
        made.clear()
        loop.rows.zero_grad()
        for _ in accumulated(loop, key_batches(30)):
            pass
        assert len(made) == 2 and not engine._loop


@pytest.mark.parametrize("by", ["save", "break"])
@pytest.mark.parametrize("stopped_at", [2, 3, 9])
def test_a_checkpoint_goes_on_with_the_first_batch_that_waits(tmp_path, by, stopped_at):
    given = key_batches(18)
    loop = Loop(in_flight=3)
    with loop.engine as engine:
        for number in accumulated(loop, given):
            if number == stopped_at:
                if by == "break":
                    break
                engine.save(tmp_path)
        if by != "save":
            engine.save(tmp_path)
    resumed = Loop(in_flight=1)
    with resumed.engine as engine:
        assert engine.load(tmp_path)
        first = stopped_at // 4 * 4
        assert [*accumulated(resumed, given, first=first)] == [*range(first, 18)]
    assert torch.equal(resumed.table(), rows_after(given))


def epochs(loop, given, first, saves):
    """Two epochs, each of which drops the gradients that are left at its end; `saves` after the first."""
    for epoch in range(first, 2):
        assert len([*accumulated(loop, given)]) == len(given)
        if epoch == 0 and saves:
            with pytest.raises(InputError, match="of a pass before, wait for a step"):
                loop.engine.save(saves)
        loop.rows.zero_grad()
        if epoch == 0 and saves:
            loop.engine.save(saves)


@pytest.mark.parametrize("in_flight, count", [(1, 6), (3, 6), (3, 5)])
def test_an_epoch_whose_last_gradients_were_dropped_is_at_its_end(tmp_path, in_flight, count):
    given, tables = key_batches(count), []
    for saves, first in ((None, 0), (tmp_path, 0), (None, 1)):
        loop = Loop(in_flight=in_flight)
        with loop.engine as engine:
            assert not first or engine.load(tmp_path)
            epochs(loop, given, first, saves)
            tables.append(loop.table())
    assert torch.equal(tables[0], tables[1]) and torch.equal(tables[0], tables[2])


def test_a_batch_whose_gradients_were_dropped_is_not_trained_again(tmp_path):
    loop, given = Loop(), key_batches(6)
    with loop.engine as engine:
        for number in accumulated(loop, given, every=99):
            if number == 3:
                loop.rows.zero_grad()
                engine.save(tmp_path)
                break
    resumed = Loop()
    with resumed.engine as engine:
        assert engine.load(tmp_path) and [*accumulated(resumed, given, first=3)] == [3, 4, 5]


def test_a_checkpoint_drops_what_waits_where_it_is_loaded(tmp_path):
    loop = Loop()
    with loop.engine as engine:
        engine.save(tmp_path)
        for _ in accumulated(loop, key_batches(2)):
            pass
        assert loop.items.served.left is not None and engine.load(tmp_path) and loop.items.served.left is None


def test_tables_step_at_times_of_their_own():
    ours = Ours()
    plain = Plain(ours)
    ours.engine.close()
    own = [[mt.Adagrad(each, lr=0.1) for each in (ours.model.items, ours.model.users)], ours.model, None]
    other = [[torch.optim.Adagrad(each.parameters(), lr=0.1) for each in (plain.model.items, plain.model.users)]]

    def run(optimizers, of, drawn):
        for number, batch in enumerate(drawn):
            loss_of(of, batch).backward()
            for every, each in zip((2, 3), optimizers, strict=True):
                if number % every == every - 1:
                    each.step()
                    each.zero_grad()

    with mt.Engine(ours.model, {"items": "item", "users": "user"}, own[0], in_flight=4) as engine:
        run(own[0], ours, engine.batches(batches(14)))
        run(other[0], plain, batches(14))
        assert all(torch.allclose(*pair, atol=1e-6) for pair in zip(ours.tables(), plain.tables(), strict=True))


def test_too_many_batches_that_wait_are_told(monkeypatch):
    monkeypatch.setattr(unstepped, "MOST", 3)
    loop, seen = Loop(), []
    with loop.engine as engine, pytest.raises(InputError) as error:
        for batch in engine.batches(key_batches(9)):
            seen.append(loop.items(batch["item"]).sum().backward())
    line = "table '0': rows have the gradients of 3 batches, and no step has used them: call the row optimizer's step"
    assert line in str(error.value) and len(seen) == 3


def test_over_several_processes_nothing_waits(monkeypatch):
    monkeypatch.setattr(LoopStep, "rows_type", SharedRows)
    loop = Loop(mode="sync")
    with loop.engine as engine:
        batches = engine.batches(key_batches(4))
        loop.items(next(batches)["item"]).sum().backward()
        with pytest.raises(InputError, match="several processes, and their gradients are averaged after the step"):
            mt.clip_grad_norm_(loop.model, 1.0)
        batch = next(batches)
        with pytest.raises(InputError, match=re.escape("over several processes engine.batches(loader, accumulate=N)")):
            loop.items(batch["item"]).sum().backward()
        with pytest.raises(InputError, match="adds up those of N batches"):
            loop.rows.step()
        loop.rows.zero_grad()
        loop.items(batch["item"]).sum().backward()


def test_over_several_processes_values_are_changed_by_steps_alone(monkeypatch):
    monkeypatch.setattr(LoopStep, "rows_type", SharedRows)
    with (loop := Loop(mode="sync")).engine as engine:
        batches = engine.batches(key_batches(3))
        next(batches)
        loop.rows.param_groups[0]["params"][0].data += 1
        batch = next(batches)
        with pytest.raises(InputError, match="values of rows were changed beside a step: over several processes only"):
            loop.items(batch["item"]).sum().backward()


@pytest.mark.parametrize("drop", [lambda loop: loop.rows.zero_grad(), lambda loop: loop.items.zero_grad()])
def test_gradients_are_dropped_between_two_loops(drop):
    loop, given = Loop(), key_batches(8)
    with loop.engine:
        for _ in accumulated(loop, given[:3]):
            pass
        drop(loop)
        for _ in accumulated(loop, given):
            pass
    assert torch.equal(loop.table(), rows_after(given))


def test_what_is_refused_stays_so_until_it_is_dropped():
    loop = Loop()
    with loop.engine as engine:
        for number, batch in enumerate(engine.batches(key_batches(6))):
            if number == 0:
                loop.items(batch["item"]).sum().backward()
                loop.rows.step()
            if number == 2:
                with pytest.raises(InputError, match="still have the gradients of batch 0, which a step has used"):
                    loop.rows.step()
            if number == 3:
                loop.rows.zero_grad()
                loop.items(batch["item"]).sum().backward()


def test_an_error_of_a_batch_that_was_planned_ahead_is_raised(monkeypatch):
    read = LocalRows.read

    def failing(self, batch):
        if batch.batch_index == 3:
            raise OSError("read")
        return read(self, batch)

    monkeypatch.setattr(LocalRows, "read", failing)
    loop = Loop(in_flight=8)
    with pytest.raises(OSError, match="read"), loop.engine:
        for _ in accumulated(loop, key_batches(9)):
            pass


def lines_of_a_loop(line, expected):
    loop, steps = Loop(in_flight=2), -1
    with interrupted_at(line) as left, contextlib.suppress(KeyboardInterrupt), loop.engine:
        for number in accumulated(loop, key_batches(5), every=2):
            steps = number
    loop.engine.close()
    assert any(torch.equal(loop.table(), rows) for rows in expected[max(steps, 0) // 2 :][:2])
    return left[0]


@pytest.mark.parametrize("sample", [0, NEVER])
@pytest.mark.parametrize("first, step", [pytest.param(1, 9, marks=pytest.mark.slow), (3, 61)])
def test_ctrl_c_at_any_line_leaves_whole_steps_and_no_thread(threads, sample, first, step):
    threads(sample)
    expected = []
    for count in (0, 2, 4):
        with (loop := Loop(mode="sync")).engine:
            for _ in accumulated(loop, key_batches(5)[:count], every=2):
                pass
        expected.append(loop.table())
    lines = 100_000 - lines_of_a_loop(100_000, expected)
    for line in range(first, lines, step):
        assert lines_of_a_loop(line, expected) <= 0


@pytest.mark.parametrize("optimizer", ["SGD", "Adagrad"])
@pytest.mark.parametrize("every", [1, 3])
def test_weight_decay_is_torchs_where_all_rows_are_looked_up(optimizer, every):
    ours = Ours(optimizer, decay=0.3)
    plain = Plain(ours, optimizer, decay=0.3)
    whole = [{**batch, "item": torch.arange(KEYS), "user": torch.arange(KEYS)} for batch in batches(9, size=KEYS)]
    with ours.engine:
        for of in (ours, plain):
            for number, batch in enumerate(of.batches(whole)):
                loss_of(of, batch).backward()
                if number % every == every - 1:
                    of.rows.step()
                    of.rows.zero_grad()
        assert all(torch.allclose(*pair, atol=1e-6) for pair in zip(ours.tables(), plain.tables(), strict=True))


@pytest.mark.parametrize("optimizer", [mt.SGD, mt.Adagrad, mt.Adam])
def test_weight_decay_is_of_rows_that_were_looked_up_since_zero_grad(optimizer):
    items = mt.Embedding(4, padding_idx=9)
    rows = optimizer([{"params": items, "weight_decay": 0.5}], lr=0.1)
    before = None
    with mt.Engine(items, {items: 0}, [rows]) as engine:
        for number, (keys,) in enumerate(engine.batches([[torch.tensor(each)] for each in ([0, 9], [1, 9], [2], [3])])):
            leaf = rows.param_groups[0]["params"][0]
            (items(keys) * 0).sum().backward()
            if number == 1:
                before = leaf.detach().clone()
                rows.step()
                moved = (leaf != before).any(1).tolist()
                assert moved == [True, False, True], "key 1, the padding, and key 0 of the batch before"
            if number != 2:
                rows.zero_grad()
            if number == 0:
                (items(keys) * 1).sum().backward()
            if number == 3:
                assert rows.param_groups[0]["weight_decay"] == 0.5
                rows.step()
                assert len(leaf) == 1 or not (leaf != leaf.detach()).any()


def test_clipping_takes_a_model_an_engine_or_a_list():
    norms = []
    for given in (lambda of: of.model, lambda of: of.engine, lambda of: [of.model.items, of.model.users, *own(of)]):
        ours = Ours()
        with ours.engine:
            drawn = ours.batches(batches(1))
            loss_of(ours, next(drawn)).backward()
            norms.append([mt.clip_grad_norm_(given(ours), 0.1, norm_type).item() for norm_type in (2, torch.inf)])
    assert norms[0] == norms[1] == pytest.approx(norms[2]) and norms[0][0] > 0.1 > norms[0][1]
    with pytest.raises(InputError, match="clip_grad_norm_: a model, or a list of modules and tensors, not 3"):
        mt.clip_grad_norm_([3], 1.0)
    with pytest.raises(InputError, match="what is clipped must be a list, not 'int'"):
        mt.clip_grad_norm_(3, 1.0)


def own(of):
    return of.model.out.parameters()


def test_a_table_has_a_length():
    items = mt.Embedding(4)
    model = nn.Sequential(items)
    assert len(items) == 0 and items
    with mt.Engine(model, {items: 0}, [mt.SGD(model)]) as engine:
        for _ in engine.batches([[torch.tensor([1, 5, 1])], [torch.tensor([7])]]):
            pass
        assert len(items) == 3
    assert len(mt.convert(Network(nn.Embedding(6, 2), nn.Embedding(3, 2))).items) == 6


def test_an_engine_that_nobody_has_sees_no_optimizer():
    hooks = len(torchs._global_optimizer_post_hooks)
    closed, dropped = Loop(), Loop()
    assert len(torchs._global_optimizer_post_hooks) == hooks + 2
    closed.engine.close()
    table = weakref.ref(dropped.items.table)
    del dropped
    gc.collect()
    assert table() is None and len(torchs._global_optimizer_post_hooks) == hooks


def test_gradients_that_were_given_by_hand_wait():
    with (loop := Loop(optimizer=mt.SGD, lr=1.0, std=0.0)).engine as engine:
        for number, _ in enumerate(
            engine.batches([{"item": torch.arange(4 * each, 4 * each + 4)} for each in range(3)])
        ):
            (leaf,) = loop.rows.param_groups[0]["params"]
            leaf.grad = torch.ones_like(leaf) if leaf.grad is None else leaf.grad + 1
            if number == 1:
                loop.rows.step()
                loop.rows.zero_grad()
        assert loop.table(12)[:, 0].tolist() == [-2.0] * 4 + [-1.0] * 4 + [0.0] * 4


def test_another_optimizer_of_known_parameters_may_step(tmp_path):
    """As one that another one wraps."""
    ours = Ours()
    with ours.engine as engine:
        other = torch.optim.SGD(ours.model.out.parameters(), lr=0.1)
        other.step()
        engine.save(tmp_path)
        assert engine.load(tmp_path)


def test_clipping_without_rows_is_told_after_a_backward_that_failed():
    ours, failed = Ours(), []
    with ours.engine:
        for batch in ours.batches(batches(2)):
            if not failed:
                ours.rows.param_groups[0]["params"][1].register_hook(lambda gradient: failed.append(1 / 0))
                with pytest.raises(ZeroDivisionError):
                    loss_of(ours, batch).backward()
                failed.append(True)
                ours.rows.zero_grad()
                continue
            loss_of(ours, batch).backward()
            nn.utils.clip_grad_norm_(ours.model.parameters(), 0.1)
            with pytest.warns(UserWarning, match=r"model.parameters\(\) has no rows"):
                ours.rows.step()
