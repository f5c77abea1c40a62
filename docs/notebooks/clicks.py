# %% [markdown]
# # A click log: probabilities, and whether they are right
# A log of three days whose clicks follow hidden factors of users and items, and a number.

# %%
import json
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import marius_oac
from marius_oac.cli.commands import main

draw = np.random.default_rng(0)
users, items = draw.normal(size=(2, 200, 3))
for day in range(3):
    user, item = draw.integers(200, size=(2, 20_000))
    price = draw.normal(size=20_000)
    logits = 2 * (users[user] * items[item]).sum(1) - price
    click = draw.random(20_000) < 1 / (1 + np.exp(-logits))
    log = pa.table({"user": user, "item": item, "price": price, "click": click})
    pq.write_table(log, f"day_{day}.parquet")
log.slice(0, 3).to_pydict()

# %% [markdown]
# ## Train on the first day, validate on the second, test on the third

# %%
config = marius_oac.Config.build(
    {
        "task": "ctr",
        "data": {
            "train": ["day_0.parquet"],
            "valid": ["day_1.parquet"],
            "test": ["day_2.parquet"],
            "label": "click",
            "numeric": ["price"],
            "categorical": ["user", "item"],
        },
        "model": {"network": "deepfm", "dimension": 8},
        "training": {"epochs": 3, "batch_size": 512},
    }
)
run = marius_oac.train(config, "runs/clicks")
{name: round(run.summary[f"test.{name}"], 4) for name in ("auc", "log_loss")}

# %%
lines = [json.loads(line) for line in Path("runs/clicks/metrics.jsonl").read_text().splitlines()]
auc = [line["auc"] for line in lines if line["kind"] == "evaluation"]
assert len(auc) == 3
figure, axis = plt.subplots()
axis.plot(range(1, len(auc) + 1), auc, marker="o")
axis.set(xlabel="epoch", ylabel="validation AUC")
figure.tight_layout()

# %% [markdown]
# ## Are the probabilities right?
# Of the examples that the model gives a probability of about p, a share of p should be clicks: the points
# should be on the line.

# %%
exit_code = main(["predict", "runs/clicks", "--data", "day_2.parquet", "--out", "scores.parquet"])
scores = pq.read_table("scores.parquet")
told = scores.column(scores.column_names[-1]).to_numpy()
clicked = log.column("click").to_numpy()
parts = np.array_split(np.argsort(told), 15)
figure, axis = plt.subplots(figsize=(4, 4))
axis.plot([0, 1], [0, 1], linestyle="--", color="grey")
axis.plot([told[part].mean() for part in parts], [clicked[part].mean() for part in parts], marker="o")
axis.set(xlabel="predicted probability", ylabel="share of clicks")
figure.tight_layout()
