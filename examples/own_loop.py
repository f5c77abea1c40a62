"""A recommender in a plain torch loop whose tables are this package's: `python examples/own_loop.py`.

Users and items are any int64 keys; tables grow with the keys that they see. The data are drawn here: a user likes an
item if both have the same remainder.
"""

import torch
from torch import nn

import marius_oac.torch as mt


class Recommender(nn.Module):
    def __init__(self, items, users):
        super().__init__()
        self.items, self.users = items, users
        self.network = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, batch):
        vectors = torch.cat([self.items(batch["item"]), self.users(batch["user"])], 1)
        return self.network(vectors)[:, 0]


def loader(batches, size=128, seed=1):
    draw = torch.Generator().manual_seed(seed)
    for _ in range(batches):
        item = torch.randint(0, 200, (size, 1), generator=draw)
        user = torch.randint(0, 200, (size,), generator=draw)
        yield {"item": item, "user": user, "liked": (item[:, 0] % 2 == user % 2).float()}


def main(batches=600):
    torch.manual_seed(0)
    items, users = mt.EmbeddingBag(16), mt.Embedding(16, seed=1)
    model = Recommender(items, users)
    rows, dense = mt.Adagrad(model, lr=0.2), torch.optim.Adam(model.parameters())
    losses = []
    keys = {items: "item", users: lambda batch: batch["user"]}
    with mt.Engine(model, keys=keys, optimizers=[rows, dense], in_flight=8) as engine:
        for batch in engine.batches(loader(batches)):
            loss = nn.functional.binary_cross_entropy_with_logits(model(batch), batch["liked"])
            loss.backward()
            rows.step()
            dense.step()
            rows.zero_grad()
            dense.zero_grad()
            losses.append(loss.item())
    model.eval()
    test = next(loader(1, seed=2))
    right = ((model(test) > 0) == test["liked"].bool()).float().mean().item()
    return losses, right


if __name__ == "__main__":
    losses, right = main()
    print(f"loss {losses[0]:.3f} at first, {losses[-1]:.3f} at last; {right:.0%} of the test batch is right")
