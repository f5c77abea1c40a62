"""Settings that have no effect in a run: each is reported in one line. Imports neither torch nor numba."""

from __future__ import annotations

from typing import Any

from marius_oac.config.base import BaseConfig
from marius_oac.config.modes import NodesConfig
from marius_oac.config.parts import DECODERS, LOSSES, ROW_OPTIMIZERS, users_of

_NEEDS: tuple[tuple[str, str, tuple[Any, ...]], ...] = (
    ("model.norm", "model.decoder", users_of(DECODERS, "norm")),
    ("model.cross_layers", "model.network", ("dcnv2",)),
    ("model.target", "model.network", ("dien", "youtubednn")),
    ("model.auxiliary_loss", "model.network", ("dien",)),
    ("training.progressive_by", "training.progressive", (True,)),
    ("training.loss.margin", "training.loss.kind", users_of(LOSSES, "margin")),
    ("training.loss.temperature", "training.loss.kind", users_of(LOSSES, "temperature")),
    ("training.negatives.count", "training.negatives.all", (False,)),
    ("training.negatives.chunks", "training.negatives.all", (False,)),
    ("training.negatives.degree_fraction", "training.negatives.all", (False,)),
    *(
        (f"training.optimizer.{key}", "training.optimizer.kind", users_of(ROW_OPTIMIZERS, key))
        for key in ("beta1", "beta2", "epsilon", "initial_accumulator")
    ),
    ("evaluation.decisive", "evaluation.candidates", ("given",)),
    ("compute.products", "compute.precision", ("float32", "tf32")),
    ("storage.page", "storage.on_disk", (True,)),
    ("storage.depth", "storage.on_disk", (True,)),
    ("storage.look_ahead", "storage.on_disk", (True,)),
)
"""A key, what decides whether it does anything, and the values of that with which it does."""
_OWN_CODE = ".py:"


def idle_settings(config: BaseConfig) -> list[str]:
    """A line for each setting of a run on one machine that differs from its default and has no effect."""
    said = []
    for key, decider, values in _NEEDS:
        found = _value(config, decider)
        own = isinstance(found, str) and _OWN_CODE in found  # the user's own code may look at any key
        if found is not None and found not in values and not own and _changed(config, key):
            why = "all rows are in memory" if decider == "storage.on_disk" else f"{decider} is {found!r}".lower()
            said.append(f"{key} does nothing here: {why}")
    kind = _value(config, "training.regularization.kind")
    if kind not in (None, "none") and not _value(config, "training.regularization.weight"):
        said.append(f"training.regularization.kind '{kind}' does nothing here: its weight is 0")
    candidates = _value(config, "evaluation.candidates")
    if isinstance(candidates, str) and _value(config, "evaluation.degree_fraction"):
        said.append(f"evaluation.degree_fraction does nothing here: evaluation.candidates is {candidates!r}")
    said += [
        f"nodes.{name} does nothing here: the run is on one machine, without --nodes"
        for name in NodesConfig.model_fields
        if _changed(config, f"nodes.{name}")
    ]
    return said


def _value(config: BaseConfig, key: str) -> Any:
    """A key's value; None where there is no such key."""
    here: Any = config
    for part in key.split("."):
        here = getattr(here, part, None)
    return here


def _changed(config: BaseConfig, key: str) -> bool:
    """Whether there is such a key, and its value is not the default."""
    section, _, name = key.rpartition(".")
    fields = getattr(type(_value(config, section)), "model_fields", {})
    return name in fields and _value(config, key) != fields[name].default
