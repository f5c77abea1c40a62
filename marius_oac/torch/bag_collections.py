"""A collection of bags by feature, for TorchRec's KeyedJaggedTensor, without an import of TorchRec.

Whatever has TorchRec's methods `keys`, `values`, `lengths`, `offsets` and `weights_or_none` will do.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self

import torch
from torch import nn
from torch.utils.weak import WeakTensorKeyDictionary

from marius_oac.errors import InputError, shown
from marius_oac.torch.announced import KeySource, field
from marius_oac.torch.arguments import listed
from marius_oac.torch.modules import EmbeddingBag

_METHODS = ("keys", "values", "lengths", "offsets")
_OF_CONFIG = ("name", "embedding_dim", "feature_names", "pooling")


class KeyedTensor:
    """Vectors by name: what a collection returns where TorchRec is not used. It has the methods of TorchRec's.

    Args:
        keys: names.
        length_per_key: floats of each.
        values: float32 [b, sum of these], one after another.
    """

    def __init__(self, keys: Sequence[str], length_per_key: Sequence[int], values: torch.Tensor):
        self._keys, self._lengths, self._values = list(keys), list(length_per_key), values

    def keys(self) -> list[str]:
        """The names."""
        return self._keys

    def values(self) -> torch.Tensor:
        """All vectors, float32 [b, sum of lengths]."""
        return self._values

    def length_per_key(self) -> list[int]:
        """Floats of each."""
        return self._lengths

    def to_dict(self) -> dict[str, torch.Tensor]:
        """The vectors of each name, float32 [b, length]."""
        return dict(zip(self._keys, self._values.split(self._lengths, 1), strict=True))

    def __getitem__(self, key: str) -> torch.Tensor:
        return self.to_dict()[key]


class EmbeddingBagCollection(nn.Module):
    """Bags of several features: torchrec.EmbeddingBagCollection over int64 keys of any value.

    Rows of a table whose configuration has `num_embeddings` begin with the standard deviation of TorchRec's, whose
    values are uniform up to 1 / sqrt(num_embeddings).

    Args:
        tables: TorchRec's EmbeddingBagConfig of each table, or anything with its `name`, `embedding_dim`,
            `feature_names` and `pooling` (sum or mean).
        is_weighted: whether values have weights.
        given: of `Keyed`, for all tables.

    Attributes:
        embedding_bags: the module of each table, by its name.
    """

    def __init__(self, tables: Iterable[Any], is_weighted: bool = False, **given: Any):
        super().__init__()
        self._configs, self._weighted = listed(tables, "tables", "EmbeddingBagCollection"), is_weighted
        for each in self._configs:
            for needed in _OF_CONFIG:
                if not hasattr(each, needed):
                    raise InputError(f"{shown(each)} is no configuration of a table: it has no {needed}",
                                     "EmbeddingBagCollection")  # fmt: skip
        for name, count in Counter(each.name for each in self._configs).items():
            if count > 1:
                raise InputError(f"there are two tables {name!r}", "EmbeddingBagCollection")
        self.embedding_bags = nn.ModuleDict({each.name: _bags(each, given) for each in self._configs})
        tables_of = Counter(feature for each in self._configs for feature in each.feature_names)
        self._names = [
            feature if tables_of[feature] == 1 else f"{feature}@{each.name}"
            for each in self._configs for feature in each.feature_names
        ]  # fmt: skip
        self._read: WeakTensorKeyDictionary = WeakTensorKeyDictionary()  # by the tensor of values

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Says whether rows are trained by these modules."""
        for each in self.embedding_bags.values():
            each.requires_grad_(requires_grad)
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drops the gradients of all tables' rows."""
        for each in self.embedding_bags.values():
            each.zero_grad(set_to_none)

    def embedding_bag_configs(self) -> list[Any]:
        """The tables' configurations."""
        return self._configs

    def is_weighted(self) -> bool:
        """Whether values have weights."""
        return self._weighted

    def sources(self, source: KeySource, where: str) -> dict[nn.Module, Callable[[Any], list[torch.Tensor]]]:
        """For each table's module, what finds its keys in a batch whose field `source` has those of all."""

        def of(config: Any) -> Callable[[Any], list[torch.Tensor]]:
            def keys(batch: Any) -> list[torch.Tensor]:
                features = self._features(field(source, batch, where))
                return [features[name][0] for name in config.feature_names]

            return keys

        return {self.embedding_bags[each.name]: of(each) for each in self._configs}

    def forward(self, features: Any) -> Any:
        """The bags of each feature, [b] of each: a KeyedTensor, TorchRec's where `features` are TorchRec's.

        The vectors follow each other as tables do in `tables`, and features in `feature_names`. One whose feature is in
        several tables is named FEATURE@TABLE.
        """
        found, pooled = self._features(features), []
        weights = features.weights_or_none() if self._weighted else None
        if self._weighted and weights is None:
            raise InputError("the keys have no weights", type(self).__name__)
        for each in self._configs:
            bag = self.embedding_bags[each.name]
            for name in each.feature_names:
                keys, offsets, at = found[name]
                pooled.append(bag(keys, offsets, None if weights is None else weights[at]))
        lengths = [each.embedding_dim for each in self._configs for _ in each.feature_names]
        return _keyed_tensor(features)(self._names, lengths, torch.cat(pooled, 1))

    def _features(self, given: Any) -> Mapping[str, tuple[torch.Tensor, torch.Tensor, slice]]:
        """The keys of each feature, where its bags begin among them and after that their end, and where they are.

        The tensors are the same ones for as long as the user has the values, so that they are known again.
        """
        if not all(callable(getattr(given, method, None)) for method in _METHODS):
            raise InputError(f"a KeyedJaggedTensor is needed, not {shown(type(given).__name__)}", type(self).__name__)
        names, values, offsets = list(given.keys()), given.values(), given.offsets()
        known = self._read.get(values)
        if known is None or known[0] != names or not torch.equal(known[1], offsets):
            known = self._read[values] = names, offsets.clone(), self._split(given, names, values.detach(), offsets)
        return known[2]

    def _split(
        self, given: Any, names: Sequence[str], values: torch.Tensor, offsets: torch.Tensor
    ) -> Mapping[str, tuple[torch.Tensor, torch.Tensor, slice]]:
        missing = [name for each in self._configs for name in each.feature_names if name not in names]
        if missing:
            raise InputError(f"there are no keys of the feature {missing[0]!r}, but of {', '.join(names)}",
                             type(self).__name__)  # fmt: skip
        bags, rest = divmod(len(given.lengths()), len(names))
        if rest or getattr(given, "variable_stride_per_key", bool)():
            raise InputError("features have different numbers of bags, which is not supported", type(self).__name__)
        bounds = offsets[::bags].tolist() if bags else [0] * (len(names) + 1)
        found = {}
        for place, name in enumerate(names):
            at = slice(bounds[place], bounds[place + 1])
            begins = offsets[place * bags : (place + 1) * bags + 1] - at.start
            found[name] = values[at], begins, at
        return found


def _bags(config: Any, given: Mapping[str, Any]) -> EmbeddingBag:
    pooling = getattr(config.pooling, "value", config.pooling)  # of TorchRec's enumeration
    mode = str(pooling).lower()
    if mode not in ("sum", "mean"):
        raise InputError(f"pooling must be sum or mean, not {shown(pooling)}", f"table {config.name!r}")
    own = dict(given)
    if getattr(config, "num_embeddings", None):
        own.setdefault("std", 1 / math.sqrt(3 * config.num_embeddings))
    return EmbeddingBag(config.embedding_dim, mode=mode, include_last_offset=True, **own)


def _keyed_tensor(features: Any) -> Any:
    """The class that goes with them."""
    module = type(features).__module__
    if module.partition(".")[0] == "torchrec":
        return sys.modules[module].KeyedTensor
    return KeyedTensor
