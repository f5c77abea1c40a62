"""The configuration of a graph's training. Imports neither torch nor numba."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from marius_oac.config_base import BaseConfig
from marius_oac.config_sections import (
    EarlyStoppingConfig,
    Fraction,
    Name,
    NonNegativeFloat,
    NonNegativeInt,
    OptimizerConfig,
    PositiveFloat,
    PositiveInt,
    Section,
    Switch,
    no_bool,
)


class DataConfig(Section):
    path: Name = Field(
        description="Folder made by `marius-oac prepare`, or the name of an embedded data set (codex-s)."
    )


class ModelConfig(Section):
    decoder: Literal["distmult", "complex", "transe", "rotate", "dot"] = Field(
        "complex", description="Score function of an edge; dot needs no relations."
    )
    dimension: PositiveInt = Field(100, description="Floats per entity; complex and rotate use two floats a number.")
    norm: Annotated[Literal[1, 2], BeforeValidator(no_bool)] = Field(2, description="TransE's distance: L1 or L2.")
    reciprocal: Switch = Field(
        False, description="Add every edge reversed under a relation of its own; replace tails only."
    )
    init: Literal["uniform", "normal"] = Field("normal", description="Distribution of the rows' initial values.")
    init_scale: PositiveFloat = Field(1e-3, description="Half-width (uniform) or standard deviation (normal).")

    @model_validator(mode="after")
    def _even(self) -> ModelConfig:
        if self.decoder in ("complex", "rotate") and self.dimension % 2:
            raise ValueError(f"dimension: {self.decoder} needs an even number of floats, not {self.dimension}")
        return self


class NegativesConfig(Section):
    count: PositiveInt = Field(500, description="Negatives shared by all edges of a chunk, per side.")
    chunks: PositiveInt = Field(1, description="Chunks a batch is split into, each with negatives of its own.")
    degree_fraction: Fraction = Field(0.0, description="Share of negatives drawn by degree; the rest are uniform.")
    all: Switch = Field(False, description="Every entity is a negative (count, chunks, degree_fraction are not used).")


class LossConfig(Section):
    kind: Literal["softmax", "logistic", "margin", "self_adversarial"] = Field("softmax", description="Training loss.")
    margin: PositiveFloat = Field(1.0, description="Margin of margin ranking, gamma of self-adversarial sampling.")
    temperature: PositiveFloat = Field(1.0, description="Temperature of self-adversarial weights.")


class RegularizationConfig(Section):
    kind: Literal["none", "l2", "n3"] = Field("none", description="Penalty on the embeddings of a batch's edges.")
    weight: NonNegativeFloat = Field(0.0, description="Factor of the penalty, averaged over the batch.")


class TrainingConfig(Section):
    epochs: PositiveInt = Field(10, description="Passes over the training edges.")
    batch_size: PositiveInt = Field(1000, description="Edges per batch.")
    negatives: NegativesConfig = NegativesConfig()
    loss: LossConfig = LossConfig()
    regularization: RegularizationConfig = RegularizationConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    early_stopping: EarlyStoppingConfig | None = Field(None, description="Stop when validation no longer improves.")


class EvaluationConfig(Section):
    every: NonNegativeInt = Field(1, description="Epochs between evaluations on the validation set; 0: never.")
    candidates: Literal["all"] | PositiveInt = Field("all", description="Rank against all entities, or so many drawn.")
    degree_fraction: Fraction = Field(0.0, description="Share of drawn candidates that are drawn by degree.")
    filtered: Switch = Field(True, description="Leave other known true answers out of the ranking.")
    max_edges: NonNegativeInt = Field(0, description="Validate on so many edges, the same each time; 0: all of them.")
    memory: PositiveInt = Field(256, description="MiB of scores held at once.")


class Config(BaseConfig):
    """Training a graph's embeddings. `Config.load` and `Config.build` make a `CtrConfig` where `task` is `ctr`."""

    task: Literal["graph"] = Field("graph", description="graph: link prediction; ctr: click-through rates.")
    data: DataConfig
    model: ModelConfig = ModelConfig()
    training: TrainingConfig = TrainingConfig()
    evaluation: EvaluationConfig = EvaluationConfig()

    @model_validator(mode="after")
    def _combinations(self) -> Config:
        chunks = self.training.negatives.chunks
        if chunks > self.training.batch_size:
            raise ValueError(f"training.negatives.chunks: {chunks} chunks of a batch of {self.training.batch_size}")
        if self.training.early_stopping and not self.evaluation.every:
            raise ValueError("training.early_stopping: needs evaluation.every >= 1")
        if self.training.regularization.kind == "none" and self.training.regularization.weight:
            raise ValueError("training.regularization.weight: set, but regularization.kind is 'none'")
        return self

    @classmethod
    def of_task(cls, task: object) -> type[BaseConfig]:
        if task == "ctr":
            from marius_oac.config_ctr import CtrConfig

            return CtrConfig
        return cls
