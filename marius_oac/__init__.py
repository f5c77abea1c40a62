"""Embedding tables larger than the GPU: asynchronous speed, synchronous results.

    import marius_oac

    config = marius_oac.Config.build({"data": {"path": "codex-s"}, "training": {"epochs": 5}})
    run = marius_oac.train(config, "runs/a")
    print(run.summary["test.filtered.mrr"])

Names are imported when they are first used: importing the package, or its config, loads neither torch nor numba.
"""

from importlib import import_module  # and nothing else of Python's: `__main__` says why

from marius_oac.runtime import present_folder

present_folder.ignored()

__version__ = "0.1.0"

_HOMES = {
    "Callbacks": "runs.callbacks",
    "Config": "config.link_prediction",
    "Decoder": "models.link_prediction.decoders",
    "Graph": "data.graphs.graph",
    "Loss": "models.link_prediction.losses",
    "Network": "models.ctr.network",
    "PrepareRequest": "prepare.prepare",
    "Run": "training.local",
    "TrainedClickModel": "tasks.ctr.trained",
    "TrainedModel": "tasks.link_prediction.trained",
    "UpdateRule": "models.compute.update_rules",
    "open_run": "training.local",
    "prepare": "prepare.prepare",
    "resume": "training.local",
    "train": "training.local",
    "verify": "runs.verification",
}

_MODULES = {"dgl": "dgl", "ray": "nodes.training.on_ray", "testing": "testing", "torch": "torch"}

__all__ = list(_HOMES)


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return import_module(f"{__name__}.{_MODULES[name]}")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(["__version__", *_HOMES, *_MODULES])
