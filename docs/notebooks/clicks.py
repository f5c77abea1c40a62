# %% [markdown]
# # A click log: probabilities, and whether they are right
# A generated log of three days: 8 columns of keys, 4 of numbers, and a label.

# %%
import json
import subprocess
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pyarrow.parquet as pq

import marius_oac
from marius_oac.cli.commands import main

command = "-m marius_oac.data.generate.log --out logs --days 3 --rows 20000 --keys 5000 --categorical 8 --numeric 4"
subprocess.run([sys.executable, *command.split()], check=True)
log = pq.read_table("logs/day_00.parquet")
log.slice(0, 3).select(log.column_names[:6]).to_pydict()

# %% [markdown]
# ## Train on the first day, validate on the second, test on the third

# %%
names = log.column_names
config = marius_oac.Config.build(
    {
        "task": "ctr",
        "data": {
            "train": ["logs/day_00.parquet"],
            "valid": ["logs/day_01.parquet"],
            "test": ["logs/day_02.parquet"],
            "label": "label",
            "numeric": [name for name in names if name.startswith("n")],
            "categorical": [name for name in names if name.startswith("c")],
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
exit_code = main(["predict", "runs/clicks", "--data", "logs/day_02.parquet", "--out", "scores.parquet"])
scores = pq.read_table("scores.parquet")
told = scores.column(scores.column_names[-1]).to_numpy()
clicked = pq.read_table("logs/day_02.parquet").column("label").to_numpy()
parts = np.array_split(np.argsort(told), 15)
figure, axis = plt.subplots(figsize=(4, 4))
axis.plot([0, 1], [0, 1], linestyle="--", color="grey")
axis.plot([told[part].mean() for part in parts], [clicked[part].mean() for part in parts], marker="o")
axis.set(xlabel="predicted probability", ylabel="share of clicks")
figure.tight_layout()
