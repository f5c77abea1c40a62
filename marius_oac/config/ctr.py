"""The configuration of click-through-rate (CTR) training. Imports neither torch nor numba."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from marius_oac.config.base import BaseConfig
from marius_oac.config.log_columns import (
    Bag,
    Categorical,
    CategoricalConfig,
    Label,
    Numeric,
    NumericConfig,
    Sequence,
    Weight,
    named,
)
from marius_oac.config.named_files import MODULE
from marius_oac.config.sections import (
    EARLY_STOPPING,
    Bool,
    DenseOptimizerConfig,
    EarlyStoppingConfig,
    Files,
    Fraction,
    Name,
    NonNegativeFloat,
    NonNegativeInt,
    Number,
    OptimizerConfig,
    PositiveFloat,
    PositiveInt,
    Section,
    Width,
    Workers,
)

_FEATURES = ("numeric", "categorical", "multi_valued", "sequences")


class LogConfig(Section):
    """`data` of a click log."""

    train: Files = Field(
        min_length=1,
        description="Training files, folders of files or patterns, in training order. The files of a folder or "
        "pattern are in natural order (`part-2` before `part-10`).",
    )
    valid: Files = Field((), description="Validation files, folders of files or patterns.")
    test: Files = Field((), description="Test files, folders of files or patterns.")
    format: Literal["auto", "csv", "parquet", "libsvm"] = Field(
        "auto", description="File format. auto: chosen by the file suffix. csv: any delimited text."
    )
    delimiter: Name | None = Field(
        None, description="Text delimiter. blanks: runs of blanks. Default: a tab for .tsv and .txt, else a comma."
    )
    quotes: Bool | None = Field(
        None,
        description="Whether values of a text may be quoted. Default: if the delimiter is a comma, or all fields of "
        "the first line are quoted.",
    )
    columns: tuple[Name, ...] = Field((), description="Column names of text files without a header line.")
    label: Label = Field("label", validate_default=True, description="Label column: its name, or a section.")
    weight: Weight | None = Field(
        None,
        description="Column of the examples' weights: its name, or a section. An example's loss is multiplied by its "
        "weight before the mean over the batch. Metrics of evaluations count every example once. Default: all weigh 1.",
    )
    numeric: tuple[Numeric, ...] = Field((), description="Numeric columns: names, or sections.")
    categorical: tuple[Categorical, ...] = Field(
        (), description="Columns of one value per example: names, or sections."
    )
    multi_valued: tuple[Bag, ...] = Field(
        (), description="Columns with several values per example, in no order: names, or sections."
    )
    sequences: tuple[Sequence, ...] = Field(
        (), description="Columns with several values per example, ordered with the newest last: names, or sections."
    )
    ignored: tuple[Name, ...] = Field((), description="Columns of the files that the model does not use.")
    missing: tuple[Name, ...] = Field(
        (), description="Texts that mean a missing number, besides the usual ones (empty, NA, NaN, null, ?, ...)."
    )
    missing_numbers: Literal["refuse", "median"] | Number = Field(
        "refuse",
        description="Replacement for empty, NaN and infinite numbers, before the transform: median (of the column's "
        "first examples) or a number. refuse: such a number is an error.",
    )
    log_numbers: Bool = Field(False, description="Use log_squared for numeric columns with transform auto.")
    shuffle: NonNegativeInt = Field(0, description="Shuffle examples in blocks of this size. 0: file order.")

    @model_validator(mode="before")
    @classmethod
    def _log_numbers(cls, tree: Any) -> Any:
        """`log_numbers` is short for `transform: log_squared` in the columns that say nothing."""
        if not isinstance(tree, dict) or tree.get("log_numbers") is not True:
            return tree
        if not isinstance(tree.get("numeric"), list | tuple):
            return tree
        columns = [named(each) for each in tree["numeric"]]
        columns = [
            {**each, "transform": "log_squared"}
            if isinstance(each, dict) and each.get("transform", "auto") == "auto"
            else each
            for each in columns
        ]
        return {**tree, "numeric": columns}

    @property
    def plain_numbers(self) -> tuple[NumericConfig, ...]:
        """The numeric columns that the model gets as numbers."""
        return tuple(each for each in self.numeric if each.transform != "quantiles")

    @property
    def indicators(self) -> tuple[NumericConfig, ...]:
        """Those of them with an additional number that says where they are missing."""
        return tuple(each for each in self.plain_numbers if each.indicator)

    @property
    def num_numbers(self) -> int:
        """Numbers that the model gets of an example: those of the columns, then indicators."""
        return len(self.plain_numbers) + len(self.indicators)

    @property
    def unweighted(self) -> LogConfig:
        """The same for files that are evaluated: their column of weights, if they have it, is left out."""
        if self.weight is None:
            return self
        return self.model_copy(update={"weight": None, "ignored": (*self.ignored, self.weight.column)})

    @property
    def settled(self) -> bool:
        """Whether no setting is left to the first examples."""
        return all(each.settled and self.missing_of(each) != "median" for each in self.numeric)

    def missing_of(self, column: NumericConfig) -> Any:
        """The replacement of a missing number: "refuse", "median" or a number; None for a bucket without a number."""
        if column.indicator and column.transform == "quantiles":
            return None
        found = self.missing_numbers if column.missing is None else column.missing
        return "median" if column.indicator and found == "refuse" else found

    def single_valued(self) -> tuple[CategoricalConfig, ...]:
        """The features that have one row in an example: categorical ones, then buckets of numbers."""
        buckets = (each.name for each in self.numeric if each.transform == "quantiles")
        return (*self.categorical, *(CategoricalConfig(name=name, kind="integer") for name in buckets))

    def keyed(self) -> Iterator[CategoricalConfig]:
        """The features whose keys are in columns, in the order of the config's keys."""
        yield from (*self.categorical, *self.multi_valued, *self.sequences)

    def features(self) -> Iterator[CategoricalConfig]:
        """All features that have rows, in the order of the config's keys, buckets after `categorical`."""
        yield from (*self.single_valued(), *self.multi_valued, *self.sequences)

    @model_validator(mode="after")
    def _schema(self) -> LogConfig:
        listed = {key: [each.name for each in getattr(self, key)] for key in _FEATURES} | {"ignored": self.ignored}
        seen = {self.label.column: "label"}
        if self.weight is not None:
            if self.weight.column in seen:
                raise ValueError(f"weight: column '{self.weight.column}' is named here and under data.label")
            seen[self.weight.column] = "weight"
        for key, names in listed.items():
            for name in names:
                if name in seen:
                    where = "twice here" if seen[name] == key else f"here and under data.{seen[name]}"
                    raise ValueError(f"{key}: column '{name}' is named {where}")
                seen[name] = key
        return self


class NetworkConfig(Section):
    """`model`: the network and its sizes."""

    network: Annotated[Name, MODULE] = Field(
        "deepfm", description="lr, fm, deepfm, dlrm, dcnv2, dien, youtubednn, or FILE.py:CLASS, a module of your own."
    )
    dimension: Width = Field(16, description="Default embedding dimension of a feature, in floats.")
    hidden: tuple[Width, ...] = Field((400, 400, 400), description="Widths of the hidden layers of the top network.")
    bottom: tuple[Width, ...] = Field(
        (512, 256), description="dlrm: hidden layer widths of the bottom network (numbers)."
    )
    cross_layers: Workers = Field(3, description="dcnv2: number of cross layers.")
    batch_norm: Bool = Field(False, description="Whether batch normalisation follows each hidden layer.")
    dropout: Fraction = Field(0.0, description="Dropout probability of hidden units.")
    target: Name | None = Field(None, description="dien, youtubednn: target feature of sequences, such as the item.")
    auxiliary_loss: NonNegativeFloat = Field(
        1.0,
        description="dien: weight of the auxiliary loss, by which each step of a sequence learns to foretell the next "
        "value. 0: none.",
    )
    init_scale: PositiveFloat = Field(1e-2, description="Standard deviation of initial embeddings.")


class KeysConfig(Section):
    """`keys`: when keys get rows, and when they are dropped."""

    admit_after: PositiveInt = Field(
        1, description="Occurrences that a key needs to get its own row. Until then it uses a shared row."
    )
    drop_after: NonNegativeInt = Field(
        0, description="Drop keys that did not occur in the last `drop_after` files. 0: never drop."
    )
    capacity: NonNegativeInt = Field(0, description="Maximum rows per table. 0: as many as fit in free memory.")
    names: NonNegativeInt = Field(
        256,
        description="MiB for the texts that keys are fingerprints of. They are read once more after the last batch, on "
        "one machine, and kept in the run's folder, so that exports and `nearest` name rows by them. 0: none are kept.",
    )


class CtrTrainingConfig(Section):
    """`training` of click models."""

    epochs: PositiveInt = Field(1, description="Number of passes over the log.")
    batch_size: PositiveInt = Field(4096, description="Examples per batch. The last batch of a file may be smaller.")
    optimizer: OptimizerConfig = OptimizerConfig(learning_rate=0.05)
    dense_optimizer: DenseOptimizerConfig = DenseOptimizerConfig()
    embedding_l2: NonNegativeFloat = Field(
        0.0, description="L2 penalty: adds embedding_l2 / 2 times the sum of squares of a batch's rows to the loss."
    )
    progressive: Bool = Field(False, description="Predict each file before training on it (progressive validation).")
    progressive_by: Literal["file", "batch"] = Field(
        "file",
        description="What a progressive run predicts before training on it. file: a whole file, in a pass of its own. "
        "batch: each batch, as it is computed; the metrics are those of the batches between two checkpoints.",
    )
    early_stopping: EarlyStoppingConfig | None = EARLY_STOPPING


class CtrEvaluationConfig(Section):
    """`evaluation` of click models."""

    every: NonNegativeInt = Field(
        1,
        description="Epochs between evaluations on the validation files. The last epoch is always evaluated. 0: never.",
    )
    batch_size: PositiveInt = Field(16384, description="Examples per batch in evaluation and prediction.")


class CtrConfig(BaseConfig):
    """Training a CTR model on a click log."""

    data_grows = True
    kernels = "clicks"
    decisive_metric: ClassVar[str] = "auc"
    """Decides which checkpoint, or which trial of a search, is best: the larger, the better."""
    how_to_ask = "was trained on a click log: name the files to predict with --data"

    task: Literal["ctr"] = "ctr"
    data: LogConfig
    model: NetworkConfig = NetworkConfig()
    keys: KeysConfig = KeysConfig()
    training: CtrTrainingConfig = CtrTrainingConfig()
    evaluation: CtrEvaluationConfig = CtrEvaluationConfig()

    @model_validator(mode="after")
    def _combinations(self) -> CtrConfig:
        if self.training.progressive and self.training.epochs > 1:
            raise ValueError("training.epochs: a progressive run passes over each file once")
        if self.predicts_batches and self.nodes.dispatches:
            raise ValueError("training.progressive_by: 'batch' is for nodes.mode sync; use file")
        if self.training.early_stopping and not (self.evaluation.every and self.data.valid):
            raise ValueError("training.early_stopping: needs evaluation.every >= 1 and data.valid")
        if self.nodes.parts is not None and self.keys.admit_after > 1:
            raise ValueError("nodes.parts: keys.admit_after counts a trainer's keys at once, not by part; use 1")
        if self.nodes.parts is not None and any(each.pool_at == "shard" for each in self.data.multi_valued):
            raise ValueError("nodes.parts: a bag's partial sums depend on where its rows lie; use pool_at: trainer")
        names = {each.name for each in self.data.keyed()}
        if self.model.target is not None and self.model.target not in names:
            raise ValueError(f"model.target: '{self.model.target}' is no feature of the schema")
        for each in self.data.keyed():
            if each.vocabulary is not None and each.vocabulary not in names:
                raise ValueError(
                    f"data: feature '{each.name}' shares the rows of '{each.vocabulary}', which is no feature"
                )
        return self

    @property
    def predicts_batches(self) -> bool:
        """Whether each batch is predicted before it is trained on."""
        return self.training.progressive and self.training.progressive_by == "batch"

    @property
    def train_files(self) -> tuple[str, ...]:
        """See `BaseConfig.train_files`."""
        return self.data.train
