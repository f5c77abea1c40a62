"""Section `dense` of a run on several nodes: how dense parameters agree. Imports neither torch nor numba."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from marius_oac.config_sections import (
    Moment,
    NonNegativeInt,
    Number,
    PositiveFloat,
    PositiveInt,
    Section,
    Switch,
)

_SHADOW = ("easgd", "ma", "bmuf")
_USED_BY = {
    "k": ("kstep",),
    "warm_up": ("kstep",),
    "beta1": ("kstep",),
    "beta2": ("kstep",),
    "epsilon": ("kstep",),
    "alpha": _SHADOW,
    "gap": _SHADOW,
    "background": _SHADOW,
    "eta": ("bmuf",),
    "momentum": ("bmuf",),
    "nesterov": ("bmuf",),
}


class DenseConfig(Section):
    kind: Literal["allreduce", "kstep", "easgd", "ma", "bmuf"] = Field(
        "allreduce",
        description="allreduce: gradients are summed in every iteration. kstep: Adam whose replicas merge every k "
        "steps. easgd, ma, bmuf: replicas are drawn to each other beside training.",
    )
    k: PositiveInt = Field(10, description="kstep: steps from merge to merge.")
    warm_up: NonNegativeInt = Field(
        1000, description="kstep: steps at the beginning that each end in a merge, so that the second moment settles."
    )
    beta1: Moment = Field(0.0, description="kstep: decay of the first moment.")
    beta2: Moment = Field(0.999, description="kstep: decay of the second moment.")
    epsilon: PositiveFloat = Field(1e-8, description="kstep: the second moment before the first step.")
    alpha: Annotated[Number, Field(gt=0, le=1)] = Field(
        0.5, description="easgd, ma, bmuf: how far a replica is drawn to what the others have."
    )
    gap: PositiveInt | None = Field(
        None,
        description="easgd, ma, bmuf: iterations between synchronisations, in the background the fewest; default: 5, "
        "in the background 1.",
    )
    background: Switch = Field(True, description="easgd, ma, bmuf: a thread synchronises, and training never waits.")
    eta: PositiveFloat = Field(1.0, description="bmuf: the global model's step towards the mean of the replicas.")
    momentum: Moment = Field(0.0, description="bmuf: momentum of these steps.")
    nesterov: Switch = Field(False, description="bmuf: the momentum looks ahead (DiLoCo's outer step).")

    @property
    def iterations_between(self) -> int:
        """`gap`, or its default."""
        return self.gap or (1 if self.background else 5)

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
