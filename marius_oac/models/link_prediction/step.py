"""The training step of link prediction: `marius_oac.types.Step` for graphs with and without relations.

Guarantees:
- `compute` is called by one thread; on the CPU it shares its work with `threads - 1` others, which live until `close`.
- The result is a function of rows, data, timestamp and dense state alone: the same bits for any number of threads.
- On the CPU NumPy's products run on one thread each, in the whole process, until `close`. The thread that made the step
  calls it; steps that exist at the same time are closed in reverse order.
- If `compute` raises, the rows it was given and the relations are corrupted; the run must stop.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np
import torch

from marius_oac.batches import EdgeBatch
from marius_oac.config.link_prediction import Config
from marius_oac.config.parts import WITHOUT_RELATIONS
from marius_oac.errors import ConfigError
from marius_oac.models.compute.device_products import products_on
from marius_oac.models.compute.multiply import multiply_of
from marius_oac.models.compute.row_optimizers import GradientPassThrough, RowOptimizer
from marius_oac.models.compute.torch_state import compute_threads, torch_threads
from marius_oac.models.compute.update import Update, Updated
from marius_oac.models.link_prediction.autograd import AutogradGradient
from marius_oac.models.link_prediction.decoders import make_decoder
from marius_oac.models.link_prediction.fused import FusedGradient, is_fused
from marius_oac.models.link_prediction.handwritten import HandwrittenGradient, Relations, is_handwritten
from marius_oac.models.link_prediction.relations import RelationTable
from marius_oac.types import map_arrays, present

_NO_RELATIONS = Relations(None, GradientPassThrough().rule(0))


def entity_width(config: Config) -> tuple[int, int]:
    """The numbers of floats of value and of optimizer state in an entity's row."""
    dimension = config.row_dimension
    return dimension, RowOptimizer(config.training.optimizer).state_width(dimension)


def relation_width(config: Config) -> int:
    """The number of floats of value in a relation's row; 0 for a decoder without relations."""
    return make_decoder(config.model).relation_width(config.model.dimension)


class LinkPredictionStep(Updated):
    """Loss, gradient and row optimizer of a batch of edges.

    Rows in a NumPy array use the handwritten gradient for the CPU. Rows in a tensor use the kernels of `fused`, or
    autograd where the device has none of them. A user's decoder or loss uses autograd everywhere.

    The loss is the mean over edges and sides plus the penalty; `autograd` gives the formula. Relations, the only dense
    parameters, are a table on the device; a batch updates its `relation_rows`.

    The learning rate is multiplied by `decay ** epoch`. The epoch is part of the batch, because batches of two epochs
    may be computed in order of arrival.

    Args:
        config: the run's.
        num_relations: R, twice the graph's relations if they are reciprocal; 0 for a graph without relations.
        device: a CPU or CUDA device.
        threads: on the CPU, at least 1.
        relations: float32 [R, relation_width(config)], the relations' initial values; copied. None if R or the width
            is 0.
        update: what follows from the gradients; None: that of one machine, as configured.

    Raises:
        ConfigError: the decoder needs relations and the graph has none.
        ValueError: `relations` has another shape or type.
    """

    def __init__(
        self,
        config: Config,
        num_relations: int,
        device: torch.device,
        threads: int,
        relations: np.ndarray | None = None,
        update: Update | None = None,
    ) -> None:
        width = relation_width(config)
        if width and not num_relations:
            raise ConfigError(
                f"{config.model.decoder} needs relations, and the graph has none; use {WITHOUT_RELATIONS}",
                "model.decoder",
            )
        optimizer = config.training.optimizer
        self._update = update or Update.here(optimizer)
        self._dimension = config.model.dimension
        self._width = self._dimension + self._update.rows.state_width(self._dimension)
        self._relations: RelationTable | None = None
        if width:
            values, shape = relations, (num_relations, width)
            if values is None or values.shape != shape or values.dtype != np.float32:
                given = None if values is None else f"{values.dtype} {values.shape}"
                raise ValueError(f"relations must be float32 {shape}, not {given}")
            self._relations = RelationTable(values, optimizer, device, at_once=self._update.sync is None)
            self._update.own(self._relations)
        self._autograd, self._stack = AutogradGradient(config), ExitStack()
        self._products_on = partial(products_on, device, config.compute.precision)
        self.thread_pool = self._stack.enter_context(compute_threads(device, threads))
        self._fused = FusedGradient(config) if is_fused(config, device) else None
        self._handwritten: HandwrittenGradient | None = None
        if is_handwritten(config):
            self._handwritten = HandwrittenGradient(config, self.thread_pool, multiply_of(config.compute))
        self._update.ready()

    def compute(self, rows: Sequence[Any], data: EdgeBatch[Any], timestamp: int) -> Any:
        """See `Step.compute`; `rows[0]` are the entities' rows.

        Raises:
            ValueError: the rows are not float32 [n, D + state] in C order.
        """
        (entities,) = rows
        if entities.ndim != 2 or entities.shape[1] != self._width:
            raise ValueError(f"rows {tuple(entities.shape)}, but a row has {self._width} floats")
        if isinstance(entities, torch.Tensor):
            with self._products_on():
                return self._compute_tensors(entities, data, timestamp)
        if entities.dtype != np.float32 or not entities.flags.c_contiguous:
            raise ValueError(f"rows must be float32 in C order, not {entities.dtype} with strides {entities.strides}")
        # More threads would wait for each other actively, and take the cores from the thread pool.
        with self._products_on(), torch_threads(1):
            if self._handwritten is None:  # products of several threads, or of other addresses, have other bits
                return self._compute_tensors(
                    torch.from_numpy(entities), map_arrays(data, torch.from_numpy), timestamp
                ).item()
            return self._compute_arrays(self._handwritten, entities, data, timestamp)

    def _compute_arrays(
        self, gradient: HandwrittenGradient, rows: np.ndarray, data: EdgeBatch[np.ndarray], timestamp: int
    ) -> float:
        update, relations = self._update, self._relations
        rule = update.rows.rule(timestamp, update.factor(data))
        opened = _NO_RELATIONS if relations is None else relations.opened(data, timestamp)
        loss = gradient.compute(rows, data, rule, opened)
        if relations is not None:
            loss += relations.closed(opened, data)
        return update.dense(loss, data, timestamp)

    def _compute_tensors(self, rows: torch.Tensor, data: EdgeBatch[torch.Tensor], timestamp: int) -> torch.Tensor:
        if self._fused is not None and rows.dtype == torch.float32:
            return self._compute_fused(self._fused, rows, data, timestamp)
        update, values = self._update, rows[:, : self._dimension]
        if rows.device.type == "cpu":
            values = values.clone()  # bits of products depend on the addresses of their arguments
        if self._relations is None:
            loss, gradients, _ = self._autograd(values, None, data)
        else:
            picked = self._relations.picked(data)
            loss, gradients, found = self._autograd(values, picked[:, : self._relations.width], data)
            sound = self._relations.take_gradients(picked, present(found), data, timestamp)
            loss = loss.masked_fill_(~sound, math.nan)
        loss = update.dense(loss, data, timestamp)
        update.rows.update(rows, gradients, timestamp, update.factor(data))
        return loss

    def _compute_fused(
        self, fused: FusedGradient, rows: torch.Tensor, data: EdgeBatch[torch.Tensor], timestamp: int
    ) -> torch.Tensor:
        update, relations = self._update, self._relations
        found = fused(rows, None if relations is None else relations.table, data)
        if relations is not None:
            relations.take_parts(present(found.relations), data, timestamp, told=found.losses)
        update.rows.update_parts(rows, found.entities, timestamp, update.factor(data))
        return update.dense(found.losses.mean(), data, timestamp)

    def close(self) -> None:
        """Ends the threads."""
        self._stack.close()
