"""A table without modules and without a loop over a loader: rows are read and gradients applied by calls.

Guarantees:
- Any number of threads may call the methods of a table; one call at a time is served.
- A call of `apply` is one batch of the pipeline under a user's loop, which has the rows of all before. It returns when
  the rows are computed; they may be written after that. Whatever reads waits for them.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from marius_oac.errors import InputError, shown
from marius_oac.runtime.closing import Closable
from marius_oac.storage.contract import ROWS_PER_BLOCK
from marius_oac.torch.engine import Engine
from marius_oac.torch.generators import unchanged
from marius_oac.torch.key_forms import read_keys, tensor_of
from marius_oac.torch.modules import Embedding
from marius_oac.torch.optimizers import RowsOptimizer

_WHERE = "Table"


class Table(Closable):
    """Rows by key, for programs that compute gradients in their own way.

    Keys are integers or texts: an array or a tensor of any shape, anything else with `__dlpack__`, or a list. Rows come
    as NumPy's arrays.

    Args:
        dimension: floats of a row.
        optimizer: makes the optimizer of a module with these rows, as `functools.partial(mt.Adagrad, lr=0.1)`.
        in_flight: calls of `apply` whose rows are on their way. Results don't depend on it.
        given: of `Embedding`: `std` and `seed` of initial rows, `capacity`, `memory`, `path`.

    Attributes:
        optimizer: of torch's, whose learning rate may change.

    Raises:
        InputError: an argument is wrong.
    """

    def __init__(
        self, dimension: int, optimizer: Callable[[Embedding], RowsOptimizer], in_flight: int = 8, **given: Any
    ):
        self._module = Embedding(dimension, **given).eval()
        made: Any = optimizer(self._module) if callable(optimizer) else optimizer
        if not isinstance(made, RowsOptimizer):
            raise InputError(f"optimizer must make one of this package, such as mt.Adagrad, and not {shown(made)}",
                             _WHERE)  # fmt: skip
        self.optimizer = made
        self._engine = Engine(self._module, {self._module: 0}, [self.optimizer], in_flight=in_flight)
        self._one_call, self._closed = threading.RLock(), False

    @property
    def dimension(self) -> int:
        """Floats of a row."""
        return self._module.dimension

    def __len__(self) -> int:
        """The number of rows: of the keys that gradients have been applied to."""
        with self._one_call:
            self._check_open()
            return len(self._engine.tables[0])

    def read(self, keys: Any) -> np.ndarray:
        """The rows of keys of any shape [...], float32 [..., dimension]; initial rows for those without one.

        Raises:
            InputError: the keys are none, or bags of different lengths.
        """
        if read_keys(keys, _WHERE).shape is None:
            raise InputError("rows of bags of different lengths are no array: give the keys one after another", _WHERE)
        with self._one_call:
            self._check_open()
            return self._module(keys).numpy()

    def apply(self, keys: Any, gradients: Any) -> None:
        """Updates the rows of keys of any shape [...] by their gradients, of shape [..., dimension].

        The gradients of a key that comes several times add up, in the order of the keys.

        Raises:
            DivergedError: a gradient is not finite; nothing has changed. Or a row has become NaN, infinite or too
                large, which may be told by a later call; the table is of no more use.
            InputError: the gradients do not fit the keys, or the table is full.
        """
        given = read_keys(keys, _WHERE)
        shape = (given.count, self.dimension) if given.shape is None else (*given.shape, self.dimension)
        summands = _floats(gradients)
        if tuple(summands.shape) != shape:
            raise InputError(f"gradients are {list(summands.shape)}, and of these keys {list(shape)}", _WHERE)
        with self._one_call:
            self._check_open()
            with self._engine.at_hand([keys]) as (rows,):
                everywhere = torch.zeros_like(rows.leaf)
                rows.leaf.grad = everywhere.index_add_(0, rows.local, summands.reshape(-1, self.dimension))
                rows.use(rows.local)
                self.optimizer.step()

    def items(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """All keys with their rows, some at a time: int64 [n] and float32 [n, dimension], in the order in which keys
        came.

        Raises:
            InputError: there are keys that are texts, which are not kept.
        """
        (table,) = self._engine.tables
        for first in range(0, len(self), ROWS_PER_BLOCK):
            with self._one_call:
                self._check_open()
                self._engine.wait_until_written()
                yield table.items(first, ROWS_PER_BLOCK)

    def save(self, folder: str | os.PathLike[str], keep: int = 2) -> None:
        """Writes a checkpoint: see `Engine.save`."""
        with self._one_call:
            self._check_open()
            self._engine.save(folder, keep)

    def load(self, folder: str | os.PathLike[str]) -> bool:
        """Sets rows and optimizer to the newest checkpoint of the folder: see `Engine.load`. Global generators of
        random numbers stay as they are."""
        with self._one_call, unchanged():
            self._check_open()
            return self._engine.load(folder)

    def close(self) -> None:
        """Writes what is on its way, and frees the rows. A second call does nothing."""
        self.__exit__(None, None, None)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        with self._one_call:
            closed, self._closed = self._closed, True
            try:
                if not closed:
                    self._engine.__exit__(kind, error, trace)
            finally:
                self._engine.tables[0].close()

    def _check_open(self) -> None:
        if self._closed:
            raise InputError("the table is closed: make a new one", _WHERE)


def _floats(given: Any) -> torch.Tensor:
    """Gradients as float32."""
    try:
        tensor = tensor_of(given)
    except (TypeError, ValueError, RuntimeError, BufferError):
        tensor = None
    if tensor is None or not tensor.is_floating_point() or tensor.device.type != "cpu":
        raise InputError(f"gradients must be floats on the CPU, not {shown(given)}", _WHERE)
    return tensor.detach().float()
