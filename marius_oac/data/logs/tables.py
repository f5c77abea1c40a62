"""Assigns the features of a click log to tables of rows: features with rows of the same width share a table.

A vocabulary is a set of keys. Features with the same vocabulary share rows. A vocabulary's number, its index in the
sorted list of vocabularies, is part of every key, so that vocabularies in one table don't collide.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from marius_oac.config.ctr import CtrConfig
from marius_oac.config.log_columns import BagConfig, CategoricalConfig, SequenceConfig
from marius_oac.errors import ConfigError


@dataclass(frozen=True)
class FeatureTable:
    """One table: its features by kind, in the order of the config.

    Attributes:
        name: of the table, its store and its index.
        dimension: floats of an embedding; 0: rows are only first-order weights.
        singles, bags, sequences: names of the features.
        vocabularies: the number of each feature's vocabulary.
        max_ids: the largest number of ids that an example has in this table.
    """

    name: str
    dimension: int
    singles: tuple[str, ...]
    bags: tuple[str, ...]
    sequences: tuple[str, ...]
    vocabularies: dict[str, int]
    max_ids: int

    def vocabulary_column(self, counts: dict[str, int]) -> np.ndarray:
        """The vocabulary's number of each of a batch's ids, uint16 [n], where each feature in turn has
        `counts[feature]` ids."""
        features = (*self.singles, *self.bags, *self.sequences)
        numbers = np.array([self.vocabularies[name] for name in features], np.uint16)
        return np.repeat(numbers, [counts[name] for name in features])


@dataclass(frozen=True)
class TableKeys:
    """The keys of B examples in one table, concatenated: singles [F, B], then each bag and sequence.

    Attributes:
        vocabularies: uint16 [n].
        keys: int64 [n].
        checks: uint32 [n], 0 if keys are no fingerprints.
        offsets: int64 [B + 1] of each bag and sequence, by feature.
        examples: B.
    """

    vocabularies: np.ndarray
    keys: np.ndarray
    checks: np.ndarray
    offsets: dict[str, np.ndarray]
    examples: int

    @property
    def asked(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The arguments of an index's lookup: vocabularies, keys, checks."""
        return self.vocabularies, self.keys, self.checks


def vocabulary_names(config: CtrConfig) -> list[str]:
    """All vocabularies, sorted. A vocabulary's number is its index."""
    return sorted({each.vocabulary or each.name for each in config.data.features()})


def feature_tables(config: CtrConfig, weights_only: bool) -> list[FeatureTable]:
    """The tables of a configuration, in ascending order of width.

    Args:
        weights_only: rows are first-order weights, regardless of the dimensions.

    Raises:
        ConfigError: features that share a vocabulary differ in dimension.
    """
    numbers = {name: number for number, name in enumerate(vocabulary_names(config))}
    widths: dict[int, list[CategoricalConfig]] = {}
    dimensions: dict[str, int] = {}
    for each in config.data.features():
        dimension = 0 if weights_only else each.dimension or config.model.dimension
        vocabulary = each.vocabulary or each.name
        if dimensions.setdefault(vocabulary, dimension) != dimension:
            raise ConfigError(
                f"'{each.name}' shares the rows of '{vocabulary}' but has another dimension, {dimension} for "
                f"{dimensions[vocabulary]}",
                "data",
            )
        widths.setdefault(dimension, []).append(each)
    tables = []
    for dimension, features in sorted(widths.items()):
        bags = [each for each in features if isinstance(each, BagConfig)]
        sequences = [each for each in features if isinstance(each, SequenceConfig)]
        singles = [each for each in features if not isinstance(each, BagConfig | SequenceConfig)]
        tables.append(
            FeatureTable(
                name="weights" if weights_only else f"embeddings_{dimension}",
                dimension=dimension,
                singles=tuple(each.name for each in singles),
                bags=tuple(each.name for each in bags),
                sequences=tuple(each.name for each in sequences),
                vocabularies={each.name: numbers[each.vocabulary or each.name] for each in features},
                max_ids=len(singles) + sum(b.max_values for b in bags) + sum(s.max_values for s in sequences),
            )
        )
    return tables
