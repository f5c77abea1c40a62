"""The configuration: frozen pydantic models, read from YAML, changed by `--set`, refused with the key's path.

Imports neither torch nor numba. Every field's description is its help text; `docs/config.md` is made from them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticKnownError

from marius_oac.config_errors import explain, fields, flat, parse, reason, shown, where
from marius_oac.errors import ConfigError


def _no_bool(value: Any) -> Any:
    """YAML's `yes` is a truth value, which Python would take for the number 1."""
    if isinstance(value, bool):
        raise PydanticKnownError("float_type")
    return value


_LARGEST = 2**63 - 1  # what an int64 holds
_Number = Annotated[float, BeforeValidator(_no_bool), Field(allow_inf_nan=False)]
PositiveInt = Annotated[int, Field(gt=0, le=_LARGEST, strict=True)]
NonNegativeInt = Annotated[int, Field(ge=0, le=_LARGEST, strict=True)]
PositiveFloat = Annotated[_Number, Field(gt=0)]
NonNegativeFloat = Annotated[_Number, Field(ge=0)]
Fraction = Annotated[_Number, Field(ge=0, le=1)]
Moment = Annotated[_Number, Field(ge=0, lt=1)]
Switch = Annotated[bool, Field(strict=True)]
Name = Annotated[str, Field(min_length=1, pattern=r"^[^\x00]*$")]


class Section(BaseModel):
    """Base of all sections: frozen, keyword-only, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class DataConfig(Section):
    path: Name = Field(
        description="Folder made by `marius-oac prepare`, or the name of an embedded data set (codex-s)."
    )


class ModelConfig(Section):
    decoder: Literal["distmult", "complex", "transe", "rotate", "dot"] = Field(
        "complex", description="Score function of an edge; dot needs no relations."
    )
    dimension: PositiveInt = Field(100, description="Floats per entity; complex and rotate use two floats a number.")
    norm: Annotated[Literal[1, 2], BeforeValidator(_no_bool)] = Field(2, description="TransE's distance: L1 or L2.")
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


class OptimizerConfig(Section):
    kind: Literal["sgd", "adagrad", "rowwise_adagrad", "adam"] = Field("adagrad", description="Row optimizer.")
    learning_rate: PositiveFloat = Field(0.1, description="Step size of the tables' rows.")
    relation_learning_rate: PositiveFloat | None = Field(None, description="Step size of relations; default: the same.")
    epsilon: PositiveFloat = Field(1e-10, description="Added to the denominator (Adagrad, Adam).")
    initial_accumulator: NonNegativeFloat = Field(0.0, description="Adagrad's accumulator before the first update.")
    beta1: Moment = Field(0.9, description="Adam's decay of the first moment.")
    beta2: Moment = Field(0.999, description="Adam's decay of the second moment.")
    decay: Annotated[_Number, Field(gt=0, le=1)] = Field(1.0, description="The learning rate's factor per epoch.")


class EarlyStoppingConfig(Section):
    patience: PositiveInt = Field(description="Evaluations without improvement before training stops.")
    min_delta: NonNegativeFloat = Field(0.0, description="Improvement of the filtered MRR that counts as one.")


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


class LinkConfig(Section):
    bandwidth: PositiveFloat = Field(description="GB/s in each direction.")
    latency: NonNegativeFloat = Field(0.0, description="Microseconds per transfer.")


class WorkersConfig(Section):
    plan: PositiveInt = Field(1, description="Threads that make batches.")
    read: PositiveInt = Field(1, description="Threads that read rows from the store.")
    upload: PositiveInt = Field(1, description="Threads that move rows to the device.")
    download: PositiveInt = Field(1, description="Threads that move rows back.")
    write: PositiveInt = Field(1, description="Threads that commit rows to the store.")


class PipelineConfig(Section):
    mode: Literal["sync", "async", "async-delta", "oac"] = Field(
        "oac", description="sync: one batch at a time. oac: many, same bits. async, async-delta: many, stale."
    )
    order: Name = Field(
        "plan", description="oac computes in plan order, in order of arrival, or as recorded in the given order.npy."
    )
    in_flight: PositiveInt = Field(4, description="Batches in flight; sync always has one.")
    workers: WorkersConfig = WorkersConfig()
    link: LinkConfig | None = Field(None, description="Emulate a link to the device (for measurements on a CPU).")

    @model_validator(mode="after")
    def _order(self) -> PipelineConfig:
        if self.order == "arrival" and self.mode == "sync":
            raise ValueError("order: 'arrival' needs several batches in flight; mode is 'sync'")
        if self.order != "plan" and self.mode in ("async", "async-delta"):
            raise ValueError(f"order: mode '{self.mode}' always computes in order of arrival; leave `order` out")
        return self


class StorageConfig(Section):
    dtype: Literal["float32", "bfloat16"] = Field("float32", description="How values are stored; state is float32.")


class CheckpointConfig(Section):
    every_epochs: PositiveInt = Field(1, description="Epochs between checkpoints; the last epoch always has one.")
    every_batches: NonNegativeInt = Field(0, description="Also after so many batches; 0: only at epochs.")
    keep: PositiveInt = Field(2, description="Checkpoints kept beside the best one.")


class MetricsConfig(Section):
    every_batches: PositiveInt = Field(100, description="Batches between two lines of metrics.jsonl and progress.")


class Config(Section):
    """A whole run. `Config.load` reads it from YAML; `dump` writes it back with every default filled in."""

    seed: NonNegativeInt = Field(0, description="Seed of initial values, shuffles, negatives and splits.")
    device: str = Field("auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$", description="auto, cpu, cuda or cuda:N.")
    threads: NonNegativeInt = Field(
        0, description="Threads that compute on the CPU; 0: one per core. Same bits for any number."
    )
    data: DataConfig
    model: ModelConfig = ModelConfig()
    training: TrainingConfig = TrainingConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    pipeline: PipelineConfig = PipelineConfig()
    storage: StorageConfig = StorageConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    metrics: MetricsConfig = MetricsConfig()

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
    def load(cls, path: str | Path, overrides: Iterable[str] = ()) -> Config:
        """Reads a YAML file and applies `a.b=c` overrides.

        Raises:
            ConfigError: missing or broken file, unknown key (with the near one), wrong type, impossible combination.
        """
        path = Path(path)
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(reason(error), path) from None
        tree, lines = parse(text, path)
        if not isinstance(tree, dict):
            raise ConfigError("must be a mapping of keys, such as `data: {path: ...}`", path)
        return cls.build(tree, overrides, source=str(path), lines=lines)

    @classmethod
    def build(
        cls,
        tree: Mapping[str, Any],
        overrides: Iterable[str] = (),
        source: str | None = None,
        lines: Mapping[tuple, int] | None = None,
    ) -> Config:
        """Validates a tree of plain values; `lines` maps key paths to line numbers of `source`."""
        overrides = list(overrides)
        merged = _apply(tree, overrides)
        from_set = {tuple(item.partition("=")[0].split(".")) for item in overrides}
        try:
            return cls.model_validate(merged)
        except ValidationError as error:
            first = error.errors()[0]
            path = tuple(str(part) for part in first["loc"] if part in flat(merged, first["loc"]))
            message = explain(first, cls)
            if first["type"] == "value_error":  # of a validator: "key: what is wrong", the key relative to the section
                key, _, message = message.partition(": ")
                path = (*path, *key.split("."))
            raise ConfigError(message, where(path, source, lines or {}, from_set)) from None

    def dump(self) -> str:
        """The resolved configuration as YAML: what `load` reads back to an equal Config."""
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False)

    @classmethod
    def describe(cls) -> str:
        """Every key with its default and meaning, as a Markdown table."""
        lines = ["| key | default | meaning |", "|---|---|---|"]
        for path, field in fields(cls):
            default = "required" if field.is_required() else f"`{yaml.safe_dump(field.default).splitlines()[0]}`"
            lines.append(f"| `{path}` | {default} | {field.description} |")
        return "\n".join(lines)

    def replace(self, *overrides: str) -> Config:
        """A copy with `a.b=c` overrides applied and everything validated again."""
        return Config.build(self.model_dump(mode="json"), overrides)


def _apply(tree: Mapping[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    merged = _copy(tree)
    for item in overrides:
        key, equals, text = item.partition("=")
        if not equals or not all(key.split(".")):
            raise ConfigError("must look like key.path=value", f"--set {item}")
        try:
            value, _ = parse(text, "--set")
        except ConfigError:
            raise ConfigError(f"{shown(text)} is not a YAML value", f"--set {key}") from None
        here = merged
        *parents, last = key.split(".")
        for part in parents:
            if here.get(part) is None:  # not there yet, or a section that is switched off
                here[part] = {}
            here = here[part]
            if not isinstance(here, dict):
                raise ConfigError(f"'{part}' is {shown(here)}, not a section of keys", f"--set {key}")
        here[last] = _copy(value)
    return merged


def _copy(tree: Any) -> Any:
    return {str(key): _copy(value) for key, value in tree.items()} if isinstance(tree, Mapping) else tree
