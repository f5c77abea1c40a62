"""Gradients between backward and step, against torch's tables: clipped, scaled, skipped, and those of padding."""

import pytest
import torch
from torch import nn

import marius_oac.torch as mt
from marius_oac.errors import InputError
from tests.own_loop.loops import Loop, key_batches

KEYS = 30


class Pair:
    """The same network over a table of ours and over one of torch's, with dense gradients."""

    def __init__(self, optimizer=mt.Adagrad, theirs=torch.optim.Adagrad, kind="Embedding", padding=None, **given):
        own = {"padding_idx": padding, **given}
        self.items = getattr(mt, kind)(4, **own)
        self.plain = getattr(nn, kind)(KEYS, 4, **own)
        torch.manual_seed(3)
        self.out = nn.Linear(4, 1)
        self.model = nn.ModuleList([self.items])
        self.rows = optimizer(self.model, lr=0.1)
        self.engine = mt.Engine(self.model, keys={self.items: "item"}, optimizers=[self.rows])
        self.plain.weight.data.copy_(self.table())
        self.theirs = theirs([self.plain.weight], lr=0.1)

    def table(self):
        """Our rows of all keys."""
        self.model.eval()
        shape = (KEYS, 1) if isinstance(self.items, mt.EmbeddingBag) else (KEYS,)
        found = self.items(torch.arange(KEYS).view(shape)).clone()
        self.model.train()
        return found

    def train(self, batches, step):
        """Calls `step(batch, table, optimizer)` with ours and theirs for each batch, and compares all rows."""
        with self.engine:
            for batch in self.engine.batches(batches):
                step(batch, self.items, self.rows)
                step(batch, self.plain, self.theirs)
        assert torch.allclose(self.table(), self.plain.weight.data, rtol=1e-6, atol=1e-6)

    def loss(self, batch, table):
        return (self.out(table(batch["item"])) - batch["item"].sum() % 5).pow(2).sum()


def test_gradients_of_all_rows_are_clipped_by_their_norm():
    pair, norms = Pair(), []

    def step(batch, table, optimizer):
        optimizer.zero_grad()
        pair.loss(batch, table).backward()
        norms.append(float(nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], 0.5)))
        optimizer.step()

    pair.train(key_batches(40, keys=KEYS), step)
    assert min(norms) > 0.5 and norms[::2] == pytest.approx(norms[1::2], rel=1e-5)


def test_what_is_named_twice_is_clipped_once():
    pair = Pair()
    both = nn.ModuleList([pair.items, pair.out])
    with pair.engine as engine:
        for batch in engine.batches(key_batches(1, keys=KEYS)):
            pair.loss(batch, pair.items).backward()
            leaf = pair.rows.param_groups[0]["params"][0]
            norm = torch.stack([each.grad.norm() for each in (leaf, *pair.out.parameters())]).norm()
            for given in (both, [both, pair.items, pair.out], [both, leaf]):
                assert torch.allclose(mt.clip_grad_norm_(given, 2.0 * norm.item()), norm)


def test_a_scaler_skips_the_rows_of_a_step_whose_gradients_overflow():
    pair = Pair()
    scalers = {each: torch.amp.GradScaler("cpu", init_scale=8.0) for each in (pair.items, pair.plain)}
    number = dict.fromkeys(scalers, 0)

    def step(batch, table, optimizer):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = pair.loss(batch, table)
        overflows = number[table] in (3, 11)
        scaler = scalers[table]
        scaler.scale(loss * (float("inf") if overflows else 1)).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], 2.0)
        rows = optimizer.param_groups[0]["params"][0].detach().clone()
        scaler.step(optimizer)
        scaler.update()
        assert torch.equal(rows, optimizer.param_groups[0]["params"][0].detach()) == overflows
        number[table] += 1

    pair.train(key_batches(20, keys=KEYS), step)
    assert scalers[pair.items].get_scale() == scalers[pair.plain].get_scale() == 2.0


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
@pytest.mark.parametrize("kind", ["Embedding", "EmbeddingBag"])
@pytest.mark.parametrize("optimizer", ["Adagrad", "Adam"])
def test_a_padding_key_is_nothing_and_stays_so(kind, optimizer):
    theirs = torch.optim.SparseAdam if optimizer == "Adam" else torch.optim.Adagrad
    mode = {} if kind == "Embedding" else {"mode": "mean"}
    pair = Pair(getattr(mt, optimizer), theirs, kind, padding=7, **mode)
    sparse = getattr(nn, kind)(KEYS, 4, padding_idx=7, sparse=True, **mode)
    sparse.weight.data.copy_(pair.table())
    assert not pair.table()[7].any()
    pair.plain, pair.theirs = sparse, theirs([sparse.weight], lr=0.1)
    draw = torch.Generator().manual_seed(1)
    batches = [{"item": torch.randint(0, 12, (5, 4), generator=draw)} for _ in range(30)]

    def step(batch, table, optimizer):
        optimizer.zero_grad()
        pair.loss(batch, table).backward()
        optimizer.step()

    pair.train(batches, step)
    assert not pair.table()[7].any()


def test_adam_leaves_rows_as_they_are_that_the_model_has_not_looked_up():
    loop = Loop(optimizer=mt.Adam)
    with loop.engine as engine:
        for number, batch in enumerate(engine.batches([{"item": torch.tensor([1, 2, 3])}] * 3)):
            rows = loop.rows.param_groups[0]["params"][0].detach().clone()
            keys = batch["item"] if number == 0 else batch["item"][:2].clone()
            with torch.no_grad():
                loop.items(batch["item"])
            loop.items(keys).sum().backward()
            loop.rows.step()
            changed = (rows != loop.rows.param_groups[0]["params"][0]).any(1)
            assert changed.tolist() == [True, True, number == 0]
            loop.rows.zero_grad()


def test_adam_counts_the_steps_of_each_table_alone():
    with (loop := Loop(optimizer=mt.Adam)).engine as engine:
        for number, batch in enumerate(engine.batches(key_batches(9))):
            if number % 3:
                loop.train(batch)
            elif number == 3:
                break
        assert loop.rows.param_groups[0]["steps"] == [2]
        for batch in engine.batches(key_batches(2)):
            loop.train(batch)
    assert loop.rows.param_groups[0]["steps"] == [4]


@pytest.mark.parametrize("accumulate", [2, 3, 50])
def test_gradients_of_several_batches_add_up_before_a_step(accumulate):
    pair, batches = Pair(), key_batches(20, keys=KEYS)
    with pair.engine as engine:
        for number, batch in enumerate(engine.batches(batches, accumulate=accumulate), 1):
            for table, optimizer in ((pair.items, pair.rows), (pair.plain, pair.theirs)):
                pair.loss(batch, table).backward()
                if number % accumulate == 0 or number == len(batches):
                    optimizer.step()
                    optimizer.zero_grad()
    assert torch.allclose(pair.table(), pair.plain.weight.data, rtol=1e-6, atol=1e-6)


def test_several_batches_of_one_step_are_saved_and_resumed_together(tmp_path):
    def run(stopped_at, *, resume=False, in_flight=3):
        loop = Loop(in_flight=in_flight)
        with loop.engine as engine:
            first = 1
            if resume:
                engine.load(tmp_path)
                first = 1 + 3 * (stopped_at // 3)
                stopped_at = 0
            for number, batch in enumerate(engine.batches(key_batches(20), accumulate=3), first):
                loop.items(batch["item"]).pow(2).sum().backward()
                if number % 3 == 0 or number == 20:
                    loop.rows.step()
                    loop.rows.zero_grad()
                if number == stopped_at:
                    engine.save(tmp_path)
                    break
        return loop.table()

    whole = run(0)
    for stopped_at in (9, 10):
        run(stopped_at)
        assert torch.equal(run(stopped_at, resume=True, in_flight=1), whole)


def test_an_error_of_the_loader_comes_after_batches_that_are_not_enough_for_a_step():
    def loader():
        yield from key_batches(5)
        raise OSError("no more")

    loop, seen = Loop(), 0
    with loop.engine as engine, pytest.raises(OSError, match="no more"):
        for batch in engine.batches(loader(), accumulate=4):
            loop.train(batch)
            seen += 1
    assert seen == 5


def test_accumulate_is_a_number():
    with (
        (loop := Loop()).engine as engine,
        pytest.raises(InputError, match="accumulate must be a number of at least 1"),
    ):
        engine.batches([], accumulate=0)
    assert loop


def test_values_that_are_changed_between_two_steps_of_a_batch_stay_changed():
    pair = Pair()

    def step(batch, table, optimizer):
        for _ in range(2):
            optimizer.zero_grad()
            pair.loss(batch, table).backward()
            with torch.no_grad():
                if table is pair.items:
                    optimizer.param_groups[0]["params"][0].mul_(0.9)
                else:
                    table.weight[batch["item"].unique()] *= 0.9
            optimizer.step()

    pair.train(key_batches(20, keys=KEYS), step)


def test_a_graph_that_has_the_values_from_before_a_step_is_refused():
    loop = Loop()
    with loop.engine as engine:
        for batch in engine.batches(key_batches(3)):
            leaf = loop.rows.param_groups[0]["params"][0]
            kept = (leaf * leaf).sum()
            loop.train(batch)
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                kept.backward()


def test_rows_that_are_updated_use_the_memory_of_the_batch_before():
    loop, seen = Loop(), []
    with loop.engine as engine:
        for batch in engine.batches(key_batches(1) * 4):
            loop.train(batch)
            seen.append(loop.items.rows._whole.ctypes.data)
    assert len({*seen}) == 1


def test_a_zero_whose_sign_is_changed_beside_a_step_is_taken_over():
    loop = Loop()
    with loop.engine as engine:
        for _, zero in zip(engine.batches([{"item": torch.tensor([1, 2])}] * 2), (0.0, -0.0), strict=True):
            loop.rows.param_groups[0]["params"][0].data.fill_(zero)
    assert torch.signbit(loop.table()[1:3]).all()
