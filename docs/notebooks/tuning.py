# %% [markdown]
# # Tuning: search settings, and look at what was found
# Trials are runs of their own. They are compared on the validation edges; the test edges are looked at once, at
# the end.

# %%
from pathlib import Path

import matplotlib.pyplot as plt
import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from marius_oac.cli.commands import main

base = """
data: {path: codex-s}
model: {decoder: complex, dimension: 32}
training: {epochs: 2, batch_size: 1000, negatives: {count: 100}}
evaluation: {max_edges: 500}
"""
space = """
sampler: random
pruner: none
space:
  training.optimizer.learning_rate: {low: 0.01, high: 1.0, log: true}
  model.decoder: [complex, distmult]
"""
for name, text in {"base.yaml": base, "space.yaml": space}.items():
    Path(name).write_text(text)

# %% [markdown]
# In a terminal this is `marius-oac tune base.yaml --space space.yaml --trials 6 --out search`.

# %%
exit_code = main(["tune", "base.yaml", "--space", "space.yaml", "--trials", "6", "--out", "search"])

# %% [markdown]
# `study.journal` has all trials. `optuna-dashboard search/study.journal` shows them in a browser.

# %%
study = optuna.load_study(study_name="search", storage=JournalStorage(JournalFileBackend("search/study.journal")))
figure, axis = plt.subplots()
for decoder in ("complex", "distmult"):
    own = [trial for trial in study.trials if trial.params["model.decoder"] == decoder]
    rates = [trial.params["training.optimizer.learning_rate"] for trial in own]
    axis.scatter(rates, [trial.value for trial in own], label=decoder)
axis.set(xlabel="learning rate", ylabel="validation MRR", xscale="log")
axis.legend()
figure.tight_layout()

# %% [markdown]
# `best.yaml` is the best trial's configuration, and says where it came from. `marius-oac train search/best.yaml`
# gives its run again, with the same bits.

# %%
print("\n".join(Path("search/best.yaml").read_text().splitlines()[:3]))
