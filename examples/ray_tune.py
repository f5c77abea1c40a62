"""Settings of the graph that comes with marius_oac, searched by Ray Tune: `python examples/ray_tune.py /tmp/tune 6`.

Trials run side by side, on all nodes of a Ray cluster. Each reports the MRR of every evaluation, by which bad trials
are ended early. `marius-oac tune` searches on one machine without Ray.
"""

import os
import sys

from ray import tune
from ray.tune.schedulers import ASHAScheduler

import marius_oac

SHARED = {
    "data": {"path": "codex-s"},
    "model": {"decoder": "complex", "reciprocal": True},
    "training": {"batch_size": 1000, "regularization": {"kind": "n3", "weight": 0.01}},
    "evaluation": {"every": 1},
}


def trial(values, folder):
    settings = [f"{key}={value}" for key, value in values.items()]
    config = marius_oac.Config.build(SHARED, [*settings, "threads=1"])
    run = f"{folder}/runs/{tune.get_context().get_trial_id()}"

    def report(line):
        if line["split"] == "valid":
            tune.report({"mrr": line["filtered.mrr"], "epoch": line["epoch"], "run": run})

    marius_oac.train(config, run, callbacks=marius_oac.Callbacks(on_evaluation=report))


def main(folder, trials=6, epochs=4):
    folder = os.path.abspath(folder)
    tuner = tune.Tuner(
        tune.with_resources(tune.with_parameters(trial, folder=folder), {"cpu": 1}),
        param_space={
            "model.dimension": tune.choice([50, 100]),
            "training.optimizer.learning_rate": tune.loguniform(0.01, 1.0),
            "training.epochs": epochs,
        },
        tune_config=tune.TuneConfig(metric="mrr", mode="max", num_samples=trials, scheduler=ASHAScheduler()),
        run_config=tune.RunConfig(storage_path=folder, name="codex-s"),
    )
    return tuner.fit().get_best_result()


if __name__ == "__main__":
    best = main(sys.argv[1], *map(int, sys.argv[2:]))
    print(f"MRR {best.metrics['mrr']:.4f} with {best.config}; its run: {best.metrics['run']}")
