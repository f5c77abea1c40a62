"""The configuration of a click log's columns: features of each kind, and the label."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticKnownError

from marius_oac.config.sections import Bool, Name, Number, PositiveFloat, PositiveInt, Section, Width


def named(value: Any) -> Any:
    """`- user` is short for `- name: user`."""
    return {"name": value} if isinstance(value, str) else value


_SEPARATOR = Field(
    "|",
    description="Separator of the values in a text column. list: texts such as [2, 12, 21] or ['a', 'b']. List columns "
    "need none.",
)
LIST = "list"
"""The separator of texts that are written as lists."""


class CategoricalConfig(Section):
    """A feature with one key per example."""

    name: Name = Field(description="Name of the column.")
    vocabulary: Name | None = Field(None, description="Feature whose rows it shares. Default: its own rows.")
    dimension: Width | None = Field(None, description="Embedding dimension, in floats. Default: model.dimension.")
    kind: Literal["auto", "integer", "hex", "string", "verbatim"] = Field(
        "auto",
        description="How values become 64-bit keys. integer, hex: the number itself. string: a fingerprint of the "
        "text, checked for collisions, without blanks around it and with 69 for 69.0. verbatim: the same of the text "
        "as it is. auto: integer if the first file has numbers (Parquet, libsvm), string if it has texts (.csv, .tsv). "
        "It is settled when training begins; files of another type are converted to it, or refused where that is not "
        "exact.",
    )


class BagConfig(CategoricalConfig):
    """A feature with several keys per example, whose rows are pooled."""

    separator: Name = _SEPARATOR
    pooling: Literal["sum", "mean"] = Field("sum", description="Pooling of a bag's rows: sum or mean.")
    max_values: PositiveInt = Field(
        64, description="Maximum number of values per bag. The first ones are kept. Dropped values are counted."
    )
    pool_at: Literal["trainer", "shard"] = Field(
        "trainer",
        description="Where bags are pooled on several nodes. trainer: on the trainer. shard: each shard sums the rows "
        "that it holds, which moves less data if bags are long and rarely share keys.",
    )


class SequenceConfig(CategoricalConfig):
    """A feature with a sequence of keys per example."""

    separator: Name = _SEPARATOR
    max_values: PositiveInt = Field(
        64, description="Maximum number of values per sequence. The last ones are kept. Dropped values are counted."
    )


class NumericConfig(Section):
    """A numeric column."""

    name: Name = Field(description="Name of the column.")
    transform: Literal["auto", "none", "standardize", "log1p", "quantiles", "log_squared"] = Field(
        "auto",
        description="Transform of a value x. auto: chosen by the first 65,536 examples of the log. none: unchanged. "
        "standardize: (x - center) / scale, clipped to [-10, 10]. log1p: the same for sign(x) * ln(1 + "
        "abs(x)). quantiles: a categorical feature whose value is the bucket of x. log_squared: ln(x)^2 if "
        "x > 2, else x.",
    )
    clip: tuple[Number, Number] | None = Field(
        None, description="Smallest and largest value. Values outside are set to the nearer one before the transform."
    )
    center: Number | None = Field(None, description="standardize, log1p. Default: the mean of the first examples.")
    scale: PositiveFloat | None = Field(
        None, description="standardize, log1p. Default: the standard deviation of the first examples."
    )
    buckets: Annotated[int, Field(ge=2, le=65536, strict=True)] | None = Field(
        None, description="quantiles: approximate number of buckets. Default: 32."
    )
    edges: tuple[Number, ...] | None = Field(
        None,
        description="quantiles: boundaries between buckets, ascending. Default: boundaries that spread the first "
        "examples evenly, with frequent values in buckets of their own.",
    )
    missing: Literal["refuse", "median"] | Number | None = Field(
        None,
        description="data.missing_numbers for this column: refuse, median or a number. Default: data.missing_numbers. "
        "With `indicator`, refuse acts as median.",
    )
    indicator: Bool = Field(
        False,
        description="Tell the model which numbers are missing: by an additional input, 1 or 0, or with quantiles by a "
        "separate bucket.",
    )
    unit: Name | None = Field(None, description="Text that may stand before or after each number, such as $ or %.")
    thousands: Name | None = Field(
        None, description="Mark between groups of three digits, such as the comma of 8,405.00."
    )
    decimal: Literal[".", ","] = Field(".", description="Decimal mark.")

    @property
    def raw(self) -> bool:
        """Whether values are taken from the file as 32-bit floats, with no or little transformation."""
        return self.transform in ("auto", "none", "log_squared")

    @property
    def written(self) -> bool:
        """Whether its numbers are written in another way than 8405.00."""
        return self.unit is not None or self.thousands is not None or self.decimal != "."

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
        if self.thousands is not None and (len(self.thousands) != 1 or self.thousands.isalnum()):
            raise ValueError(f"thousands: one mark is needed, no letter and no digit, not {self.thousands!r}")
        if self.thousands == self.decimal:
            raise ValueError(f"thousands: is the decimal mark, {self.decimal!r}, too")
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


_Values = Annotated[tuple[Name, ...], BeforeValidator(_texts, json_schema_input_type=_Texts), Field(min_length=1)]


class LabelConfig(Section):
    """The column of labels."""

    column: Name = Field(description="Name of the column.")
    positive: _Values | None = Field(
        None,
        description="Value or values that mean 1; all others mean 0. Default: 1, true, t, yes and y mean 1, and 0, "
        "false, f, no and n mean 0, in upper or lower case.",
    )
    negative: _Values | None = Field(
        None,
        description="With positive: value or values that mean 0; any other is an error. Default: if the first examples "
        "have one value besides those of positive, that one; else all others mean 0.",
    )
    above: Number | None = Field(
        None,
        description="Number above which a label means 1, such as the share of a video that was watched; all "
        "other numbers mean 0. Instead of positive.",
    )

    @model_validator(mode="after")
    def _says_it_once(self) -> LabelConfig:
        if self.above is not None and self.positive is not None:
            raise ValueError("above: does not go with positive")
        if self.negative is not None and self.positive is None:
            raise ValueError("negative: needs positive")
        if set(self.negative or ()) & set(self.positive or ()):
            raise ValueError("negative: has a value of positive, too")
        return self


class WeightConfig(Section):
    """The column of the examples' weights."""

    column: Name = Field(description="Name of the column: finite numbers, 0 or more, without missing ones.")
    of: Literal["all", "clicks"] = Field(
        "all",
        description="Examples that it weighs. clicks: those with label 1, such as by the time that a video was "
        "watched; all others count 1.",
    )


def _column(value: Any) -> Any:
    """`label: click` is short for `label: {column: click}`."""
    return {"column": value} if isinstance(value, str) else value


Label = Annotated[LabelConfig, BeforeValidator(_column, json_schema_input_type=Name | LabelConfig)]
Weight = Annotated[WeightConfig, BeforeValidator(_column, json_schema_input_type=Name | WeightConfig)]
Numeric = Annotated[NumericConfig, BeforeValidator(named, json_schema_input_type=Name | NumericConfig)]
Categorical = Annotated[CategoricalConfig, BeforeValidator(named, json_schema_input_type=Name | CategoricalConfig)]
Bag = Annotated[BagConfig, BeforeValidator(named, json_schema_input_type=Name | BagConfig)]
Sequence = Annotated[SequenceConfig, BeforeValidator(named, json_schema_input_type=Name | SequenceConfig)]
