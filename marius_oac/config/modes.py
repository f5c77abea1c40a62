"""Section `nodes` of a run on several nodes. Imports neither torch nor numba."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from marius_oac.config.dense import DenseConfig
from marius_oac.config.sections import NonNegativeFloat, NonNegativeInt, Number, PositiveFloat, PositiveInt, Section

ModeName = Literal["sync", "gba", "async", "bsp", "hop-bs", "hop-bw"]


class ModesConfig(Section):
    """`nodes.mode_options`: settings of the modes other than sync."""

    parts: PositiveInt | None = Field(
        None, description="Local batches per global batch (`training.batch_size`). Default: one per trainer."
    )
    window: PositiveInt = Field(
        1,
        description="Maximum number of a trainer's batches between pull and push. More batches make gradients staler.",
    )
    decay: Literal["threshold", "polynomial", "exponential"] = Field(
        "threshold",
        description="gba: weight of a gradient that is s > 0 steps stale. threshold: 1 up to `threshold` steps, then "
        "0. polynomial: (1 + s) ** -power. exponential: rate ** s.",
    )
    threshold: NonNegativeInt = Field(
        3, description="gba with decay threshold: largest staleness that has weight 1, in steps."
    )
    power: PositiveFloat = Field(1.0, description="gba with decay polynomial: exponent.")
    rate: Annotated[Number, Field(gt=0, le=1)] = Field(0.5, description="gba with decay exponential: base.")
    rows_over: Literal["gradients", "holders"] = Field(
        "gradients",
        description="Divisor of the sum of a row's gradients. gradients: the number of gradients in the step, as in "
        "sync. holders: the number of gradients that include the row, as in the GBA paper; it needs another"
        " learning rate.",
    )
    ahead: NonNegativeInt = Field(
        2, description="hop-bs: maximum number of batches that a trainer may be ahead of the slowest one."
    )
    gradients: PositiveInt = Field(20, description="bsp: number of gradients per step.")
    backups: NonNegativeInt = Field(1, description="hop-bw: number of slowest trainers that a step does not wait for.")

    def rules(self) -> dict[str, Any]:
        """The settings as keyword arguments of `make_mode`."""
        own: dict[str, Any] = {"b1": self.ahead, "b2": self.gradients, "b3": self.backups}
        return own | self.model_dump(include={"decay", "threshold", "power", "rate", "rows_over"})


class SwitchConfig(Section):
    """One planned change of the mode, from a global batch on."""

    at: PositiveInt = Field(description="First global batch in this mode.")
    mode: ModeName = Field(description="Mode, as in `nodes.mode`.")


class AutoConfig(Section):
    """The rules by which mode auto changes."""

    every: PositiveInt = Field(
        50, description="auto: global batches between decisions. Training pauses for each decision."
    )
    margin: NonNegativeFloat = Field(
        0.03, description="auto: gain in global examples/s above which gba is preferred to sync. 0.03 is 3 %."
    )
    patience: PositiveInt = Field(2, description="auto: consecutive decisions that must favour a switch.")


class NodesConfig(Section):
    """`nodes`: settings of a run on several nodes, unused on one node."""

    packing: Literal["measured", "even"] = Field(
        "measured",
        description="How rows are placed on nodes. measured: by the lookups of the first batches, to balance the load. "
        "even: by the hash of the key alone. Both respect `shards`, `memory` and `disk` of nodes.yaml.",
    )
    mode: Literal[ModeName, "auto"] = Field(
        "sync",
        description="sync: each trainer computes a slice of every global batch (with `pipeline.mode: async` at its own "
        "pace). The other modes dispatch local batches to free trainers. gba: a step takes as many "
        "gradients as a global batch has local batches; late gradients have less weight, so the learning "
        "rates of sync still fit. async: each gradient is a step. bsp: a step takes a fixed number of "
        "gradients. hop-bs: async with a bounded lead. hop-bw: sync without the slowest trainers. auto: "
        "sync or gba, whichever is expected to be faster by measurement.",
    )
    parts: PositiveInt | None = Field(
        None,
        description="Virtual parts of each global batch in lockstep. Gradients, random numbers and batch norm depend on"
        " the part and not on the trainer, so any number of trainers up to this gives the same bits. null: "
        "off; results depend on the number of trainers.",
    )
    auto: AutoConfig = AutoConfig()
    switch: tuple[SwitchConfig, ...] = Field(
        (), description="Mode changes during the run: each entry has the first global batch, `at`, and the `mode`."
    )
    mode_options: ModesConfig = ModesConfig()
    dense: DenseConfig = DenseConfig()

    def mode_at(self, batch: int) -> ModeName | Literal["auto"]:
        """The mode in which a global batch is trained; "auto" where it is decided during the run."""
        begun = [each.mode for each in self.switch if each.at <= batch]
        return begun[-1] if begun else self.mode

    def mode_ends(self, batch: int) -> int | None:
        """The first global batch after this one from which on another mode may apply."""
        return min((each.at for each in self.switch if each.at > batch), default=None)

    @property
    def used(self) -> set[str]:
        """All modes that the run may use."""
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
