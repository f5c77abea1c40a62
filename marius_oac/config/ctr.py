"""The configuration of click-through-rate (CTR) training. Imports neither torch nor numba."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticKnownError

from marius_oac.config.base import BaseConfig
from marius_oac.config.named_files import MODULE
from marius_oac.config.sections import (
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


def _named(value: Any) -> Any:
    """`- user` is short for `- name: user`."""
    return {"name": value} if isinstance(value, str) else value


class CategoricalConfig(Section):
    """A feature with one key per example."""

    name: Name = Field(description="The column.")
    vocabulary: Name | None = Field(None, description="Shares rows with the features of this vocabulary; default: own.")
    dimension: Width | None = Field(None, description="Floats of a row; default: model.dimension.")
    kind: Literal["auto", "integer", "hex", "string"] = Field(
        "auto",
        description="How values become keys. integer, hex: the number itself. string: a checked fingerprint. auto: "
        "integer for integers of Parquet and libsvm files, string for texts, which is all that .csv and .tsv files "
        "have.",
    )


class BagConfig(CategoricalConfig):
    """A feature with several keys per example, whose rows are pooled."""

    separator: Name = Field("|", description="Between the values of a text column; lists need none.")
    pooling: Literal["sum", "mean"] = Field("sum", description="How the rows of a bag are combined: sum or mean.")
    max_values: PositiveInt = Field(
        64, description="Values of a bag that are kept, from the first on; the others are counted."
    )
    pool_at: Literal["trainer", "shard"] = Field(
        "trainer",
        description="Over several nodes, where the rows of a bag are summed: by the trainer, or on each shard those "
        "that it has, which moves less data where bags are long and seldom share keys.",
    )


class SequenceConfig(CategoricalConfig):
    """A feature with a sequence of keys per example."""

    separator: Name = Field("|", description="Between the values of a text column; lists need none.")
    max_values: PositiveInt = Field(
        64, description="Values of a sequence that are kept, up to the last; the others are counted."
    )


class NumericConfig(Section):
    """A numeric column."""

    name: Name = Field(description="The column.")
    transform: Literal["auto", "none", "standardize", "log1p", "quantiles", "log_squared"] = Field(
        "auto",
        description="auto: one of the others, by the first examples of the log. none: as it is. standardize: "
        "(x - center) / scale, limited to -10 and 10. log1p: the same of ln(1 + x), of -ln(1 - x) where x < 0. "
        "quantiles: a categorical feature, whose value is the bucket that x falls into. log_squared: ln(x)^2 where "
        "x > 2.",
    )
    clip: tuple[Number, Number] | None = Field(
        None, description="Smallest and largest value; values outside are set to these before the transform."
    )
    center: Number | None = Field(None, description="standardize, log1p; default: the mean of the first examples.")
    scale: PositiveFloat | None = Field(
        None, description="standardize, log1p; default: the standard deviation of the first examples."
    )
    buckets: Annotated[int, Field(ge=2, le=65536, strict=True)] | None = Field(
        None, description="quantiles: number of buckets, roughly; default: 32."
    )
    edges: tuple[Number, ...] | None = Field(
        None,
        description="quantiles: where one bucket ends and the next begins, ascending; default: so that the first "
        "examples fill buckets evenly, frequent values by themselves.",
    )
    missing: Literal["refuse", "median"] | Number | None = Field(
        None,
        description="data.missing_numbers for this column: refuse, median or a number; default: the same, but with "
        "`indicator` never refuse.",
    )
    indicator: Bool = Field(
        False,
        description="Tell the model that a number is missing: by an additional number, 1 or 0; quantiles: by a "
        "separate bucket.",
    )

    @property
    def raw(self) -> bool:
        """Whether values are taken from the file as 32-bit floats, with no or little transformation."""
        return self.transform in ("auto", "none", "log_squared")

    @property
    def settled(self) -> bool:
        """Whether every setting that the first examples would decide is given."""
        given = {
            "auto": False,
            "standardize": self.center is not None and self.scale is not None,
            "log1p": self.center is not None and self.scale is not None,
            "quantiles": self.edges is not None,
        }
        return given.get(self.transform, True)

    @model_validator(mode="after")
    def _belongs_together(self) -> NumericConfig:
        scaled, bucketed = ("standardize", "log1p"), ("quantiles",)
        owners = {"center": scaled, "scale": scaled, "buckets": bucketed, "edges": bucketed}
        for key, transforms in owners.items():
            if getattr(self, key) is not None and self.transform not in transforms:
                raise ValueError(f"{key}: belongs to transform {' or '.join(transforms)}, not '{self.transform}'")
        if self.clip and self.clip[0] >= self.clip[1]:
            raise ValueError(f"clip: {self.clip[0]:g} is not below {self.clip[1]:g}")
        if self.edges is not None and any(a >= b for a, b in pairwise(self.edges)):
            raise ValueError("edges: must ascend")
        return self


_Texts = Name | Number | tuple[Name | Number, ...]


def _texts(value: Any) -> Any:
    """Values of a label as texts; YAML takes a bare `yes` for true, and which text was meant is lost then."""
    values = value if isinstance(value, list | tuple) else [value]
    if any(isinstance(each, bool) for each in values):
        raise PydanticKnownError("string_type")
    return [str(each) if isinstance(each, int | float) else each for each in values]


class LabelConfig(Section):
    """The column of labels."""

    column: Name = Field(description="The column.")
    positive: (
        Annotated[tuple[Name, ...], BeforeValidator(_texts, json_schema_input_type=_Texts), Field(min_length=1)] | None
    ) = Field(
        None,
        description="The value, or values, that mean 1; all others mean 0. Default: 1, true, t, yes and y mean 1, 0, "
        "false, f, no and n mean 0, whatever the case.",
    )


def _column(value: Any) -> Any:
    """`label: click` is short for `label: {column: click}`."""
    return {"column": value} if isinstance(value, str) else value


_FEATURES = ("numeric", "categorical", "multi_valued", "sequences")
Label = Annotated[LabelConfig, BeforeValidator(_column, json_schema_input_type=Name | LabelConfig)]
Numeric = Annotated[NumericConfig, BeforeValidator(_named, json_schema_input_type=Name | NumericConfig)]
Categorical = Annotated[CategoricalConfig, BeforeValidator(_named, json_schema_input_type=Name | CategoricalConfig)]
Bag = Annotated[BagConfig, BeforeValidator(_named, json_schema_input_type=Name | BagConfig)]
Sequence = Annotated[SequenceConfig, BeforeValidator(_named, json_schema_input_type=Name | SequenceConfig)]


class LogConfig(Section):
    """`data` of a click log."""

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
    label: Label = Field(
        "label", validate_default=True, description="The column with the label: its name, or a section."
    )
    numeric: tuple[Numeric, ...] = Field((), description="Columns of numbers: names, or sections.")
    categorical: tuple[Categorical, ...] = Field((), description="Columns of one value: names, or sections.")
    multi_valued: tuple[Bag, ...] = Field((), description="Columns of several values in no order.")
    sequences: tuple[Sequence, ...] = Field((), description="Columns of several values in order, the newest last.")
    ignored: tuple[Name, ...] = Field((), description="Columns that the files have and the model does not use.")
    missing_numbers: Literal["refuse", "median"] | Number = Field(
        "refuse",
        description="What an empty, NaN or infinite number becomes, before the transform: refuse (an error), median "
        "(of the column's first examples) or a number.",
    )
    log_numbers: Bool = Field(False, description="Use log_squared for columns of transform auto.")
    shuffle: NonNegativeInt = Field(0, description="Shuffle examples within ranges of so many; 0: file order.")

    @model_validator(mode="before")
    @classmethod
    def _log_numbers(cls, tree: Any) -> Any:
        """`log_numbers` is short for `transform: log_squared` in the columns that say nothing."""
        if not isinstance(tree, dict) or tree.get("log_numbers") is not True:
            return tree
        if not isinstance(tree.get("numeric"), list | tuple):
            return tree
        columns = [_named(each) for each in tree["numeric"]]
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
    dimension: Width = Field(16, description="Floats of a feature's row, where the feature does not say.")
    hidden: tuple[Width, ...] = Field((400, 400, 400), description="Widths of the top network's layers.")
    bottom: tuple[Width, ...] = Field((512, 256), description="DLRM: hidden widths of the numbers' network.")
    cross_layers: Workers = Field(3, description="DCNv2: cross layers.")
    batch_norm: Bool = Field(False, description="Batch normalisation after each hidden layer.")
    dropout: Fraction = Field(0.0, description="Share of hidden units that a training batch leaves out.")
    target: Name | None = Field(None, description="DIEN, YouTubeDNN: the feature that the sequences lead up to.")
    init_scale: PositiveFloat = Field(1e-2, description="Standard deviation of the rows' initial values.")


class KeysConfig(Section):
    """`keys`: when keys get rows, and when they are dropped."""

    admit_after: PositiveInt = Field(1, description="A key gets its own row when seen so often; before, a shared one.")
    drop_after: NonNegativeInt = Field(0, description="Keys not seen for so many files are dropped; 0: never.")
    capacity: NonNegativeInt = Field(0, description="Most rows of a table; 0: what fits into free memory.")


class CtrTrainingConfig(Section):
    """`training` of click models."""

    epochs: PositiveInt = Field(1, description="Passes over the log.")
    batch_size: PositiveInt = Field(4096, description="Examples per batch; a file's last batch may be shorter.")
    optimizer: OptimizerConfig = OptimizerConfig(learning_rate=0.05)
    dense_optimizer: DenseOptimizerConfig = DenseOptimizerConfig()
    embedding_l2: NonNegativeFloat = Field(0.0, description="L2 penalty on the rows of a batch, half its factor.")
    progressive: Bool = Field(False, description="Each file is first predicted, then trained on.")
    early_stopping: EarlyStoppingConfig | None = Field(None, description="Stop when validation no longer improves.")


class CtrEvaluationConfig(Section):
    """`evaluation` of click models."""

    every: NonNegativeInt = Field(1, description="Epochs between validations; 0: never.")
    batch_size: PositiveInt = Field(16384, description="Examples predicted at once.")


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
    def train_files(self) -> tuple[str, ...]:
        """See `BaseConfig.train_files`."""
        return self.data.train

    @classmethod
    def of_an_older_run(cls, tree: Mapping[str, Any]) -> Mapping[str, Any]:
        """See `BaseConfig.of_an_older_run`. In versions without transforms, the label and numeric columns are mere
        names, whose values were taken as they are, or by `log_numbers`."""
        data = tree.get("data")
        if not isinstance(data, Mapping) or not isinstance(data.get("numeric"), list | tuple):
            return tree
        transform = "log_squared" if data.get("log_numbers") is True else "none"

        def section(column: Any) -> Any:
            known = {"name": column, "transform": transform}
            return NumericConfig(**known).model_dump(mode="json") if isinstance(column, str) and column else column

        changed: dict[str, Any] = {"numeric": [section(each) for each in data["numeric"]]}
        if isinstance(data.get("label"), str):
            changed["label"] = {"column": data["label"], "positive": None}
        return {**tree, "data": {**data, **changed}}
