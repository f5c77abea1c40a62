"""The configuration of click-through-rate (CTR) training. Imports neither torch nor numba."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from marius_oac.config_base import BaseConfig
from marius_oac.config_sections import (
    DenseOptimizerConfig,
    EarlyStoppingConfig,
    Fraction,
    Name,
    NonNegativeFloat,
    NonNegativeInt,
    Number,
    OptimizerConfig,
    PositiveFloat,
    PositiveInt,
    Section,
    Switch,
    listed,
)


def _named(value: Any) -> Any:
    """`- user` is short for `- name: user`."""
    return {"name": value} if isinstance(value, str) else value


class CategoricalConfig(Section):
    name: Name = Field(description="The column.")
    vocabulary: Name | None = Field(None, description="Shares rows with the features of this vocabulary; default: own.")
    dimension: PositiveInt | None = Field(None, description="Floats of a row; default: model.dimension.")
    kind: Literal["auto", "integer", "hex", "string"] = Field(
        "auto",
        description="How values become keys: as they are, or by a checked fingerprint; auto: integers of Parquet and "
        "libsvm files as they are, texts, which is all that .csv and .tsv files have, by fingerprint.",
    )


class BagConfig(CategoricalConfig):
    separator: Name = Field("|", description="Between the values of a text column; lists need none.")
    pooling: Literal["sum", "mean"] = Field("sum", description="How a bag's rows become one.")
    max_values: PositiveInt = Field(64, description="A bag keeps its first values; what is cut is counted.")
    pool_at: Literal["trainer", "shard"] = Field(
        "trainer",
        description="Over several nodes, who adds up the rows of a bag: the trainer, or each node those that it has, "
        "which moves less where bags are long and seldom share keys.",
    )


class SequenceConfig(CategoricalConfig):
    separator: Name = Field("|", description="Between the values of a text column; lists need none.")
    max_values: PositiveInt = Field(64, description="A sequence keeps its last values; what is cut is counted.")


Files = Annotated[tuple[Name, ...], BeforeValidator(listed)]
Categorical = Annotated[CategoricalConfig, BeforeValidator(_named)]
Bag = Annotated[BagConfig, BeforeValidator(_named)]
Sequence = Annotated[SequenceConfig, BeforeValidator(_named)]


class LogConfig(Section):
    train: Files = Field(
        min_length=1, description="Files or patterns of the training log, in order; a pattern's files by name."
    )
    valid: Files = Field((), description="Files or patterns to validate on.")
    test: Files = Field((), description="Files or patterns to test on.")
    format: Literal["auto", "csv", "parquet", "libsvm"] = Field(
        "auto", description="auto: by the files' suffix; csv is any delimited text."
    )
    delimiter: Name | None = Field(None, description="Of text files; default: a tab for .tsv and .txt, else a comma.")
    columns: tuple[Name, ...] = Field((), description="Names of the columns of text files without a header line.")
    label: Name = Field("label", description="The column that is 1 for a click and 0 for none.")
    numeric: tuple[Name, ...] = Field((), description="Columns of numbers.")
    categorical: tuple[Categorical, ...] = Field((), description="Columns of one value: names, or sections.")
    multi_valued: tuple[Bag, ...] = Field((), description="Columns of several values in no order.")
    sequences: tuple[Sequence, ...] = Field((), description="Columns of several values in order, the newest last.")
    ignored: tuple[Name, ...] = Field((), description="Columns that the files have and the model does not use.")
    missing_numbers: Literal["refuse"] | Number = Field(
        "refuse", description="What an empty, NaN or infinite number becomes, before log_numbers; refuse: an error."
    )
    log_numbers: Switch = Field(False, description="Numbers x > 2 become ln(x)^2, the others stay.")
    shuffle: NonNegativeInt = Field(0, description="Examples are shuffled within stretches of so many; 0: file order.")

    def features(self) -> Iterator[CategoricalConfig]:
        """All features that have rows, in the order of the keys of the config."""
        yield from (*self.categorical, *self.multi_valued, *self.sequences)

    @model_validator(mode="after")
    def _schema(self) -> LogConfig:
        names = [self.label, *self.numeric, *(each.name for each in self.features()), *self.ignored]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice:
            raise ValueError(f"label: column '{twice}' is named twice in the schema")
        if not any(self.features()):
            raise ValueError("categorical: the schema names no feature that has rows")
        return self


class NetworkConfig(Section):
    network: Name = Field(
        "deepfm", description="lr, fm, deepfm, dlrm, dcnv2, dien, youtubednn, or FILE.py:CLASS, a module of your own."
    )
    dimension: PositiveInt = Field(16, description="Floats of a feature's row, where the feature does not say.")
    hidden: tuple[PositiveInt, ...] = Field((400, 400, 400), description="Widths of the top network's layers.")
    bottom: tuple[PositiveInt, ...] = Field((512, 256), description="DLRM: hidden widths of the numbers' network.")
    cross_layers: PositiveInt = Field(3, description="DCNv2: cross layers.")
    batch_norm: Switch = Field(False, description="Batch normalisation after each hidden layer.")
    dropout: Fraction = Field(0.0, description="Share of hidden units that a training batch leaves out.")
    target: Name | None = Field(None, description="DIEN, YouTubeDNN: the feature that the sequences lead up to.")
    init_scale: PositiveFloat = Field(1e-2, description="Standard deviation of the rows' initial values.")


class KeysConfig(Section):
    admit_after: PositiveInt = Field(1, description="A key gets its own row when seen so often; before, a shared one.")
    drop_after: NonNegativeInt = Field(0, description="Keys not seen for so many files are dropped; 0: never.")
    capacity: NonNegativeInt = Field(0, description="Most rows of a table; 0: what fits into the memory at hand.")


class CtrTrainingConfig(Section):
    epochs: PositiveInt = Field(1, description="Passes over the log.")
    batch_size: PositiveInt = Field(4096, description="Examples per batch; a file's last batch may be shorter.")
    optimizer: OptimizerConfig = OptimizerConfig(learning_rate=0.05)
    dense_optimizer: DenseOptimizerConfig = DenseOptimizerConfig()
    embedding_l2: NonNegativeFloat = Field(0.0, description="L2 penalty on the rows of a batch, half its factor.")
    progressive: Switch = Field(False, description="Each file is first predicted, then trained on.")
    early_stopping: EarlyStoppingConfig | None = Field(None, description="Stop when validation no longer improves.")


class CtrEvaluationConfig(Section):
    every: NonNegativeInt = Field(1, description="Epochs between validations; 0: never.")
    batch_size: PositiveInt = Field(16384, description="Examples predicted at once.")


class CtrConfig(BaseConfig):
    """Training a CTR model on a click log."""

    task: Literal["ctr"] = Field("ctr", description="graph: link prediction; ctr: click-through rates.")
    data: LogConfig
    model: NetworkConfig = NetworkConfig()
    keys: KeysConfig = KeysConfig()
    training: CtrTrainingConfig = CtrTrainingConfig()
    evaluation: CtrEvaluationConfig = CtrEvaluationConfig()

    @model_validator(mode="after")
    def _combinations(self) -> CtrConfig:
        if self.training.progressive and self.training.epochs > 1:
            raise ValueError("training.epochs: a progressive run passes over each file once")
        if self.training.early_stopping and not (self.evaluation.every and self.data.valid):
            raise ValueError("training.early_stopping: needs evaluation.every >= 1 and data.valid")
        names = {each.name for each in self.data.features()}
        if self.model.target is not None and self.model.target not in names:
            raise ValueError(f"model.target: '{self.model.target}' is no feature of the schema")
        for each in self.data.features():
            if each.vocabulary is not None and each.vocabulary not in names:
                raise ValueError(
                    f"data: feature '{each.name}' shares the rows of '{each.vocabulary}', which is no feature"
                )
        return self
