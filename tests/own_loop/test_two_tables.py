"""An engine of several tables: what one of them has gone through counts for all."""

import torch

import marius_oac.torch as mt
from tests.own_loop.loops import Loop, key_batches


def both(loop, users, lr=0.1):
    """An engine of the loop's table and another one, of which a batch has the same keys."""
    loop.engine.close()
    model = torch.nn.ModuleList([loop.items, users])
    rows = mt.SGD(model, lr=lr)
    keys = {loop.items: "item", users: "item"}
    return rows, mt.Engine(model, keys=keys, optimizers=[rows])


def test_batches_are_numbered_after_those_of_the_table_that_has_seen_most():
    loop, users = Loop(optimizer=mt.SGD), mt.Embedding(4)
    with loop.engine as engine:
        for batch in engine.batches(key_batches(5)):
            loop.train(batch)
    rows, engine = both(loop, users)
    with engine:
        for batch in engine.batches(key_batches(2)):
            (loop.items(batch["item"]).sum() + users(batch["item"]).sum()).backward()
            rows.step()
            rows.zero_grad()
    assert [table.next_timestamp for table in engine.tables] == [7, 7]


def test_a_batch_of_which_one_table_alone_is_trained_is_handed_back_where_it_is_saved(tmp_path):
    found = []
    for saves in (False, True):
        loop, users = Loop(optimizer=mt.SGD), mt.Embedding(4)
        rows, engine = both(loop, users)
        with engine:
            assert engine.load(tmp_path / "none") is False
            for batch in engine.batches(key_batches(3)):
                loop.items(batch["item"]).sum().backward()
                rows.step()
                rows.zero_grad()
                if saves:
                    engine.save(tmp_path / "saved")
        if saves:
            loop, users = Loop(optimizer=mt.SGD), mt.Embedding(4)
            rows, engine = both(loop, users)
            with engine:
                assert engine.load(tmp_path / "saved") is True
        found.append(loop.table())
    assert torch.equal(*found)
