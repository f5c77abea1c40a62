# %% [markdown]
# # A graph, from edges to a map of embeddings
# CoDEx-S comes with the package: facts of Wikidata about 2,034 people, places and things.

# %%
import json
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import marius_oac

marius_oac.prepare(marius_oac.PrepareRequest(source="codex-s", out=Path("data/codex-s")))
graph = marius_oac.Graph.open("data/codex-s")
{name: len(graph.edges(name)) for name in ("train", "valid", "test")}

# %% [markdown]
# ## Train
# A `Config` is the same as a YAML file. Every key has a default.

# %%
config = marius_oac.Config.build(
    {
        "data": {"path": "data/codex-s"},
        "model": {"decoder": "complex", "dimension": 100, "reciprocal": True},
        "training": {"epochs": 8, "batch_size": 500, "regularization": {"kind": "n3", "weight": 0.01}},
    }
)
run = marius_oac.train(config, "runs/graph")
{name: round(run.summary[f"test.filtered.{name}"], 3) for name in ("mrr", "hits@1", "hits@10")}

# %% [markdown]
# `metrics.jsonl` has a line for each interval, epoch and evaluation.

# %%
lines = [json.loads(line) for line in Path("runs/graph/metrics.jsonl").read_text().splitlines()]
loss = [line["loss"] for line in lines if line["kind"] == "epoch"]
mrr = [line["filtered.mrr"] for line in lines if line["kind"] == "evaluation"]
assert len(loss) == len(mrr) == 8
figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3))
left.plot(range(1, len(loss) + 1), loss, marker="o")
left.set(xlabel="epoch", ylabel="training loss")
right.plot(range(1, len(mrr) + 1), mrr, marker="o", color="tab:orange")
right.set(xlabel="epoch", ylabel="validation MRR")
figure.tight_layout()

# %% [markdown]
# ## Ask
# Which occupation (P106) has Leonhard Euler (Q7604)? Answers are Wikidata's names: Q170790 is "mathematician".

# %%
model = marius_oac.TrainedModel.open("runs/graph")
model.predict(head="Q7604", relation="P106", top=5)

# %% [markdown]
# ## A map
# The two directions in which entities differ most, by a principal component analysis. Brighter: more edges.

# %%
edges = np.asarray(graph.edges("train"))
degree = np.bincount(edges[:, [0, -1]].ravel(), minlength=len(model.entities))
centred = np.asarray(model.entities) - np.asarray(model.entities).mean(0)
axes = np.linalg.svd(centred, full_matrices=False)[2][:2]
places = centred @ axes.T
figure, axis = plt.subplots()
axis.scatter(*places.T, s=6, c=np.log10(degree + 1), cmap="viridis")
axis.set(xlabel="first component", ylabel="second component")
figure.tight_layout()
