"""Data of the examples: ratings like MovieLens's, the clicks of Frappe and of Criteo, and the graph CoDEx-S."""

import gzip
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

USERS, MOVIES, GENRES = 300, 200, 10


def ratings(count=30_000):
    """Who rated which movie and how: int64 [n], int64 [n] and float32 [n]. Users prefer a genre, and some movies are
    seen more often than others.
    """
    draw = torch.Generator().manual_seed(0)
    popularity = 1 / torch.arange(10, 10 + MOVIES)
    user = torch.randint(USERS, (count,), generator=draw)
    any_movie = torch.multinomial(popularity, count, replacement=True, generator=draw)
    of_genre = any_movie - any_movie % GENRES + user % GENRES  # a movie's genre is its number's last digit
    movie = torch.where(torch.rand(count, generator=draw) < 0.6, of_genre, any_movie)
    liked = 3.0 + 1.2 * (movie % GENRES == user % GENRES) + torch.randn(count, generator=draw) / 2
    return user, movie, (2 * liked).round().clamp(1, 10) / 2


FRAPPE = 5382  # keys, those of all columns together


def frappe(folder, part):
    """The part train, valid or test of Frappe_x1: int64 [n, 10], keys of user, app and context, and float32 [n]."""
    with gzip.open(Path(folder) / f"{part}.csv.gz", "rt") as file:
        rows = np.loadtxt(file, np.int64, delimiter=",", skiprows=1)
    return torch.from_numpy(rows[:, 1:].copy()), torch.from_numpy(rows[:, 0].astype(np.float32))


def criteo(folder):
    """Criteo's clicks: float32 [n, 13], log(1 + x) of its numbers; int64 [n, 26], keys of its categories; and clicks,
    float32 [n]. An empty field is 0.
    """
    with gzip.open(Path(folder) / "train.txt.gz", "rt") as file:
        rows = [line.rstrip("\n").split("\t") for line in file]
    numbers = torch.tensor([[max(0, int(field or 0)) for field in row[1:14]] for row in rows])
    keys = torch.tensor([[int(field or "0", 16) for field in row[14:]] for row in rows])
    return numbers.float().log1p(), keys, torch.tensor([float(row[0]) for row in rows])


def codex(folder, part):
    """The part train, valid or test of CoDEx-S: head, relation and tail of each edge, int64 [n, 3]."""
    names = []
    for each in ("train", part):
        with gzip.open(Path(folder) / f"{each}.txt.gz", "rt") as file:
            names.append(np.array([line.split() for line in file]))
    known = [np.unique(names[0][:, columns]) for columns in ([0, 2], [1])]
    return np.stack([np.searchsorted(known[column == 1], names[1][:, column]) for column in range(3)], 1)


def auc(scores, labels):
    """The area under the ROC curve, of float32 [n] and labels 0 or 1."""
    order = torch.argsort(scores, stable=True)
    ranks = torch.empty(len(scores), dtype=torch.float64)
    ranks[order] = torch.arange(1, len(scores) + 1, dtype=torch.float64)
    positive = int(labels.sum())
    above = float(ranks[labels > 0].sum()) - positive * (positive + 1) / 2
    return above / (positive * (len(labels) - positive))


def loader(columns, size, workers=0):
    """Shuffled batches of columns, each a list of tensors. An index of many examples picks them at once."""
    rows = TensorDataset(*columns)
    return DataLoader(rows, None, sampler=BatchSampler(RandomSampler(rows), size, False), num_workers=workers)
