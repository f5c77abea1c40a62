"""Section `dense` of a run on several nodes: how dense parameters agree. Imports neither torch nor numba."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from marius_oac.config.sections import Beta, Bool, NonNegativeInt, Number, PositiveFloat, PositiveInt, Section
from marius_oac.errors import ConfigError

_SHADOW = ("easgd", "ma", "bmuf")
_USED_BY = {
    "k": ("kstep",),
    "warm_up": ("kstep",),
    "beta1": ("kstep",),
    "beta2": ("kstep",),
    "epsilon": ("kstep",),
    "alpha": _SHADOW,
    "sync_every": _SHADOW,
    "background": _SHADOW,
    "eta": ("bmuf",),
    "momentum": ("bmuf",),
    "nesterov": ("bmuf",),
}


class DenseConfig(Section):
    """`dense`: how nodes agree on dense parameters."""

    kind: Literal["allreduce", "kstep", "easgd", "ma", "bmuf"] = Field(
        "allreduce",
        description="How trainers synchronise dense parameters. allreduce: sum the gradients in every iteration. kstep:"
        " Adam with replicas that merge every k steps. easgd, ma, bmuf: move the replicas towards a common "
        "value while training continues. A resumed run may change the kind; a change to or from kstep needs"
        " Adam.",
    )
    k: PositiveInt = Field(10, description="kstep: steps between merges.")
    warm_up: NonNegativeInt = Field(
        1000, description="kstep: initial steps that each end in a merge, until the second moment is reliable."
    )
    beta1: Beta = Field(0.0, description="kstep: decay rate of the first moment.")
    beta2: Beta = Field(0.999, description="kstep: decay rate of the second moment.")
    epsilon: PositiveFloat = Field(
        1e-8, description="kstep: initial second moment, and its minimum when a run changes to kstep."
    )
    alpha: Annotated[Number, Field(gt=0, le=1)] = Field(
        0.5, description="easgd, ma, bmuf: how far a synchronisation moves a replica to the common value, from 0 to 1."
    )
    sync_every: PositiveInt | None = Field(
        None,
        description="easgd, ma, bmuf: iterations between synchronisations, a minimum with `background`. Default: 5, or "
        "1 with `background`.",
    )
    background: Bool = Field(
        True, description="easgd, ma, bmuf: synchronise in a separate thread while training continues."
    )
    eta: PositiveFloat = Field(1.0, description="bmuf: step size of the global model towards the mean of the replicas.")
    momentum: Beta = Field(0.0, description="bmuf: momentum of the global model's steps.")
    nesterov: Bool = Field(False, description="bmuf: use Nesterov momentum (the outer step of DiLoCo).")

    @property
    def iterations_between(self) -> int:
        """`sync_every`, or its default."""
        return self.sync_every or (1 if self.background else 5)

    @property
    def lockstep(self) -> bool:
        """Whether all trainers must make the same steps."""
        return self.kind not in _SHADOW

    @model_validator(mode="after")
    def _combinations(self) -> DenseConfig:
        for name, kinds in _USED_BY.items():
            if self.kind not in kinds and getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"{name}: is for kind {' or '.join(kinds)}, and the kind is '{self.kind}'")
        if self.nesterov and not self.momentum:
            raise ValueError("nesterov: needs a momentum above 0")
        return self


def ignored_by_kstep(config: Any) -> list[tuple[str, str]]:
    """Keys of a run's configuration that k-step, itself an optimizer, ignores, and why."""
    if config.nodes.dense.kind != "kstep" or config.task != "ctr":
        return []
    optimizer, section = config.training.dense_optimizer, "training.dense_optimizer"
    found = []
    if optimizer.kind != "adam":
        found.append((f"{section}.kind", f"'{optimizer.kind}' is not used: nodes.dense.kind 'kstep' is Adam"))
    for key in ("beta1", "beta2", "epsilon"):
        if getattr(optimizer, key) != type(optimizer).model_fields[key].default:
            found.append((f"{section}.{key}", f"is not used: nodes.dense.kind 'kstep' has nodes.dense.{key}"))
    return found


def check_change(before: Any, after: Any) -> None:
    """Checks whether a resumed run may change how nodes agree on dense parameters.

    Raises:
        ConfigError: the state that the old setting has saved is not the state that the new one needs.
    """
    old, new, key = before.nodes.dense, after.nodes.dense, "nodes.dense.kind"
    if old.kind == new.kind == "kstep" and old.epsilon != new.epsilon:
        raise ConfigError(
            "is the second moment before the first step; a run that goes on has one", "nodes.dense.epsilon"
        )
    if old.kind == new.kind or "kstep" not in (old.kind, new.kind):
        return
    training = before.training
    kind = (training.dense_optimizer if before.task == "ctr" else training.optimizer).kind
    if kind != "adam":
        what = f"the optimizer '{kind}', which keeps no second moment as Adam does"
        raise ConfigError(f"the run was trained with '{old.kind}' and {what}; it can't go on with '{new.kind}'", key)
