"""A loop that is saved, killed and resumed: `python -m tests.own_loop.resumed FOLDER KILLED_AT
[DISK]`, with rows in files in folder DISK if it is given."""

import os
import random
import signal
import sys

import numpy as np
import torch
from torch import nn

import marius_oac.torch as mt
from tests.own_loop.loops import key_batches

BATCHES = 12


class Stateful:
    """A loader that knows where it is, as torchdata's do, and draws from the global generators."""

    def __init__(self):
        self.next = 0

    def __iter__(self):
        batches = key_batches(BATCHES)
        while self.next < len(batches):
            self.next += 1
            yield drawing(batches[self.next - 1])
        self.next = 0

    def state_dict(self):
        return {"next": self.next}

    def load_state_dict(self, state):
        self.next = state["next"]


def drawing(batch):
    return {**batch, "drawn": random.random() + np.random.rand() + float(torch.rand(()))}


def shuffled():
    return torch.utils.data.DataLoader(key_batches(BATCHES), batch_size=None, shuffle=True, collate_fn=drawing)


LOADERS = {"stateful": Stateful, "shuffled": shuffled, "generator": lambda: map(drawing, key_batches(BATCHES))}


class Training:
    """Two passes over a loader, with dropout, a schedule and a count of passes."""

    def __init__(self, loader="stateful", in_flight=4, rows=mt.Adagrad, **place):
        random.seed(1), np.random.seed(1), torch.manual_seed(1)
        self.items = mt.Embedding(4, **place)
        self.model = nn.Sequential(self.items, nn.Dropout(0.3), nn.Linear(4, 1))
        self.rows, self.dense = rows(self.model, lr=0.3), torch.optim.Adam(self.model.parameters(), lr=0.01)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.rows, 4, gamma=0.8)
        self.losses, self.passes, self.loader = [], 0, LOADERS[loader]
        self.engine = mt.Engine(
            self.model,
            keys={self.items: "item"},
            optimizers=[self.rows, self.dense],
            stateful=[self.scheduler, self],
            in_flight=in_flight,
        )

    def state_dict(self):
        return {"losses": self.losses, "passes": self.passes}

    def load_state_dict(self, state):
        self.losses, self.passes = state["losses"], state["passes"]

    def train(self, batch):
        loss = (self.model(batch["item"]) - batch["drawn"]).pow(2).mean()
        loss.backward()
        for each in (self.rows, self.dense):
            each.step()
            each.zero_grad()
        self.scheduler.step()
        self.losses.append(loss.item())

    def run(self, after=lambda count: None, passes=2):
        """Trains; calls `after` with the number of losses after each batch. Returns whether it ended."""
        while self.passes < passes:
            for batch in self.engine.batches(self.loader()):
                self.train(batch)
                if after(len(self.losses)):
                    return False
            self.passes += 1
        return True

    def result(self):
        """Losses, rows and parameters."""
        self.model.eval()
        rows = self.items(torch.arange(200))
        self.model.train()
        return [torch.tensor(self.losses), rows, *(each.detach().clone() for each in self.model.parameters())]


def equal(one, other):
    return all(torch.equal(*pair) for pair in zip(one, other, strict=True))


def main(folder, killed_at, disk=None):
    training = Training(**({"memory": 9 * 4173, "path": disk} if disk else {}))

    def after(count):
        if count % 4 == 0:
            training.engine.save(folder)
        if count == killed_at:
            os.kill(os.getpid(), signal.SIGKILL)

    with training.engine as engine:
        engine.load(folder)
        training.run(after)
    torch.save(training.result(), os.path.join(folder, "result.pt"))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
