"""Modules in the place of torch's nn.Embedding and nn.EmbeddingBag: their rows belong to keys and come from a store."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from marius_oac.errors import InputError, shown
from marius_oac.training.own_loop.announced import key_numbers
from marius_oac.training.own_loop.at_hand import Rows
from marius_oac.training.own_loop.served import Served
from marius_oac.training.own_loop.tables import Table

_REFUSED = {
    "max_norm": "rows would change while they are read",
    "norm_type": "rows would change while they are read",
    "sparse": "gradients are those of a batch's rows already",
    "scale_grad_by_freq": "divide the loss instead",
    "num_embeddings": "tables grow with the keys that they see",
    "device": "rows are where the engine computes",
    "dtype": "rows are float32",
}


class Keyed(nn.Module):
    """What both modules share.

    Args:
        dimension: floats of a row.
        padding_idx: a key that stands for none: its vector is 0, bags leave it out, and nothing trains it.
        std: standard deviation of new rows' values, which are normal.
        seed: new rows are a function of seed, the module's name in the model, and key.
        capacity: the largest number of rows; None: as many as half of the free memory holds.
        shares: a module whose table this one uses, too; `std`, `seed` and `capacity` are that one's.

    Attributes:
        served: its table, and what an engine gives to it; one object for all modules of a table.
    """

    def __init__(
        self, dimension: int, *more: Any, padding_idx: int | None = None, std: float | None = None,
        seed: int | None = None, capacity: int | None = None, shares: Keyed | None = None, **other: Any,
    ):  # fmt: skip
        super().__init__()
        if more:
            raise InputError("give the dimension alone: tables grow with the keys that they see", type(self).__name__)
        for name in other:
            if name not in _REFUSED:
                raise InputError(f"there is no argument {name!r}", type(self).__name__)
            raise InputError(f"{name} is not supported: {_REFUSED[name]}", type(self).__name__)
        for what, number in (("the dimension", dimension), ("capacity", 1 if capacity is None else capacity)):
            if isinstance(number, bool) or not isinstance(number, int) or number < 1:
                raise InputError(f"{what} must be a number of at least 1, not {shown(number)}", type(self).__name__)
        if std is not None and not (isinstance(std, int | float) and 0 <= std < math.inf):
            raise InputError(f"std must be a number of at least 0, not {shown(std)}", type(self).__name__)
        if padding_idx is not None and (isinstance(padding_idx, bool) or not isinstance(padding_idx, int)):
            raise InputError(f"padding_idx must be a key, not {shown(padding_idx)}", type(self).__name__)
        self.dimension, self.padding_idx = dimension, padding_idx
        if shares is None:
            self.served = Served(dimension, 1.0 if std is None else std, seed or 0, capacity)
        else:
            self._check_shares(shares, {"std": std, "seed": seed, "capacity": capacity})
            self.served = shares.served

    def _check_shares(self, shares: Any, own: Mapping[str, Any]) -> None:
        if not isinstance(shares, Keyed):
            raise InputError(f"shares takes a module of this package, not {shown(type(shares).__name__)}",
                             type(self).__name__)  # fmt: skip
        if shares.dimension != self.dimension:
            raise InputError(f"it can't share a table of dimension {shares.dimension} with its {self.dimension}",
                             type(self).__name__)  # fmt: skip
        for name, value in own.items():
            if value is not None:
                raise InputError(f"{name} is that of the module whose table it shares", type(self).__name__)

    @property
    def table(self) -> Table | None:
        """Its table; None: no engine has made it yet."""
        return self.served.table

    @property
    def rows(self) -> Rows | None:
        """The rows of the batch at hand."""
        return self.served.rows

    @property
    def weight(self) -> torch.Tensor:
        """Refused: only the rows of the batch at hand are in a tensor."""
        raise InputError("there is no tensor of all rows: call the module on keys, in eval mode outside of the loop",
                         f"{type(self).__name__}.weight")  # fmt: skip

    @property
    def num_embeddings(self) -> int:
        """Refused: it would change while one looks."""
        raise InputError("there is no fixed number of rows: tables grow with the keys that they see",
                         f"{type(self).__name__}.num_embeddings")  # fmt: skip

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise InputError("it can't be copied or pickled: make a new one, so that each has a table of its own",
                         type(self).__name__)  # fmt: skip

    def extra_repr(self) -> str:
        """The dimension."""
        return str(self.dimension)

    def _values(self, keys: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows, float32 [m, dimension], and the keys' places among them, int64 of the keys' shape."""
        integers = isinstance(keys, torch.Tensor) and not keys.is_floating_point() and keys.dtype != torch.bool
        if not integers:
            what = keys.dtype if isinstance(keys, torch.Tensor) else shown(keys)
            raise InputError(f"keys must be a tensor of integers, not {what}", type(self).__name__)
        served, table = self.served, self.served.table
        if table is None:
            raise InputError("no engine serves this module yet: make one, with it in `keys`", type(self).__name__)
        if not self.training:
            return self._read(table, keys)
        rows = served.rows
        if rows is None:
            raise InputError(
                "there is no batch at hand: use the module within `for batch in engine.batches(...)`, and before "
                "`engine.save`, or call model.eval() to read rows",
                f"table {table.name!r}",
            )
        place = served.announced.of(keys, rows.number)
        local = rows.places(key_numbers([keys], f"table {table.name!r}")) if place is None else rows.local[place]
        if torch.is_grad_enabled():
            rows.use(local if self.padding_idx is None else local[keys.reshape(-1) != self.padding_idx])
        return rows.leaf, local.view(keys.shape)

    def _read(self, table: Table, keys: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        numbers = key_numbers([keys], f"table {table.name!r}")
        if self.served.engine is not None:
            self.served.engine.wait_until_written()
        values, local = table.look_up(numbers)
        return torch.from_numpy(values), torch.from_numpy(local).view(keys.shape)


def _picked(values: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """The rows of `values`, [m, dimension], at places of any shape.

    Not by torch's embedding functions, whose gradients of a leaf take five to eight times as long.
    """
    return values.index_select(0, places.reshape(-1)).view(*places.shape, values.shape[1])


class Embedding(Keyed):
    """The rows of keys: nn.Embedding over int64 keys of any value.

    In training mode these are the rows of the batch at hand; in eval mode, rows as of all batches handed back, without
    gradients.
    """

    def forward(self, keys: torch.Tensor) -> torch.Tensor:
        """Keys of any shape [...]; returns float32 [..., dimension]."""
        values, local = self._values(keys)
        vectors = _picked(values, local)
        return vectors if self.padding_idx is None else vectors.masked_fill((keys == self.padding_idx)[..., None], 0)


class EmbeddingBag(Keyed):
    """Sums or means of the rows of bags of keys: nn.EmbeddingBag over int64 keys of any value.

    Args:
        dimension: floats of a row.
        mode: sum, mean or max.
        include_last_offset: offsets end with the number of keys.
        given: of `Keyed`.
    """

    def __init__(self, dimension: int, *more: Any, mode: str = "sum", include_last_offset: bool = False, **given: Any):
        super().__init__(dimension, *more, **given)
        if mode not in ("sum", "mean", "max"):
            raise InputError(f"mode must be sum, mean or max, not {shown(mode)}", type(self).__name__)
        self.mode, self.include_last_offset = mode, include_last_offset

    def forward(
        self,
        keys: torch.Tensor,
        offsets: torch.Tensor | None = None,
        per_sample_weights: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Keys [b, n], or [n] with the first place of each bag, `offsets` [b]; returns float32 [b, dimension]."""
        values, local = self._values(keys)
        if keys.dim() != (2 if offsets is None else 1):
            raise InputError(f"keys [b, n] come without offsets and keys [n] with them, not {list(keys.shape)} "
                             f"with{'out' * (offsets is None)}", type(self).__name__)  # fmt: skip
        if per_sample_weights is not None and self.mode != "sum":
            raise InputError("per_sample_weights need mode 'sum'", type(self).__name__)
        if per_sample_weights is not None and per_sample_weights.shape != keys.shape:
            raise InputError(f"per_sample_weights are {list(per_sample_weights.shape)}, and keys {list(keys.shape)}",
                             type(self).__name__)  # fmt: skip
        if (
            offsets is None
            and values.requires_grad
            and self.mode != "max"
            and self.padding_idx is None
            and keys.shape[1]
        ):
            vectors = _picked(values, local)
            if per_sample_weights is not None:
                vectors = vectors * per_sample_weights[..., None]
            return vectors.sum(1) if self.mode == "sum" else vectors.mean(1)
        return functional.embedding_bag(
            local, values, None if offsets is None else offsets.long(), mode=self.mode,
            per_sample_weights=per_sample_weights, include_last_offset=self.include_last_offset,
            padding_idx=self._padding(keys, local),
        )  # fmt: skip

    def _padding(self, keys: torch.Tensor, local: torch.Tensor) -> int | None:
        """The place of the padding key's row, if the batch has one."""
        places = local[:0] if self.padding_idx is None else local[keys == self.padding_idx]
        return int(places[0]) if len(places) else None
