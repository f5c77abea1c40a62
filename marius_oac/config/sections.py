"""Sections of a configuration that every task shares, and the types of their numbers.

Imports neither torch nor numba. Every field's description is its help text.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ByteSize, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError, PydanticKnownError

from marius_oac.config.named_files import FILE, GRAPH, MODULE, Named
from marius_oac.config.parts import ROW_OPTIMIZERS, RowOptimizerName, own_file, values_of


def no_bool(value: Any) -> Any:
    """YAML's `yes` is a truth value, which Python would take for the number 1."""
    if isinstance(value, bool):
        raise PydanticKnownError("float_type")
    return value


_LARGEST = 2**63 - 1  # what an int64 holds
Number = Annotated[float, BeforeValidator(no_bool), Field(allow_inf_nan=False)]
PositiveInt = Annotated[int, Field(gt=0, le=_LARGEST, strict=True)]
NonNegativeInt = Annotated[int, Field(ge=0, le=_LARGEST, strict=True)]
Width = Annotated[int, Field(gt=0, le=1 << 20, strict=True)]
"""Floats of a row or of a layer's output."""
Workers = Annotated[int, Field(gt=0, le=1024, strict=True)]
"""Threads of one kind: as many are started."""
TrackerName = Literal["tensorboard", "mlflow", "prometheus"]
AtOnce = Annotated[int, Field(gt=0, le=1 << 20, strict=True)]
"""Number of items that wait or are in flight at once: each takes its own memory."""
Auto = Literal["auto"]
MOST_WORKERS = 4
"""The most threads of a stage where their number is `auto`."""
FIXED_IN_FLIGHT = 4
"""What `auto` stands for where the number of batches in flight changes results."""
PositiveFloat = Annotated[Number, Field(gt=0)]
NonNegativeFloat = Annotated[Number, Field(ge=0)]
Fraction = Annotated[Number, Field(ge=0, le=1)]
Beta = Annotated[Number, Field(ge=0, lt=1)]
Bool = Annotated[bool, Field(strict=True)]
Name = Annotated[str, Field(min_length=1, pattern=r"^[^\x00]*$")]
Bytes = Annotated[ByteSize, BeforeValidator(no_bool, json_schema_input_type=int | Name), Field(gt=0, le=_LARGEST)]


def listed(value: Any) -> Any:
    """`train: log.csv` is short for `train: [log.csv]`."""
    return [value] if isinstance(value, str) else value


Files = Annotated[tuple[Name, ...], BeforeValidator(listed, json_schema_input_type=Name | tuple[Name, ...]), FILE]

_MEASURED = ("mrr", "mean_rank", "heads", "tails", "accuracy", "log_loss", "macro_f1")


def _own(name: Any) -> Any:
    found = own_file(name) if isinstance(name, str) else None
    if found is None or not found[1].isidentifier():
        raise PydanticCustomError("own", "Input should be FILE.py:NAME")
    return name


def _distinct(names: tuple[str, ...]) -> tuple[str, ...]:
    seen = set(_MEASURED)
    for name in names:
        metric = name.rpartition(":")[2]
        if metric in seen:
            raise PydanticCustomError("taken", f"Input should be functions with names of their own ({metric} is taken)")
        seen.add(metric)
    return names


GivenMetric = Literal["mrr", "hits@10", "hits@20", "hits@50", "hits@100"]
"""What is computed with negatives that come with a graph."""
OwnMetrics = Annotated[
    tuple[Annotated[str, BeforeValidator(_own)], ...],
    BeforeValidator(listed, json_schema_input_type=Name | tuple[Name, ...]),
    AfterValidator(_distinct),
    MODULE,
]
"""FILE.py:NAME of functions, which are reported by NAME."""


class Section(BaseModel):
    """Base of all sections: frozen, keyword-only, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class OptimizerConfig(Section):
    """A row optimizer."""

    kind: RowOptimizerName = Field("adagrad", description=f"Optimizer of embedding rows. {values_of(ROW_OPTIMIZERS)}")
    learning_rate: PositiveFloat = Field(0.1, description="Learning rate of embedding rows.")
    relation_learning_rate: PositiveFloat | None = Field(
        None, description="Learning rate of relation embeddings. Default: `learning_rate`."
    )
    epsilon: PositiveFloat = Field(
        1e-10, description="adagrad, rowwise_adagrad, adam: added to the denominator for numerical stability."
    )
    initial_accumulator: NonNegativeFloat = Field(
        0.0, description="adagrad, rowwise_adagrad: initial value of the accumulator."
    )
    beta1: Beta = Field(0.9, description="adam: decay rate of the first moment.")
    beta2: Beta = Field(0.999, description="adam: decay rate of the second moment.")
    decay: Annotated[Number, Field(gt=0, le=1)] = Field(
        1.0, description="Factor applied to the learning rate after each epoch."
    )


class DenseOptimizerConfig(Section):
    """The optimizer of a network's parameters."""

    kind: Literal["sgd", "adagrad", "adam"] = Field("adam", description="Optimizer of the network's parameters.")
    learning_rate: PositiveFloat = Field(1e-3, description="Learning rate of the network's parameters.")
    epsilon: PositiveFloat = Field(1e-8, description="adagrad, adam: added to the denominator for numerical stability.")
    beta1: Beta = Field(0.9, description="adam: decay rate of the first moment.")
    beta2: Beta = Field(0.999, description="adam: decay rate of the second moment.")
    weight_decay: NonNegativeFloat = Field(
        0.0, description="L2 penalty: adds weight_decay / 2 times the sum of squared parameters to the loss."
    )
    decay: Annotated[Number, Field(gt=0, le=1)] = Field(
        1.0, description="Factor applied to the learning rate after each epoch."
    )


class ComputeConfig(Section):
    """`compute`: how a step multiplies matrices."""

    products: Literal["auto", "torch", "numpy"] = Field(
        "auto",
        description="CPU library for matrix products in training: torch (oneDNN, MKL) or numpy (OpenBLAS). auto: the "
        "faster one for the shapes of the run, measured once per machine (torch if it is more than 15 % faster). A run "
        "keeps its library, because the last bits of results depend on it. Evaluation always uses NumPy.",
    )
    precision: Literal["float32", "tf32", "bfloat16"] = Field(
        "float32",
        description="Precision of the inputs of matrix products in training. Rows, sums and optimizers are float32. "
        "bfloat16 needs a GPU, or a CPU with AVX-512 BF16; on a CPU, batched products of small matrices "
        "stay float32. tf32 needs a GPU. Evaluation always uses float32.",
    )


class WorkersConfig(Section):
    """The number of threads of each stage; `auto`: by measurement, 1 to `MOST_WORKERS`."""

    plan: Workers | Auto = Field(
        "auto",
        description="Threads that create batches. auto, for every stage: tuned while training, from 1 to 4; 1 if "
        "`in_flight: auto` is fixed.",
    )
    read: Workers | Auto = Field("auto", description="Threads that read rows from the store.")
    upload: Workers | Auto = Field("auto", description="Threads that copy rows to the device.")
    download: Workers | Auto = Field("auto", description="Threads that copy rows back from the device.")
    write: Workers | Auto = Field("auto", description="Threads that write rows to the store.")


def _all_auto(value: Any) -> Any:
    """`workers: auto` is short for `auto` at each stage."""
    return {} if value == "auto" else value


class PipelineConfig(Section):
    """`pipeline`: mode, number of batches in flight, and threads."""

    mode: Literal["sync", "async", "async-delta", "oac"] = Field(
        "oac",
        description="oac: many batches in flight, with results bit-identical to sync. sync: one batch at a time. async:"
        " many batches in flight, with stale rows; updates can be lost. async-delta: as async, but no "
        "update is lost.",
    )
    order: Annotated[Name, Named("file", words=("plan", "arrival"))] = Field(
        "plan",
        description="Order in which batches are computed: plan (the planned order), arrival (the order in which they "
        "arrive), or the path of an order.npy recorded by a run.",
    )
    in_flight: AtOnce | Auto = Field(
        "auto",
        description="Number of batches in flight; always 1 with sync. auto: tuned while training, with the same "
        "results; fixed at 4 where the number would change results (async, async-delta, order: arrival) and on several "
        "nodes.",
    )
    most_in_flight: AtOnce = Field(
        16, description="Upper limit for `in_flight: auto`. A run lowers it if memory is short."
    )
    workers: Annotated[WorkersConfig, BeforeValidator(_all_auto, json_schema_input_type=Auto | WorkersConfig)] = (
        WorkersConfig()
    )

    @property
    def adapts(self) -> bool:
        """Whether numbers that are `auto` may change while training: they don't change the bits."""
        return self.mode in ("sync", "oac") and self.order != "arrival"

    @property
    def room(self) -> int:
        """The most batches in flight."""
        if self.mode == "sync":
            return 1
        if self.in_flight != "auto":
            return self.in_flight
        return self.most_in_flight if self.adapts else min(FIXED_IN_FLIGHT, self.most_in_flight)

    def most_workers(self, stage: str) -> int:
        """The most threads of a stage of `WorkersConfig`."""
        number = getattr(self.workers, stage)
        if number != "auto":
            return int(number)
        most = MOST_WORKERS if self.adapts else 1
        return most if stage == "plan" else min(most, self.room)

    def with_fixed_numbers(self) -> PipelineConfig:
        """With a number in place of each `auto`: for runs in which nothing is measured."""
        workers = {stage: 1 for stage, number in self.workers if number == "auto"}
        in_flight = min(FIXED_IN_FLIGHT, self.most_in_flight) if self.in_flight == "auto" else self.in_flight
        fixed = {"in_flight": in_flight, "workers": self.workers.model_copy(update=workers)}
        return self.model_copy(update=fixed)

    @model_validator(mode="after")
    def _order(self) -> PipelineConfig:
        if self.order == "arrival" and self.mode == "sync":
            raise ValueError("order: 'arrival' needs several batches in flight; mode is 'sync'")
        if self.order != "plan" and self.mode in ("async", "async-delta"):
            raise ValueError(f"order: mode '{self.mode}' always computes in order of arrival; leave `order` out")
        return self


class StorageConfig(Section):
    """`storage`: where rows are, and in which type."""

    dtype: Literal["float32", "bfloat16"] = Field(
        "float32", description="Data type of stored values. Optimizer state is always float32."
    )
    memory: Bytes | None = Field(
        None,
        description="Memory for rows, such as 4GiB. The other rows are kept on disk. Default: all rows are in memory.",
    )
    path: Files = Field((), description="Folders for rows on disk, one per device. Default: a folder of the run.")
    io: Literal["direct", "buffered", "mmap"] = Field(
        "direct",
        description="I/O method for rows on disk. direct: direct I/O, which bypasses the page cache. buffered: I/O "
        "through the page cache. mmap: memory-mapped files, for measurements; the operating system decides "
        "what is in memory.",
    )
    depth: AtOnce = Field(512, description="Maximum number of I/O requests in flight.")
    look_ahead: AtOnce = Field(
        64, description="Maximum number of batches planned ahead of the one being fetched from disk."
    )
    page: Bytes | None = Field(
        None, description="Page size in bytes, a multiple of 4KiB. Default: chosen from the row size."
    )

    @property
    def paged(self) -> bool:
        """Whether rows are loaded and evicted in pages, under a budget of memory."""
        return self.memory is not None

    @property
    def on_disk(self) -> bool:
        """Whether any rows are on disk."""
        return self.paged or self.io == "mmap"

    @model_validator(mode="after")
    def _disk(self) -> StorageConfig:
        if self.io == "mmap" and self.memory is not None:
            raise ValueError("memory: with io 'mmap' the system decides what is in memory; leave `memory` out")
        if self.io == "buffered" and self.memory is None:
            raise ValueError("io: 'buffered' needs storage.memory, else all rows are in memory")
        if self.path and not self.on_disk:
            raise ValueError("path: needs storage.memory, else all rows are in memory")
        if self.page is not None and self.page % 4096:
            raise ValueError(f"page: {self.page} is not a multiple of 4KiB")
        return self


class CheckpointConfig(Section):
    """`checkpoint`: when checkpoints are saved, and how many are kept."""

    every_epochs: PositiveInt = Field(
        1, description="Epochs between checkpoints. Each evaluation and the end of the run also save one."
    )
    every_batches: NonNegativeInt = Field(0, description="Batches between additional checkpoints. 0: none.")
    keep: PositiveInt = Field(2, description="Number of newest checkpoints to keep, in addition to the best one.")


class MetricsConfig(Section):
    """`metrics`: how often metrics are written."""

    every_batches: PositiveInt = Field(100, description="Batches between lines of metrics.jsonl.")


class EarlyStoppingConfig(Section):
    """`training.early_stopping`."""

    patience: PositiveInt = Field(description="Consecutive evaluations without improvement after which training stops.")
    min_delta: NonNegativeFloat = Field(
        0.0, description="Increase of MRR, AUC or accuracy (by task) that an improvement must exceed."
    )


EARLY_STOPPING: Any = Field(
    None, description="Stop when validation stops improving; the best checkpoint is the result. Default: off."
)


class GraphDataConfig(Section):
    """`data` of a graph."""

    path: Annotated[Name, GRAPH] = Field(
        description="Folder written by `marius-oac prepare`, or the name of an embedded data set (codex-s)."
    )
