# %% [markdown]
# # Larger than memory: the same bits from disk
# The same model is trained with all rows in memory, and with most of them on disk.

# %%
import json
from pathlib import Path

import matplotlib.pyplot as plt

import marius_oac

base = {
    "data": {"path": "codex-s"},
    "model": {"dimension": 100},
    "training": {"epochs": 3, "batch_size": 100, "negatives": {"count": 20}},
    "evaluation": {"every": 1, "max_edges": 500},
    "metrics": {"every_batches": 50},
}
runs = {}
for name, storage in {"memory": {}, "1 MiB": {"memory": "1MiB", "path": "pages"}}.items():
    config = marius_oac.Config.build({**base, "storage": storage})
    runs[name] = marius_oac.train(config, f"runs/{name.replace(' ', '')}")

# %% [markdown]
# ## The same results
# `compare` looks at every bit of tables, optimizer state and dense parameters. Here it is enough that the
# losses of all batches are equal.

# %%
losses = {}
for name, run in runs.items():
    lines = [json.loads(line) for line in Path(run.path, "metrics.jsonl").read_text().splitlines()]
    losses[name] = [line["loss"] for line in lines if line["kind"] == "interval"]
assert len(losses["memory"]) > 10
print(losses["memory"] == losses["1 MiB"])

# %%
figure, axis = plt.subplots()
axis.plot(losses["memory"], linewidth=5, alpha=0.4, label="all rows in memory")
axis.plot(losses["1 MiB"], color="black", linewidth=1, label="1 MiB in memory, the rest on disk")
axis.set(xlabel="interval of 50 batches", ylabel="loss")
axis.legend()
figure.tight_layout()

# %% [markdown]
# ## What it costs
# The rows here take 1.6 MiB, so this shows how it works and not how fast it is: that is measured on large
# tables, in the
# benchmarks. What a run read and wrote is in its summary.

# %%
disk = runs["1 MiB"].summary
{key: value for key, value in disk.items() if key.startswith("disk.")}
