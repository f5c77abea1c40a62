"""Loops over small tables, which many tests of a user's own loop run."""

import contextlib
import faulthandler

import torch

import marius_oac.torch as mt

PATIENCE = 30


@contextlib.contextmanager
def patience():
    """What hangs ends the process, with every thread's stack."""
    faulthandler.dump_traceback_later(PATIENCE, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def key_batches(count, keys=200, most=24, seed=0):
    """Batches of 1 to `most` keys each; those of a smaller count come first."""
    draw = torch.Generator().manual_seed(seed)

    def below(end, size):
        return torch.randint(0, end, (size,), generator=draw)

    return [{"item": below(keys, 1 + int(below(most, 1)))} for _ in range(count)]


class Loop:
    """A model of one table, with an engine."""

    def __init__(self, in_flight=4, mode="oac", lr=0.1, optimizer=mt.Adagrad, dimension=4, **given):
        self.items = mt.Embedding(dimension, **given)
        self.model = torch.nn.Sequential(self.items)
        self.rows = optimizer(self.model, lr=lr)
        self.engine = mt.Engine(
            self.model, keys={self.items: "item"}, optimizers=[self.rows], in_flight=in_flight, mode=mode
        )

    def train(self, batch):
        loss = (self.items(batch["item"]) - batch["item"][:, None] % 7).pow(2).sum()
        loss.backward()
        self.rows.step()
        self.rows.zero_grad()
        return loss.item()

    def table(self, keys=200):
        """Rows of the keys below `keys`, float32 [keys, dimension]."""
        self.model.eval()
        found = self.items(torch.arange(keys)).clone()
        self.model.train()
        return found


def trained(batches, **given):
    """The rows after a plain run over the batches."""
    loop = Loop(**given)
    with loop.engine as engine:
        for batch in engine.batches(batches):
            loop.train(batch)
    return loop.table()


def after(count, **given):
    """Rows after the first `count` batches, trained one at a time."""
    return trained(key_batches(count), mode="sync", **given)
