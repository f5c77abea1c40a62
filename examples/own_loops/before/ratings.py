"""Predicts ratings from user, movie and the movies that the user has rated before: a plain loop in torch."""

import torch
from torch import nn

from examples.own_loops import data

NONE = data.MOVIES  # stands for a movie where a user has rated fewer


class Rating(nn.Module):
    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleDict({
            "user": nn.Embedding(data.USERS, 16, sparse=True),
            "movie": nn.Embedding(data.MOVIES, 16, sparse=True),
            "before": nn.EmbeddingBag(data.MOVIES + 1, 16, mode="mean", sparse=True, padding_idx=NONE),
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
    rows = torch.optim.Adagrad(model.tables.parameters(), lr=0.1)
    dense = torch.optim.Adam(model.network.parameters(), lr=0.003)
    for _ in range(epochs):
        for user, movie, before, rating in loader:
            nn.functional.mse_loss(model(user, movie, before), rating).backward()
            rows.step()
            dense.step()
            rows.zero_grad()
            dense.zero_grad()
    return model, error(model, *(each[end:] for each in columns))


if __name__ == "__main__":
    print(f"RMSE: {main()[1]:.3f}")
