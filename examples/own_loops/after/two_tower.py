"""Retrieval by two towers, with the batch's other items as negatives and logQ correction (Yi et al., "Sampling-bias-
corrected neural modeling for large corpus item recommendations", RecSys 2019).
"""

import torch
from torch import nn

import marius_oac.torch as mt
from examples.own_loops import data


class Frequency(nn.Module):
    """How often an item comes, from the steps since it came last (algorithm 2 of the paper)."""

    def __init__(self, slots=1 << 16, rate=0.05):
        super().__init__()
        self.slots, self.rate = slots, rate
        self.register_buffer("step", torch.tensor(0.0))
        self.register_buffer("last", torch.zeros(slots))
        self.register_buffer("gap", torch.full((slots,), 50.0))

    def log_q(self, items):
        """Of the batch's items, int64 [n], which are counted: float32 [n]."""
        slot = items % self.slots
        self.step += 1
        self.gap[slot] += self.rate * (self.step - self.last[slot] - self.gap[slot])
        self.last[slot] = self.step
        return -self.gap[slot].log()


class TwoTower(nn.Module):
    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleDict({
            "user": mt.Embedding(32),
            "movie": mt.Embedding(32),
        })  # fmt: skip
        self.towers = nn.ModuleDict({name: self.tower() for name in self.tables})
        self.frequency = Frequency()

    @staticmethod
    def tower():
        return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 32))

    def forward(self, name, keys):
        """Unit vectors, float32 [n, 32]."""
        return nn.functional.normalize(self.towers[name](self.tables[name](keys)))


def softmax_loss(users, movies, keys, log_q):
    """Each user's own movie among all of the batch; copies of it are no negatives."""
    logits = users @ movies.T / 0.1 - log_q
    copies = (keys[:, None] == keys) & ~torch.eye(len(keys), dtype=torch.bool)
    return nn.functional.cross_entropy(logits.masked_fill(copies, -1e9), torch.arange(len(keys)))


@torch.no_grad()
def recall(model, users, movies, count=10):
    """How often the movie is among the first `count` of all."""
    model.eval()
    every = model("movie", torch.arange(data.MOVIES))
    best = (model("user", users) @ every.T).topk(count).indices
    return (best == movies[:, None]).any(1).float().mean().item()


def main(workers=0, epochs=2):
    torch.manual_seed(0)
    user, movie, rating = data.ratings()
    user, movie = user[rating >= 4], movie[rating >= 4]
    end = len(user) * 9 // 10
    loader = data.loader([user[:end], movie[:end]], 128, workers)
    model = TwoTower()
    rows = mt.Adagrad(model.tables, lr=0.1)
    dense = torch.optim.Adam(model.towers.parameters())
    keys = {"tables.user": 0, "tables.movie": 1}
    with mt.Engine(model, keys, optimizers=[rows, dense]) as engine:
        for _ in range(epochs):
            for users, movies in engine.batches(loader):
                log_q = model.frequency.log_q(movies)
                softmax_loss(model("user", users), model("movie", movies), movies, log_q).backward()
                rows.step()
                dense.step()
                rows.zero_grad()
                dense.zero_grad()
    return model, recall(model, user[end:], movie[end:])


if __name__ == "__main__":
    print(f"recall@10: {main()[1]:.3f}")
