"""The configuration of a graph's training. Imports neither torch nor numba."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from marius_oac.config.base import BaseConfig
from marius_oac.config.encoder import EncoderConfig
from marius_oac.config.parts import (
    DECODERS,
    DEFAULT_DECODER,
    INITIALS,
    LOSSES,
    OWN,
    WITHOUT_RELATIONS,
    DecoderName,
    InitialName,
    LossName,
    values_of,
)
from marius_oac.config.sections import (
    EARLY_STOPPING,
    Bool,
    EarlyStoppingConfig,
    Fraction,
    GivenMetric,
    GraphDataConfig,
    NonNegativeFloat,
    NonNegativeInt,
    OptimizerConfig,
    OwnMetrics,
    PositiveFloat,
    PositiveInt,
    Section,
    Width,
    no_bool,
)
from marius_oac.types import present


class ModelConfig(Section):
    """`model`: the decoder and its size."""

    decoder: DecoderName = Field(
        DEFAULT_DECODER,
        description=f"Score function of an edge. Default for a graph without relations: {WITHOUT_RELATIONS}. "
        + values_of(DECODERS),
    )
    dimension: Width = Field(
        100,
        description="Dimension of the embeddings that the score function takes, in floats. complex and rotate use two "
        "floats per complex number.",
    )
    norm: Annotated[Literal[1, 2], BeforeValidator(no_bool)] = Field(
        2, description="transe: norm of the distance, 1 (L1) or 2 (L2)."
    )
    reciprocal: Bool = Field(
        False, description="Add the reverse of each edge with an inverse relation, and corrupt tails only."
    )
    init: InitialName = Field(
        "normal",
        description="Distribution of initial embeddings. "
        + values_of(INITIALS, "FILE.py:NAME, a function of your own for nodes (relations use normal)"),
    )
    init_scale: PositiveFloat = Field(
        1e-3, description="Half-width (uniform) or standard deviation (normal) of initial embeddings."
    )

    @property
    def relation_init(self) -> str:
        """Distribution of the relations' initial values: a function of the user's is for nodes."""
        return self.init if self.init in INITIALS else "normal"

    @model_validator(mode="after")
    def _even(self) -> ModelConfig:
        if DECODERS.get(self.decoder, OWN).even and self.dimension % 2:
            raise ValueError(f"dimension: {self.decoder} needs an even number of floats, not {self.dimension}")
        return self


class NegativesConfig(Section):
    """`training.negatives`."""

    count: PositiveInt = Field(
        500, description="Negatives per chunk and corrupted side (head, tail). All edges of a chunk share them."
    )
    chunks: PositiveInt = Field(1, description="Chunks per batch. Each chunk has its own negatives.")
    degree_fraction: Fraction = Field(
        0.0, description="Fraction of negatives drawn in proportion to node degree. The rest are drawn uniformly."
    )
    all: Bool = Field(
        False, description="Use every entity as a negative. count, chunks and degree_fraction are then ignored."
    )


class OrderingConfig(Section):
    """`training.ordering`: the order in which edges are trained."""

    kind: Literal["shuffle", "beta", "comet"] = Field(
        "shuffle",
        description="shuffle: a batch may contain any edges. beta, comet: edges and negatives come from the "
        "node partitions in a buffer; less is read from disk, but quality is lower.",
    )
    partitions: Annotated[int, Field(ge=3, le=1024, strict=True)] | None = Field(
        None, description="beta, comet: number of node partitions, each a range of consecutive ids."
    )
    buffer: Annotated[int, Field(ge=2, strict=True)] | None = Field(
        None, description="beta, comet: number of partitions in the buffer, fewer than `partitions`."
    )
    logical: Annotated[int, Field(ge=3, strict=True)] | None = Field(
        None,
        description="comet: number of groups of partitions. A group is loaded as a unit, and groups are redrawn every "
        "epoch. Default: 2 * partitions / buffer.",
    )

    @property
    def groups(self) -> int:
        """The number of units that are loaded together: logical partitions of comet, partitions of beta."""
        if self.kind == "comet":
            return self.logical or 2 * present(self.partitions) // present(self.buffer)
        return present(self.partitions)

    @property
    def groups_in_buffer(self) -> int:
        """The number of such units that fit in the buffer."""
        return present(self.buffer) * self.groups // present(self.partitions)

    @model_validator(mode="after")
    def _fits(self) -> OrderingConfig:
        keys = ("partitions", "buffer")
        for key in (*keys, "logical"):
            if getattr(self, key) is not None and (self.kind == "shuffle" or key == "logical" and self.kind == "beta"):
                raise ValueError(f"{key}: set, but ordering.kind is '{self.kind}'")
        if self.kind == "shuffle":
            return self
        for key in keys:
            if getattr(self, key) is None:
                raise ValueError(f"{key}: '{self.kind}' needs this key")
        partitions, buffer = present(self.partitions), present(self.buffer)
        if buffer >= partitions:
            raise ValueError(f"buffer: {buffer} of {partitions} partitions; must be fewer than all")
        if self.kind == "comet":
            self._check_logical(partitions, buffer)
        return self

    def _check_logical(self, partitions: int, buffer: int) -> None:
        logical = self.logical
        if logical is None:
            if 2 * partitions % buffer or partitions % self.groups:
                raise ValueError(f"logical: 2 x {partitions} / {buffer} does not divide {partitions}; set this key")
            return
        if partitions % logical:
            raise ValueError(f"logical: {logical} groups do not divide {partitions} partitions")
        if buffer % (partitions // logical) or buffer < 2 * (partitions // logical):
            size = partitions // logical
            raise ValueError(f"logical: groups of {size}, of which {buffer} in the buffer must be two or more")


class LossConfig(Section):
    """`training.loss`."""

    kind: LossName = Field("softmax", description=f"Training loss. {values_of(LOSSES)}")
    margin: PositiveFloat = Field(1.0, description="margin: the margin. self_adversarial: gamma.")
    temperature: PositiveFloat = Field(
        1.0, description="self_adversarial: factor of the scores in the softmax that weights negatives."
    )


class RegularizationConfig(Section):
    """`training.regularization`."""

    kind: Literal["none", "l2", "n3"] = Field(
        "none", description="Penalty on the embeddings of a batch's edges. l2: sum of squares. n3: sum of cubed moduli."
    )
    weight: NonNegativeFloat = Field(0.0, description="Weight of the penalty, which is averaged over the batch.")


class TrainingConfig(Section):
    """`training` of link prediction."""

    epochs: PositiveInt = Field(10, description="Number of passes over the training edges.")
    batch_size: PositiveInt = Field(1000, description="Edges per batch.")
    ordering: OrderingConfig = OrderingConfig()
    negatives: NegativesConfig = NegativesConfig()
    loss: LossConfig = LossConfig()
    regularization: RegularizationConfig = RegularizationConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    early_stopping: EarlyStoppingConfig | None = EARLY_STOPPING


class EvaluationConfig(Section):
    """`evaluation` of link prediction."""

    every: NonNegativeInt = Field(
        1, description="Epochs between evaluations on the validation set. The last epoch is always evaluated. 0: never."
    )
    candidates: Literal["all", "given"] | PositiveInt = Field(
        "all",
        description="Entities that each answer is ranked against: all, this many drawn at random, or given: negatives "
        "that come with the graph, by the rule of OGB's evaluator. Default for such a graph: given.",
    )
    decisive: GivenMetric | None = Field(
        None,
        description="Metric of candidates: given that decides which checkpoint is best. Default: the graph's own. "
        "Values: mrr, hits@10, hits@20, hits@50, hits@100.",
    )
    degree_fraction: Fraction = Field(
        0.0, description="Fraction of drawn candidates drawn in proportion to node degree."
    )
    filtered: Bool = Field(
        True, description="Also compute filtered metrics, which exclude other known answers from the ranking."
    )
    max_edges: NonNegativeInt = Field(
        10_000,
        description="Maximum number of validation edges between epochs: a fixed sample, drawn with the seed. 0: all. "
        "Final results always use all edges.",
    )
    memory: PositiveInt = Field(256, description="Memory for blocks of candidates, queries and scores, in MiB.")
    metrics: OwnMetrics = Field(
        (), description="Additional metrics, FILE.py:NAME: functions of your own from ranks to a number."
    )


class Config(BaseConfig):
    """Training a graph's embeddings. `Config.load` and `Config.build` make a configuration of another task's class
    where `task` says so."""

    kernels = "links"
    how_to_ask = "was trained for link prediction: name an entity with --head or --tail"

    task: Literal["graph"] = Field(
        "graph", description="graph: link prediction. node_classification: classes of nodes. ctr: click-through rates."
    )
    data: GraphDataConfig
    model: ModelConfig = ModelConfig()
    encoder: EncoderConfig | None = Field(
        None, description="Encoder between the nodes' rows and the score function. Default: none."
    )
    training: TrainingConfig = TrainingConfig()
    evaluation: EvaluationConfig = EvaluationConfig()

    @property
    def decisive_metric(self) -> str:
        """The mean reciprocal rank, filtered if known answers are left out; with negatives of the graph its own metric,
        which is filled in when a run begins."""
        if self.evaluation.candidates == "given":
            return self.evaluation.decisive or "mrr"
        return "filtered.mrr" if self.evaluation.filtered else "unfiltered.mrr"

    @model_validator(mode="after")
    def _combinations(self) -> Config:
        chunks = self.training.negatives.chunks
        if chunks > self.training.batch_size:
            raise ValueError(f"training.negatives.chunks: {chunks} chunks of a batch of {self.training.batch_size}")
        if self.training.negatives.all and self.training.ordering.kind != "shuffle":
            raise ValueError(
                f"training.ordering.kind: '{self.training.ordering.kind}' draws negatives from the partitions in the "
                "buffer, but training.negatives.all takes every entity"
            )
        if self.encoder:
            self._check_encoder(self.encoder.resolved(self.model.dimension))
        if self.training.early_stopping and not self.evaluation.every:
            raise ValueError("training.early_stopping: needs evaluation.every >= 1")
        if self.training.regularization.kind == "none" and self.training.regularization.weight:
            raise ValueError("training.regularization.weight: set, but regularization.kind is 'none'")
        return self

    def _check_encoder(self, encoder: EncoderConfig) -> None:
        if encoder.width not in (None, self.model.dimension):
            raise ValueError(
                f"encoder.layers: the last one makes {encoder.width} floats of a node, but model.dimension is "
                f"{self.model.dimension}"
            )
        if self.training.ordering.kind != "shuffle":
            raise ValueError(
                f"training.ordering.kind: '{self.training.ordering.kind}' holds some partitions of nodes in memory, "
                "but an encoder draws neighbours from all"
            )

    def _plain(self) -> dict[str, Any]:
        tree = super()._plain()
        if "decoder" not in self.model.model_fields_set:
            del tree["model"]["decoder"]
        if "candidates" not in self.evaluation.model_fields_set:
            del tree["evaluation"]["candidates"]
        return tree

    @property
    def row_dimension(self) -> int:
        """Floats of value in an entity's row; 0: entities have none."""
        return present(self.encoder.resolved(self.model.dimension).embeddings) if self.encoder else self.model.dimension

    @classmethod
    def of_task(cls, task: object) -> type[Any]:
        """See `BaseConfig.of_task`."""
        if task == "ctr":
            from marius_oac.config.ctr import CtrConfig

            return CtrConfig
        if task == "node_classification":
            from marius_oac.config.node_classification import NodeClassificationConfig

            return NodeClassificationConfig
        return cls
