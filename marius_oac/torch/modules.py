"""Modules in the place of torch's nn.Embedding and nn.EmbeddingBag: their rows belong to keys and come from a store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.jit._trace import is_tracing
from torch.nn import functional

from marius_oac.errors import InputError, shown
from marius_oac.torch.arguments import check_real, check_whole
from marius_oac.torch.at_hand import NotAnnounced, Rows
from marius_oac.torch.key_forms import Keys, read_keys
from marius_oac.torch.pooling import picked, pooled
from marius_oac.torch.refusals import Refusals
from marius_oac.torch.served import Served
from marius_oac.torch.tables import Table, storage
from marius_oac.torch.uncompiled import uncompiled
from marius_oac.types import present

_REFUSED = {
    "max_norm": "rows would change while they are read",
    "norm_type": "rows would change while they are read",
    "sparse": "gradients are those of a batch's rows already",
    "scale_grad_by_freq": "divide the loss instead",
    "num_embeddings": "tables grow with the keys that they see",
    "device": "rows are where the engine computes",
    "dtype": "rows are float32",
}


class Keyed(Refusals):
    """What both modules share.

    Args:
        embedding_dim: floats of a row.
        padding_idx: a key, or a text, that stands for none: its vector is 0, bags leave it out, and nothing trains it.
        std: standard deviation of new rows' values, which are normal.
        seed: new rows are a function of seed, the module's name in the model, and key.
        capacity: the largest number of rows; None: as many as half of the free memory holds, or, with `path`, half of
            the free disk.
        shares: a module whose table this one uses, too; all that is said of rows is that one's.
        memory: bytes of memory for rows and their optimizer state, or a text such as "8GiB"; the other rows are in
            files under `path`. None: all are in memory.
        path: a folder, or a list of folders, one for each device.

    Attributes:
        served: its table, and what an engine gives to it; one object for all modules of a table.
        trains: whether this module trains its rows, as `requires_grad_` has said; None: that was not called, it does.
    """

    trains: bool | None = None

    def __init__(
        self, embedding_dim: int, *more: Any, padding_idx: int | str | None = None, std: float | None = None,
        seed: int | None = None, capacity: int | None = None, shares: Keyed | None = None,
        memory: int | str | None = None, path: Any = None, **other: Any,
    ):  # fmt: skip
        super().__init__()
        if more:
            raise InputError("give the dimension alone: tables grow with the keys that they see", type(self).__name__)
        for name in other:
            if name not in _REFUSED:
                raise InputError(f"there is no argument {name!r}", type(self).__name__)
            raise InputError(f"{name} is not supported: {_REFUSED[name]}", type(self).__name__)
        kind = type(self).__name__
        check_whole(embedding_dim, "the dimension", kind)
        check_whole(1 if capacity is None else capacity, "capacity", kind)
        check_whole(seed or 0, "seed", kind, None)
        check_real(1.0 if std is None else std, "std", kind)
        if padding_idx is not None and (isinstance(padding_idx, bool) or not isinstance(padding_idx, int | str)):
            raise InputError(f"padding_idx must be a key, not {shown(padding_idx)}", type(self).__name__)
        self.dimension, self.padding_idx = embedding_dim, padding_idx
        self._std_given = std is not None or shares is not None
        if shares is None:
            place = storage(memory, path, type(self).__name__)
            self.served = Served(embedding_dim, 1.0 if std is None else std, seed or 0, capacity, place)
        else:
            own = {"std": std, "seed": seed, "capacity": capacity, "memory": memory, "path": path}
            self._check_shares(shares, own)
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
    def embedding_dim(self) -> int:
        """`dimension`, by torch's name."""
        return self.dimension

    @property
    def table(self) -> Table | None:
        """Its table; None: no engine has made it yet."""
        return self.served.table

    @property
    def rows(self) -> Rows | None:
        """The rows of the batch at hand."""
        return self.served.rows

    def __len__(self) -> int:
        """The number of keys that have a row in this process, those of batches that were drawn ahead among them."""
        first = self.served.first_rows
        return len(self.table) if self.table is not None else 0 if first is None else len(first)

    def __bool__(self) -> bool:
        return True  # also where there is no row yet

    def extra_repr(self) -> str:
        """The dimension."""
        return str(self.dimension)

    def _look_up(self, given: Any) -> tuple[Keys, torch.Tensor, torch.Tensor]:
        """The n keys; rows, float32 [m, dimension]; and the keys' places among them, int64 [n]."""
        if is_tracing():
            raise InputError("it can't be traced: rows come from a table", type(self).__name__)
        keys, served, table = read_keys(given, type(self).__name__), self.served, self.served.table
        if table is None:
            raise InputError("no engine serves this module yet: make one, with it in `keys`", type(self).__name__)
        where = f"table {table.name!r}"
        self._check_kind(keys, table, where)
        if served.peeked is not None:
            found = served.peeked.find(keys)
            if found is not None:
                return keys, served.peeked.values, found
        if not self.training or served.peeked is not None:
            if served.engine is not None:
                served.engine.wait_until_written()
            values, local = served.read(keys.array(where))
            return keys, torch.from_numpy(values), torch.from_numpy(local)
        rows = served.rows
        if rows is None:
            raise InputError(
                "there is no batch at hand: use the module within `for batch in engine.batches(...)`, and before "
                "`engine.save`, or call model.eval() to read rows", where
            )  # fmt: skip
        rows.check_leaf()
        places = self._places(keys, rows, where)
        if self.trains is False:
            return keys, rows.leaf.detach(), places
        if torch.is_grad_enabled():
            rows.use(places if self.padding_idx is None else places[~keys.are(self.padding_idx).reshape(-1)])
        return keys, rows.leaf, places

    def _check_kind(self, keys: Keys, table: Table, where: str) -> None:
        texts, padding = keys.are_texts, self.padding_idx
        if texts is not None:
            table.check_kind(texts, where)
            if padding is not None and isinstance(padding, str) != texts:
                raise InputError(
                    f"padding_idx is {shown(padding)}, and keys are {'texts' if texts else 'integers'}", where
                )

    def _places(self, keys: Keys, rows: Rows, where: str) -> torch.Tensor:
        """Of each of n keys the place in the batch at hand, int64 [n]."""
        known = self.served.announced.of(keys, rows.number)
        if known is not None:
            return rows.local[known]
        try:
            return rows.places(keys.array(where))
        except NotAnnounced as error:
            raise InputError(
                f"key {shown(keys.key(error.place))} was not announced for batch {rows.number}: what `keys` gives for "
                "this table does not have it", where
            ) from None  # fmt: skip


class Embedding(Keyed):
    """The rows of keys: nn.Embedding over int64 keys of any value, or over texts.

    In training mode these are the rows of the batch at hand; in eval mode, rows as of all batches handed back, without
    gradients.
    """

    @uncompiled
    def forward(self, input: Any) -> torch.Tensor:
        """Rows of a tensor of keys of any shape [...] or a list of keys [n]: float32 [..., dimension].

        Those of a nested tensor of bags, or of a list of bags, are a nested tensor, jagged, [b, bag, dimension].
        """
        keys, values, places = self._look_up(input)
        vectors = picked(values, places)
        if self.padding_idx is not None:
            vectors = vectors.masked_fill(keys.are(self.padding_idx).reshape(-1)[:, None], 0)
        if keys.shape is None:
            return torch.nested.nested_tensor_from_jagged(vectors, keys.offsets)
        return vectors.view(*keys.shape, self.dimension)


class EmbeddingBag(Keyed):
    """Sums or means of the rows of bags of keys: nn.EmbeddingBag over int64 keys of any value, or over texts.

    Args:
        embedding_dim: floats of a row.
        mode: sum, mean or max.
        include_last_offset: offsets end with the number of keys.
        given: of `Keyed`.
    """

    def __init__(
        self, embedding_dim: int, *more: Any, mode: str = "sum", include_last_offset: bool = False, **given: Any
    ):
        super().__init__(embedding_dim, *more, **given)
        if mode not in ("sum", "mean", "max"):
            raise InputError(f"mode must be sum, mean or max, not {shown(mode)}", type(self).__name__)
        self.mode, self.include_last_offset = mode, include_last_offset

    @uncompiled
    def forward(
        self, input: Any, offsets: torch.Tensor | None = None, per_sample_weights: torch.Tensor | None = None
    ) -> torch.Tensor:
        """One vector for each bag: float32 [b, dimension].

        Args:
            input: keys [b, n]; or [n] with `offsets`; or bags of any lengths, as a nested tensor or a list of lists.
            offsets: the first place of each bag, [b], or [b + 1] with `include_last_offset`.
            per_sample_weights: of each key, of the keys' form; with the mode sum alone.
        """
        keys, values, places = self._look_up(input)
        self._check_form(keys, offsets)
        weights = self._weights(keys, per_sample_weights)
        padding = self._padding(keys, places)
        if not values.requires_grad:
            return self._read(keys, values, places, offsets, weights, padding)
        if keys.shape is None:
            bounds = present(keys.offsets).to(torch.int64, copy=True)  # the backward pass uses them, too, unchecked
        elif offsets is not None:
            last = [] if self.include_last_offset else [offsets.new_tensor([keys.count])]
            bounds = torch.cat([offsets.detach(), *last]).long()
        elif keys.shape[1] == 1 and weights is None and padding < 0:
            return picked(values, places)  # whatever the mode
        else:
            bounds = torch.arange(keys.shape[0] + 1) * keys.shape[1]
        return pooled(values, places, bounds, self.mode, None if weights is None else weights.reshape(-1), padding)

    def _padding(self, keys: Keys, places: torch.Tensor) -> int:
        """The place of the key that stands for none; -1: there is none, or it is not among these."""
        if self.padding_idx is None:
            return -1
        found = places[keys.are(self.padding_idx).reshape(-1)][:1]
        return int(found) if len(found) else -1

    def _read(
        self, keys: Keys, values: torch.Tensor, places: torch.Tensor, offsets: torch.Tensor | None,
        weights: torch.Tensor | None, padding: int,
    ) -> torch.Tensor:  # fmt: skip
        """The bags of values that are not trained, as torch's module makes them."""
        last = self.include_last_offset
        if keys.shape is None:
            offsets, last = keys.offsets, True
        return functional.embedding_bag(
            places if keys.shape is None else places.view(keys.shape), values,
            None if offsets is None else offsets.long(), mode=self.mode, per_sample_weights=weights,
            include_last_offset=last, padding_idx=padding if padding >= 0 else None,
        )  # fmt: skip

    def _check_form(self, keys: Keys, offsets: torch.Tensor | None) -> None:
        if keys.shape is None:
            if offsets is not None:
                raise InputError("bags of different lengths come without offsets", type(self).__name__)
        elif len(keys.shape) != (2 if offsets is None else 1):
            raise InputError(f"keys [b, n] come without offsets and keys [n] with them, not {list(keys.shape)} "
                             f"with{'out' * (offsets is None)}", type(self).__name__)  # fmt: skip
        elif offsets is not None:
            _check_offsets(offsets, keys.count, self.include_last_offset, type(self).__name__)

    def _weights(self, keys: Keys, weights: torch.Tensor | None) -> torch.Tensor | None:
        """The weights of the keys, of their shape or [n]."""
        if weights is None:
            return None
        if not isinstance(weights, torch.Tensor) or weights.dtype != torch.float32:
            found = weights.dtype if isinstance(weights, torch.Tensor) else type(weights).__name__
            raise InputError(f"per_sample_weights must be a tensor of float32, not {found}", type(self).__name__)
        if self.mode != "sum":
            raise InputError("per_sample_weights need mode 'sum'", type(self).__name__)
        if weights.is_nested:
            weights = weights.contiguous().values()
        shape = (keys.count,) if keys.shape is None else keys.shape
        if weights.shape != shape:
            raise InputError(f"per_sample_weights are {list(weights.shape)}, and keys {list(shape)}",
                             type(self).__name__)  # fmt: skip
        return weights


def _check_offsets(offsets: Any, count: int, last: bool, where: str) -> None:
    whole = isinstance(offsets, torch.Tensor) and offsets.dtype in (torch.int64, torch.int32) and offsets.dim() == 1
    if not whole:
        raise InputError(f"offsets must be a tensor of whole numbers, [b], not {shown(offsets)}", where)
    if last and not offsets.numel():
        raise InputError("offsets are empty, and include_last_offset needs the last one", where)
    bounds = offsets.numpy()
    if bounds.size and (bounds[0] != 0 or bounds[-1] > count or (bounds[1:] < bounds[:-1]).any()):
        raise InputError(f"offsets must ascend from 0 to at most {count}, the number of keys", where)
