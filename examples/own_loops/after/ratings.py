"""Predicts ratings from user, movie and the movies that the user has rated before: a plain loop in torch."""

import torch
from torch import nn

import marius_oac.torch as mt
from examples.own_loops import data

NONE = data.MOVIES  # stands for a movie where a user has rated fewer


class Rating(nn.Module):
    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleDict({
            "user": mt.Embedding(16),
            "movie": mt.Embedding(16),
            "before": mt.EmbeddingBag(16, mode="mean", padding_idx=NONE),
        })  # fmt: skip
        self.network = nn.Sequential(nn.Linear(48, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 1))

    def forward(self, user, movie, before):
        user, movie, before = self.tables["user"](user), self.tables["movie"](movie), self.tables["before"](before)
        return 3.5 + self.network(torch.cat([user, user * movie, before * movie], 1))[:, 0]


def with_history(user, movie, rating, length=8):
    """Adds the last movies that the user has rated before each rating, int64 [n, length]."""
    last = [[NONE] * length for _ in range(data.USERS)]
    before = []
    for one, other in zip(user.tolist(), movie.tolist(), strict=True):
        before.append(last[one])
        last[one] = [*last[one][1:], other]
    return user, movie, torch.tensor(before), rating


@torch.no_grad()
def error(model, user, movie, before, rating):
    """The root of the mean squared error."""
    model.eval()
    return nn.functional.mse_loss(model(user, movie, before), rating).sqrt().item()


def main(workers=0, epochs=3):
    torch.manual_seed(0)
    columns = with_history(*data.ratings())
    end = len(columns[0]) * 9 // 10
    loader = data.loader([each[:end] for each in columns], 256, workers)
    model = Rating()
    rows = mt.Adagrad(model.tables, lr=0.1)
    dense = torch.optim.Adam(model.network.parameters(), lr=0.003)
    keys = {"tables.user": 0, "tables.movie": 1, "tables.before": 2}
    with mt.Engine(model, keys, optimizers=[rows, dense]) as engine:
        for _ in range(epochs):
            for user, movie, before, rating in engine.batches(loader):
                nn.functional.mse_loss(model(user, movie, before), rating).backward()
                rows.step()
                dense.step()
                rows.zero_grad()
                dense.zero_grad()
    return model, error(model, *(each[end:] for each in columns))


if __name__ == "__main__":
    print(f"RMSE: {main()[1]:.3f}")
