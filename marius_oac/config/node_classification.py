"""The configuration of node classification. Imports neither torch nor numba."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from marius_oac.config.base import BaseConfig
from marius_oac.config.encoder import EncoderConfig
from marius_oac.config.named_files import FILE
from marius_oac.config.parts import INITIALS, InitialName, values_of
from marius_oac.config.sections import (
    EARLY_STOPPING,
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
        description="Labels of nodes: a .csv, .tsv (also .gz) or .parquet file with the columns `name`, `label` and "
        "`split`."
    )


class ClassesModelConfig(Section):
    """`model` of node classification."""

    dimension: Width = Field(
        64, description="Dimension of nodes' rows and layers' outputs, in floats, unless `encoder` sets others."
    )
    init: InitialName = Field(
        "normal",
        description="Distribution of initial embeddings. "
        + values_of(INITIALS, "FILE.py:NAME, a function of your own"),
    )
    init_scale: PositiveFloat = Field(
        1e-1, description="Half-width (uniform) or standard deviation (normal) of initial embeddings."
    )


class ClassesTrainingConfig(Section):
    """`training` of node classification."""

    epochs: PositiveInt = Field(10, description="Number of passes over the training nodes.")
    batch_size: PositiveInt = Field(1000, description="Nodes per batch.")
    optimizer: OptimizerConfig = OptimizerConfig()
    early_stopping: EarlyStoppingConfig | None = EARLY_STOPPING


class ClassesEvaluationConfig(Section):
    """`evaluation` of node classification."""

    every: NonNegativeInt = Field(
        1,
        description="Epochs between evaluations on the validation nodes. The last epoch is always evaluated. 0: never.",
    )
    memory: PositiveInt = Field(256, description="Memory for encoding all nodes, in MiB.")
    metrics: OwnMetrics = Field(
        (), description="Additional metrics, FILE.py:NAME: functions of your own from classes and scores to a number."
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
