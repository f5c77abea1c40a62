"""Which part of a batch has the keys of which table, and which optimizer updates its rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from marius_oac.errors import InputError, shown
from marius_oac.torch.announced import KeySource, batch_keys
from marius_oac.torch.bag_collections import EmbeddingBagCollection
from marius_oac.torch.key_forms import Keys
from marius_oac.torch.modules import Keyed
from marius_oac.torch.optimizers import RowsOptimizer
from marius_oac.torch.served import Served
from marius_oac.torch.sharing import ALONE, Share
from marius_oac.torch.tables import Table

KeysOfModules = Mapping[Any, KeySource]
"""Of each module, or of its name in the model."""


@dataclass(frozen=True, eq=False)
class Feeding:
    """A table that an engine serves.

    Attributes:
        optimizer: of its rows.
        sources: of each of its modules, where its keys are in a batch; those of one module follow those of another.
    """

    served: Served
    table: Table
    optimizer: RowsOptimizer
    sources: Sequence[KeySource]

    def keys(self, batches: Sequence[Any], where: str, train: bool = True) -> list[Keys]:
        """The keys in some batches, to be trained or to be looked at. Raises InputError as `batch_keys`, or if some of
        the table's keys are texts and others are integers."""
        found = [each for batch in batches for source in self.sources for each in batch_keys(source, batch, where)]
        check = self.table.settle if train else self.table.check_kind
        for each in found:
            if each.are_texts is not None:
                check(each.are_texts, where)
        return found


def feedings(
    model: nn.Module, keys: KeysOfModules, optimizers: Sequence[torch.optim.Optimizer], share: Share = ALONE
) -> list[Feeding]:
    """One for each table of the model, made where there is none yet, in the order of their first modules.

    Args:
        share: the part of all keys whose rows are in this process.

    Raises:
        InputError: keys or optimizers are missing, or don't fit.
    """
    if not isinstance(keys, Mapping):
        raise InputError(f"keys must map modules to fields, not be {shown(type(keys).__name__)}", "Engine")
    names = {module: name or "table" for name, module in model.named_modules() if isinstance(module, Keyed)}
    if not names:
        raise InputError("the model has no Embedding or EmbeddingBag of this package", "Engine")
    sources = _sources(model, names, keys)
    first: dict[Served, str] = {}
    for module, name in names.items():
        if module.served.engine is not None:
            raise InputError(f"{name!r} is served by another engine: close that first", "Engine")
        first.setdefault(module.served, name)
    owners = {served: _owner(served, name, optimizers) for served, name in first.items()}
    tables = {served: _table(served, name, owners[served], share) for served, name in first.items()}
    return [
        Feeding(served, table, owners[served], [sources[module] for module in names if module.served is served])
        for served, table in tables.items()
    ]


def _sources(model: nn.Module, names: Mapping[Keyed, str], keys: KeysOfModules) -> dict[Keyed, KeySource]:
    """Where the keys of each module are."""
    by_name = {name: module for name, module in model.named_modules(remove_duplicate=False)}
    found: dict[Keyed, KeySource] = {}
    for given, source in keys.items():
        module: Any = by_name.get(given) if isinstance(given, str) else given
        own: Mapping[Any, KeySource] = {module: source}
        if isinstance(module, EmbeddingBagCollection):
            own = module.sources(source, "Engine: keys")
        for each in own:
            if each not in names:
                raise InputError(f"{shown(given)} is not in the model, or no module of this package, which are "
                                 f"{', '.join(map(repr, names.values()))}", "Engine: keys")  # fmt: skip
            if each in found:
                raise InputError(f"{names[each]!r} is named twice", "Engine: keys")
        found |= own
    for module, name in names.items():
        if module not in found:
            raise InputError(f"no keys are named for {name!r}", "Engine: keys")
        if not (callable(found[module]) or isinstance(found[module], str | int)):
            raise InputError(f"a field's name or place, or a function of the batch, not {shown(found[module])}",
                             f"Engine: keys of {name!r}")  # fmt: skip
    return found


def _owner(served: Served, name: str, optimizers: Sequence[torch.optim.Optimizer]) -> RowsOptimizer:
    """The optimizer of a table."""
    others = [each for each in optimizers if not isinstance(each, RowsOptimizer)]
    if any(served.first_rows is each for other in others for group in other.param_groups for each in group["params"]):
        raise InputError(f"one has the weight that {name!r} had: make it after mt.convert", "Engine: optimizers")
    owners = [each for each in optimizers if isinstance(each, RowsOptimizer)
              for group in each.tables if served in group]  # fmt: skip
    if len(owners) != 1:
        count = "no row optimizer" if not owners else "several row optimizers"
        raise InputError(f"{name!r} is in {count} of `optimizers`, such as mt.Adagrad", "Engine: optimizers")
    return owners[0]


def _table(served: Served, name: str, optimizer: RowsOptimizer, share: Share) -> Table:
    """The table, which is made if there is none yet."""
    table = served.table
    if table is None:
        table = Table(name, served.dimension, served.std, served.seed, optimizer.config, served.capacity,
                      served.storage, share)  # fmt: skip
        if served.first_rows is not None:
            table.begin_with(served.first_rows.detach().numpy())
    if table.share != share:
        raise InputError(f"rows of {name!r} are those of rank {table.share.rank} of {table.share.size} processes, and "
                         f"the engine is for rank {share.rank} of {share.size}", "Engine: group")  # fmt: skip
    if table.broken is not None:
        raise InputError(f"rows of {name!r} may be lost: an engine has failed: {table.broken}", "Engine")
    if table.kind != optimizer.config.kind:
        raise InputError(f"rows of {name!r} have the state of another optimizer", "Engine: optimizers")
    return table
