"""The base of every task's configuration: the shared keys, reading, `--set`, errors with the key's path.

Imports neither torch nor numba. Every field's description is its help text (`reference.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import yaml
from pydantic import BeforeValidator, Field, ValidationError

from marius_oac.config.errors import located, parse, read_mapping
from marius_oac.config.modes import NodesConfig
from marius_oac.config.sections import (
    CheckpointConfig,
    ComputeConfig,
    MetricsConfig,
    NonNegativeInt,
    Number,
    PipelineConfig,
    Section,
    StorageConfig,
    TrackerName,
    listed,
)
from marius_oac.errors import ConfigError, shown

_Dumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)  # libyaml's is ten times as fast, and writes the same


def _off(value: Any) -> Any:
    """YAML takes a bare `off` for false."""
    return "off" if value is False else value


class BaseConfig(Section):
    """A whole run. `load` reads it from YAML; `dump` writes it back with every default filled in.

    Attributes:
        data_grows: whether a run may continue with more files; `log.json` in its folder lists them all.
        how_to_ask: what such a run was trained for, and what to predict with it.
        kernels: the group of compiled kernels that such a run uses (`kernels/signatures.txt`).
    """

    data_grows: ClassVar[bool] = False
    how_to_ask: ClassVar[str]
    kernels: ClassVar[str]

    seed: NonNegativeInt = Field(0, description="Seed of initial values, shuffling, negatives, sampling and dropout.")
    device: str = Field(
        "auto",
        pattern=r"^(auto|cpu|cuda(:\d+)?)$",
        description="Device for training: auto, cpu, cuda or cuda:N. auto: a GPU if there is one.",
    )
    threads: Annotated[NonNegativeInt, Field(le=4096)] = Field(
        0,
        description="CPU threads for computation. 0: one per core, divided among the run's trainers on the machine. "
        "Results do not depend on the number.",
    )
    binding: Annotated[
        Literal["auto", "off"], BeforeValidator(_off, json_schema_input_type=Literal["auto", "off", False])
    ] = Field(
        "auto",
        description="auto: bind threads and tables to the NUMA nodes of the devices that they serve. No effect on a "
        "machine with one NUMA node. off: no binding.",
    )
    compute: ComputeConfig = ComputeConfig()
    pipeline: PipelineConfig = PipelineConfig()
    storage: StorageConfig = StorageConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    metrics: MetricsConfig = MetricsConfig()
    trackers: Annotated[
        tuple[TrackerName, ...], BeforeValidator(listed, json_schema_input_type=TrackerName | tuple[TrackerName, ...])
    ] = Field(
        (), description="Trackers that also receive the values of metrics.jsonl: tensorboard, mlflow, prometheus."
    )
    stall_after: Annotated[Number, Field(ge=0, le=1e6)] = Field(
        60.0,
        description="Seconds without progress of any stage, evaluation, checkpoint or compilation, after which a run "
        "says which of them stands still, and shows the stacks of its threads. It goes on. 0: never.",
    )
    nodes: NodesConfig = NodesConfig()

    @classmethod
    def of_task(cls, task: object) -> type[Any]:
        """The class that a configuration with this `task` has."""
        return cls

    @property
    def train_files(self) -> tuple[str, ...]:
        """`data.train`, of data that can grow."""
        return ()

    @classmethod
    def load(cls, path: str | Path, overrides: Iterable[str] = ()) -> Self:
        """Reads a YAML file and applies `a.b=c` overrides.

        Raises:
            ConfigError: missing or broken file, unknown key (with a similar one), wrong type, impossible combination.
        """
        tree, lines = read_mapping(Path(path), "data: {path: ...}")
        return cls.build(tree, overrides, source=str(path), lines=lines)

    @classmethod
    def build(
        cls,
        tree: Mapping[str, Any],
        overrides: Iterable[str] = (),
        source: str | None = None,
        lines: Mapping[tuple[Any, ...], int] | None = None,
    ) -> Self:
        """Validates a tree of plain values; `lines` maps key paths to line numbers of `source`."""
        overrides = list(overrides)
        from_set = {tuple(item.partition("=")[0].split(".")) for item in overrides}
        merged = _apply(tree, overrides)
        chosen: type[Self] = cls.of_task(merged.get("task"))
        try:
            return chosen.model_validate(merged)
        except ValidationError as error:
            raise located(error, chosen, merged, source, lines or {}, from_set) from None

    def dump(self) -> str:
        """The resolved configuration as YAML: what `load` reads back to an equal Config."""
        return yaml.dump(self.model_dump(mode="json"), Dumper=_Dumper, sort_keys=False)

    def with_products(self, library: str) -> Self:
        """A copy with this `compute.products`."""
        return self.model_copy(update={"compute": self.compute.model_copy(update={"products": library})})

    def replace(self, *overrides: str) -> Self:
        """A copy with `a.b=c` overrides applied and everything validated again."""
        task = getattr(self, "task", None)
        if _apply(self._plain(), overrides).get("task") != task:
            raise ConfigError(f"is {task!r}, and stays what it is", "--set task")
        return self.build(self._plain(), overrides)

    def _plain(self) -> dict[str, Any]:
        """All values except those that the user has left to the data."""
        return self.model_dump(mode="json")


def _apply(tree: Mapping[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    merged: dict[str, Any] = _copy(tree)
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
