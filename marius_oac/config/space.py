"""The file that `marius-oac tune` searches by: keys of the config, each with the values that it may have. Imports
neither torch nor numba.

    seed: 0
    sampler: tpe
    pruner: median
    space:
      training.optimizer.learning_rate: {low: 0.01, high: 1.0, log: true}
      training.negatives.count: {low: 100, high: 1000, step: 100}
      model.decoder: [complex, distmult]
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BeforeValidator, Discriminator, Field, Tag, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from marius_oac.config.base import BaseConfig
from marius_oac.config.errors import located, read_mapping, where
from marius_oac.config.sections import Bool, NonNegativeInt, Number, PositiveInt, Section, no_bool
from marius_oac.config.task import TaskConfig, load_config
from marius_oac.errors import ConfigError

Value = Annotated[bool, Field(strict=True)] | Annotated[int, Field(strict=True)] | float | str
Point = Mapping[str, Value | None]
"""A value for each key that is searched."""
_End = Annotated[Annotated[int, Field(strict=True)] | Number, BeforeValidator(no_bool)]
_EXAMPLE = "space: {training.optimizer.learning_rate: {low: 0.01, high: 1.0, log: true}}"


class Choices(Section):
    """Some values, in no order; a list is short for it."""

    choices: tuple[Value | None, ...] = Field(min_length=1)

    def ends(self) -> tuple[Value | None, ...]:
        """Values by which to see whether the config has such a key and takes its values."""
        return self.choices


class Range(Section):
    """The numbers from `low` to `high`, both included: integers where all that is given are."""

    low: _End
    high: _End
    step: _End | None = None
    log: Bool = False

    def ends(self) -> tuple[Value | None, ...]:
        """As of `Choices`."""
        return self.low, self.high

    @property
    def integers(self) -> bool:
        """Whether only integers are drawn."""
        return all(isinstance(each, int) for each in (self.low, self.high, self.step or 1))

    @model_validator(mode="after")
    def _adds_up(self) -> Range:
        if self.low > self.high:
            raise ValueError(f"high: {self.high} is below low, {self.low}")
        if self.log and (self.low <= 0 or self.step is not None):
            raise ValueError("log: needs a `low` above 0, and no `step`")
        if self.step is not None and self.step <= 0:
            raise ValueError(f"step: must be above 0, not {self.step}")
        return self


def _listed(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return {"choices": value}
    if not isinstance(value, Mapping):
        raise PydanticCustomError("values", "Input should be a list of values, or a mapping of low and high")
    return value


def _kind(value: Choices | Range | Mapping[str, Any]) -> str:
    is_choices = "choices" in value if isinstance(value, Mapping) else isinstance(value, Choices)
    return "choices" if is_choices else "range"


Values = Annotated[
    Annotated[Choices, Tag("choices")] | Annotated[Range, Tag("range")], Discriminator(_kind), BeforeValidator(_listed)
]


class SpaceConfig(Section):
    """All of such a file."""

    seed: NonNegativeInt = Field(
        0, description="Seed of the search. Each trial draws from the seed and its own number."
    )
    sampler: Literal["tpe", "gp", "random"] = Field(
        "tpe", description="Optuna sampler: tpe, gp (needs scipy) or random."
    )
    startup: PositiveInt = Field(10, description="Number of random trials before tpe or gp chooses.")
    pruner: Literal["median", "halving", "none"] = Field(
        "median",
        description="When to stop a trial early. median: its best result so far is worse than the median of the "
        "others at that epoch. halving: it is not in the best quarter after 1, 4, 16, ... evaluations. none: never.",
    )
    space: dict[str, Values] = Field(
        min_length=1,
        description="Keys of the configuration, each with a list of values, or with {low, high} and optionally `log: "
        "true` or a `step`. Between two integers, only integers are tried.",
    )

    @classmethod
    def load(cls, path: Path, base: Path, overrides: tuple[str, ...]) -> SpaceConfig:
        """Reads the file, and tries its values on the config that is at `base`.

        Raises:
            ConfigError: either is missing or broken, or the config takes none of the values of a key.
        """
        tree, lines = read_mapping(path, _EXAMPLE)
        try:
            config = cls.model_validate(tree)
        except ValidationError as error:
            raise located(error, cls, tree, str(path), lines) from None
        load_config(base, overrides)
        for key, values in config.space.items():
            _check(key, values, base, overrides, where(("space", key), str(path), lines, set()))
        return config


def _check(key: str, values: Choices | Range, base: Path, overrides: tuple[str, ...], place: str) -> None:
    """Raises ConfigError where the config takes none of the values; some may go only with those of another key."""
    found = None
    for value in values.ends():
        try:
            load_config(base, (*overrides, override(key, value)))
            return
        except ConfigError as error:
            found = found or error
    if found is not None:
        raise ConfigError(found.message, place)


def override(key: str, value: Value | None) -> str:
    """`key=value` as `--set` takes it."""
    text = yaml.safe_dump(value, default_flow_style=True, width=1 << 20).removesuffix("...\n")
    return f"{key}={text.strip()}"


def at(point: Point, base: Path, overrides: tuple[str, ...]) -> TaskConfig:
    """The config with these values. Raises ConfigError where they don't go together."""
    return load_config(base, (*overrides, *(override(key, value) for key, value in point.items())))


def written(config: BaseConfig, about: str) -> str:
    """A config as a file, with lines that say where it came from."""
    return "".join(f"# {line}\n" for line in about.splitlines()) + config.dump()
