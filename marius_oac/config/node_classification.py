"""The configuration of node classification. Imports neither torch nor numba."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from marius_oac.config.base import BaseConfig
from marius_oac.config.encoder import EncoderConfig
from marius_oac.config.named_files import FILE
from marius_oac.config.parts import INITIALS, InitialName, values_of
from marius_oac.config.sections import (
    EarlyStoppingConfig,
    GraphDataConfig,
    Name,
    NonNegativeInt,
    OptimizerConfig,
    OwnMetrics,
    PositiveFloat,
    PositiveInt,
    Section,
    Width,
)
from marius_oac.types import present


class LabelledDataConfig(GraphDataConfig):
    """`data` of node classification: a graph with labels."""

    labels: Annotated[Name, FILE] = Field(
        description="Classes of nodes: .csv, .tsv (also .gz) or .parquet with the columns `name`, `label` and `split`."
    )


class ClassesModelConfig(Section):
    """`model` of node classification."""

    dimension: Width = Field(64, description="Floats of a layer's output, unless the layer sets its own.")
    init: InitialName = Field(
        "normal",
        description="Distribution of the rows' initial values. "
        + values_of(INITIALS, "FILE.py:NAME, a function of your own"),
    )
    init_scale: PositiveFloat = Field(1e-1, description="Half-width (uniform) or standard deviation (normal).")


class ClassesTrainingConfig(Section):
    """`training` of node classification."""

    epochs: PositiveInt = Field(10, description="Passes over the nodes to train on.")
    batch_size: PositiveInt = Field(1000, description="Nodes per batch.")
    optimizer: OptimizerConfig = OptimizerConfig()
    early_stopping: EarlyStoppingConfig | None = Field(None, description="Stop when validation no longer improves.")


class ClassesEvaluationConfig(Section):
    """`evaluation` of node classification."""

    every: NonNegativeInt = Field(1, description="Epochs between evaluations on the nodes to validate on; 0: never.")
    memory: PositiveInt = Field(256, description="MiB for encoding all nodes.")
    metrics: OwnMetrics = Field(
        (), description="More metrics: FILE.py:NAME of functions of your own, each from classes and scores to a number."
    )


class NodeClassificationConfig(BaseConfig):
    """Training an encoder for node classification."""

    kernels = "classes"
    decisive_metric: ClassVar[str] = "accuracy"
    how_to_ask = "was trained for node classification: name the node to predict with --node"

    task: Literal["node_classification"]
    data: LabelledDataConfig
    model: ClassesModelConfig = ClassesModelConfig()
    encoder: EncoderConfig
    training: ClassesTrainingConfig = ClassesTrainingConfig()
    evaluation: ClassesEvaluationConfig = ClassesEvaluationConfig()

    @model_validator(mode="after")
    def _combinations(self) -> NodeClassificationConfig:
        if getattr(self.encoder.layers[-1], "dimension", None):
            raise ValueError("encoder.layers: the last one makes a score of each class; leave its `dimension` out")
        if self.training.early_stopping and not self.evaluation.every:
            raise ValueError("training.early_stopping: needs evaluation.every >= 1")
        return self

    @property
    def row_dimension(self) -> int:
        """Floats of value in a node's row; 0: nodes have none."""
        return present(self.encoder.resolved(self.model.dimension).embeddings)
