"""Section `nodes` of a run on several nodes. Imports neither torch nor numba."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Literal

from pydantic import Field, model_validator

from marius_oac.config.dense import DenseConfig
from marius_oac.config.sections import NonNegativeFloat, NonNegativeInt, Number, PositiveFloat, PositiveInt, Section

ModeName = Literal["sync", "gba", "async", "bsp", "hop-bs", "hop-bw"]


class ModesConfig(Section):
    """What the modes beside sync need."""

    parts: PositiveInt | None = Field(
        None,
        description="Local batches that a global batch, `training.batch_size`, is cut into; default: one per trainer.",
    )
    window: PositiveInt = Field(
        1, description="Batches of a trainer between pull and push; each one more makes gradients staler."
    )
    decay: Literal["threshold", "polynomial", "exponential"] = Field(
        "threshold",
        description="gba: what a gradient that is s > 0 steps stale counts. threshold: all up to `threshold`, then "
        "nothing. polynomial: (1 + s) ** -power. exponential: rate ** s.",
    )
    threshold: NonNegativeInt = Field(3, description="gba, threshold: steps.")
    power: PositiveFloat = Field(1.0, description="gba, polynomial: the exponent.")
    rate: Annotated[Number, Field(gt=0, le=1)] = Field(0.5, description="gba, exponential: the base.")
    rows_over: Literal["gradients", "holders"] = Field(
        "gradients",
        description="What the sum of a row's gradients is divided by. gradients: all of the step, as in sync. holders: "
        "those that hold the row, as in the GBA paper, which wants another learning rate.",
    )
    ahead: NonNegativeInt = Field(2, description="hop-bs: batches that a trainer may be ahead of the slowest one.")
    gradients: PositiveInt = Field(20, description="bsp: gradients that make a step.")
    backups: NonNegativeInt = Field(1, description="hop-bw: the slowest trainers of each step, whom nobody waits for.")

    def rules(self) -> dict[str, str | int | float]:
        """As `make_mode` wants them."""
        own = {"b1": self.ahead, "b2": self.gradients, "b3": self.backups}
        return own | self.model_dump(include={"decay", "threshold", "power", "rate", "rows_over"})


class SwitchConfig(Section):
    at: PositiveInt = Field(description="The first global batch in that mode.")
    mode: ModeName = Field(description="As `nodes.mode`.")


class LoadConfig(Section):
    trainers: Annotated[tuple[NonNegativeInt, ...], Field(min_length=1)] = Field(
        description="Their numbers, from 0, as nodes.yaml lists trainers."
    )
    factor: Annotated[Number, Field(ge=1)] = Field(
        1.0, description="How many times as long they compute a batch; factors that meet are multiplied."
    )
    seconds: NonNegativeFloat = Field(
        0.0, description="What a batch takes them at full speed, if it takes less here: emulates a machine of its own."
    )
    begin: NonNegativeFloat = Field(
        0.0, description="Seconds since this process began its first batch: those begun from then on are slowed."
    )
    end: PositiveFloat | None = Field(None, description="Until then; default: to the end.")
    period: PositiveFloat | None = Field(None, description="Seconds after which `begin` comes again, as in days.")

    @model_validator(mode="after")
    def _times(self) -> LoadConfig:
        if self.end is not None and self.end <= self.begin:
            raise ValueError("end: must be later than `begin`")
        if self.period is not None and self.period < (self.end or self.begin):
            raise ValueError("period: must not end before `begin` and `end`")
        return self


class AutoConfig(Section):
    every: PositiveInt = Field(50, description="auto: global batches between two decisions; all trainers rest then.")
    margin: NonNegativeFloat = Field(
        0.03, description="auto: what gba must gain over sync, in global examples/s, to be used: 0.03 is 3 %."
    )
    patience: PositiveInt = Field(2, description="auto: decisions in a row that must speak for a switch.")


class NodesConfig(Section):
    """What holds where a run has several nodes; one node alone does without."""

    packing: Literal["measured", "even"] = Field(
        "measured",
        description="Which rows go to which node. measured: by what the first batches look up, so that none has more "
        "to do than others. even: by the hash of the key alone. Both by `shards` and within `memory` and `disk` of "
        "nodes.yaml.",
    )
    mode: Literal[ModeName, "auto"] = Field(
        "sync",
        description="sync: all trainers compute every global batch together, each its part (with `pipeline.mode: "
        "async` each at its own pace). The others deal local batches to whoever has time. gba: as many gradients as "
        "make a global batch make a step, and late ones decay, so that sync's rates hold. async: each makes one. "
        "bsp: `gradients` make one. hop-bs: as async, with bounded lead. hop-bw: as sync, without the slowest. "
        "auto: sync or gba, whichever should train more examples per second by what was measured.",
    )
    auto: AutoConfig = AutoConfig()
    switch: tuple[SwitchConfig, ...] = Field((), description="Modes that follow: `at` which global batch, `mode`.")
    mode_options: ModesConfig = ModesConfig()
    load: tuple[LoadConfig, ...] = Field(
        (), description="Emulated slow trainers, for tests and measurements; the summary says that they were."
    )
    dense: DenseConfig = DenseConfig()

    def mode_at(self, batch: int) -> ModeName | Literal["auto"]:
        """The mode in which a global batch is trained, or that it is decided meanwhile."""
        begun = [each.mode for each in self.switch if each.at <= batch]
        return begun[-1] if begun else self.mode

    def mode_ends(self, batch: int) -> int | None:
        """The first global batch behind this one from which on another mode may hold."""
        return min((each.at for each in self.switch if each.at > batch), default=None)

    @property
    def used(self) -> set[str]:
        """All modes that there may be."""
        return {self.mode, *(each.mode for each in self.switch)}

    @property
    def dispatches(self) -> bool:
        """Whether any mode but sync is used."""
        return self.used != {"sync"}

    @model_validator(mode="after")
    def _combinations(self) -> NodesConfig:
        if any(one.at >= other.at for one, other in pairwise(self.switch)):
            raise ValueError("switch: `at` must ascend")
        if self.mode == "auto" and self.switch:
            raise ValueError("switch: with mode auto the run itself decides when to switch")
        if self.dispatches and self.dense.kind != "allreduce":
            raise ValueError(
                f"dense.kind: '{self.dense.kind}' is for mode sync; in the others dense parameters are served"
            )
        return self
