# %% [markdown]
# # A loop of your own, in plain torch
# Users like items with the same remainder by 2. Keys are any 64-bit integers; the tables grow with what they see.

# %%
import matplotlib.pyplot as plt
import torch
from torch import nn

import marius_oac.torch as mt


class Recommender(nn.Module):
    def __init__(self, embedding):
        super().__init__()
        self.items, self.users = embedding(), embedding(seed=1)
        self.network = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, batch):
        return self.network(torch.cat([self.items(batch["item"]), self.users(batch["user"])], 1))[:, 0]


def loader(batches, seed=1):
    draw = torch.Generator().manual_seed(seed)
    for _ in range(batches):
        item = torch.randint(0, 200, (128,), generator=draw)
        user = torch.randint(0, 200, (128,), generator=draw)
        yield {"item": item * 10**12, "user": user, "liked": (item % 2 == user % 2).float()}


# %% [markdown]
# ## Train, with 1 and with 8 batches in flight


# %%
def train(in_flight, mode="oac"):
    torch.manual_seed(0)
    model = Recommender(lambda seed=0: mt.Embedding(16, seed=seed))
    rows, dense = mt.Adagrad(model, lr=0.2), torch.optim.Adam(model.parameters())
    losses = []
    keys = {"items": "item", "users": "user"}
    with mt.Engine(model, keys=keys, optimizers=[rows, dense], in_flight=in_flight, mode=mode) as engine:
        for batch in engine.batches(loader(300)):
            loss = nn.functional.binary_cross_entropy_with_logits(model(batch), batch["liked"])
            loss.backward()
            rows.step()
            dense.step()
            rows.zero_grad()
            dense.zero_grad()
            losses.append(loss.item())
    return losses, model, engine.lost


one, _, _ = train(1)
eight, model, _ = train(8)
print(one == eight)

# %% [markdown]
# All losses are equal to the last bit: rows that were read too early were replaced. Without that, in mode
# `async`, updates of rows are lost where batches overlap:

# %%
overlapping, _, lost = train(8, mode="async")
print(f"{lost:,} updates of rows were lost")
figure, axis = plt.subplots()
axis.plot(eight, label="oac, 8 in flight")
axis.plot(overlapping, alpha=0.6, label="async, 8 in flight")
axis.set(xlabel="batch", ylabel="loss")
axis.legend()
figure.tight_layout()

# %% [markdown]
# ## Use it
# In eval mode rows are read without the engine's loop.

# %%
model.eval()
test = next(loader(1, seed=2))
((model(test) > 0) == test["liked"].bool()).float().mean().item()
