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
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch

from marius_oac.batches import EdgeBatch
from marius_oac.config.link_prediction import Config
from marius_oac.config.parts import WITHOUT_RELATIONS
from marius_oac.errors import ConfigError
from marius_oac.models.compute.dense_moments import RELATIONS
from marius_oac.models.compute.row_optimizers import GradientPassThrough, RowOptimizer
from marius_oac.models.compute.soundness import LARGEST_VALUE, is_sound
from marius_oac.models.compute.torch_state import compute_threads, torch_threads
from marius_oac.models.link_prediction.autograd import AutogradGradient
from marius_oac.models.link_prediction.decoders import make_decoder
from marius_oac.models.link_prediction.handwritten import HandwrittenGradient, Relations, is_handwritten
from marius_oac.models.link_prediction.replicated_relations import ReplicatedRelations
from marius_oac.types import DenseSync, map_arrays, present


def entity_width(config: Config) -> tuple[int, int]:
    """The numbers of floats of value and of optimizer state in an entity's row."""
    dimension = config.row_dimension
    return dimension, RowOptimizer(config.training.optimizer).state_width(dimension)


def relation_width(config: Config) -> int:
    """The number of floats of value in a relation's row; 0 for a decoder without relations."""
    return make_decoder(config.model).relation_width(config.model.dimension)


class LinkPredictionStep:
    """Loss, gradient and row optimizer of a batch of edges.

    Rows in a NumPy array use the handwritten gradient for the CPU, rows in a tensor use autograd. A user's decoder or
    loss uses autograd on the CPU, too.

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
        dense: how the relations agree with those of other nodes. Entities' rows then have no state, and `compute`
            replaces their values by gradients. None: there is one node.
        encoded: entities' rows are encoded nodes, whose values `compute` replaces by gradients; see `gnn.step.Head`.

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
        dense: DenseSync | None = None,
        encoded: bool = False,
    ) -> None:
        width = relation_width(config)
        if width and not num_relations:
            raise ConfigError(
                f"{config.model.decoder} needs relations, and the graph has none; use {WITHOUT_RELATIONS}",
                "model.decoder",
            )
        optimizer = config.training.optimizer
        self._dimension, self._decay, self._device = config.model.dimension, optimizer.decay, device
        self._entity_optimizer = GradientPassThrough() if dense or encoded else RowOptimizer(optimizer)
        self._relation_optimizer = RowOptimizer(optimizer, optimizer.relation_learning_rate)
        self._width = self._dimension + self._entity_optimizer.state_width(self._dimension)
        self._relation_width, self._relations = width, None
        if width:
            self._relations = self._make_relations(num_relations, relations)
        self._agreed = ReplicatedRelations(self._relations, width, self._relation_optimizer, dense) if dense else None
        self._autograd, self._stack = AutogradGradient(config), ExitStack()
        self.thread_pool = self._stack.enter_context(compute_threads(device, threads))
        self._handwritten = HandwrittenGradient(config, self.thread_pool) if is_handwritten(config) else None

    @property
    def served(self) -> ReplicatedRelations | None:
        """See `Step.served`."""
        return self._agreed if self._agreed and self._agreed.size else None

    def _make_relations(self, count: int, values: np.ndarray | None) -> torch.Tensor:
        shape = (count, self._relation_width)
        if values is None or values.shape != shape or values.dtype != np.float32:
            given = None if values is None else f"{values.dtype} {values.shape}"
            raise ValueError(f"relations must be float32 {shape}, not {given}")
        table = torch.empty(count, self._relation_width + self._relation_optimizer.state_width(self._relation_width))
        table[:, : self._relation_width] = torch.from_numpy(values)
        table[:, self._relation_width :] = self._relation_optimizer.initial_state
        return table.to(self._device)

    def compute(self, rows: Sequence[Any], data: EdgeBatch[Any], timestamp: int) -> Any:
        """See `Step.compute`; `rows[0]` are the entities' rows.

        Raises:
            ValueError: the rows are not float32 [n, D + state] in C order.
        """
        (entities,) = rows
        if entities.ndim != 2 or entities.shape[1] != self._width:
            raise ValueError(f"rows {tuple(entities.shape)}, but a row has {self._width} floats")
        if isinstance(entities, torch.Tensor):
            return self._compute_tensors(entities, data, timestamp)
        if entities.dtype != np.float32 or not entities.flags.c_contiguous:
            raise ValueError(f"rows must be float32 in C order, not {entities.dtype} with strides {entities.strides}")
        if self._handwritten is None:  # products of several threads, or of other addresses, would have other bits
            with torch_threads(1):
                return self._compute_tensors(
                    torch.from_numpy(entities), map_arrays(data, torch.from_numpy), timestamp
                ).item()
        factor = self._decay**data.epoch
        rule = self._entity_optimizer.rule(timestamp, factor)
        table = None if self._relations is None else self._relations.numpy()
        if self._agreed:
            handed = Relations(self._agreed.values(data), rule)
            loss = self._handwritten.compute(entities, data, rule, handed)
            fault = self._fault(handed.table, data, math.inf)
            self._agreed.update(handed.table, data, timestamp, factor)
            return loss + fault
        relations = Relations(table, self._relation_optimizer.rule(timestamp, factor))
        return self._handwritten.compute(entities, data, rule, relations) + self._fault(table, data)

    def _compute_tensors(self, rows: torch.Tensor, data: EdgeBatch[torch.Tensor], timestamp: int) -> torch.Tensor:
        factor = self._decay**data.epoch
        largest, values = LARGEST_VALUE, rows[:, : self._dimension]
        if rows.device.type == "cpu":
            values = values.clone()  # bits of products depend on the addresses of their arguments
        if self._relations is None:
            loss, gradients, _ = self._autograd(values, None, data)
        else:
            picks = present(data.relation_rows)
            picked = self._relations[picks]
            loss, gradients, found = self._autograd(values, picked[:, : self._relation_width], data)
            relation_gradients = present(found)
            if self._agreed:
                self._agreed.update_tensor(relation_gradients, picks, data.share, timestamp, factor)
                largest, picked = math.inf, relation_gradients
            else:
                self._relation_optimizer.update(picked, relation_gradients, timestamp, factor)
                self._relations[picks] = picked
            loss = loss.masked_fill_(~is_sound(picked, self._relation_width, largest), math.nan)
        self._entity_optimizer.update(rows, gradients, timestamp, factor)
        return loss

    def _fault(
        self, relations: np.ndarray | None, data: EdgeBatch[np.ndarray], largest: float = LARGEST_VALUE
    ) -> float:
        """0, or NaN if the batch's relations are not sound, to be added to the batch's loss."""
        if relations is None or is_sound(relations[data.relation_rows], self._relation_width, largest):
            return 0.0
        return math.nan

    def dense_state(self) -> Mapping[str, torch.Tensor]:
        """A copy of the dense parameters with their optimizer state; empty without relations."""
        return {name: tensor.clone() for name, tensor in self._dense().items()}

    def _dense(self) -> dict[str, torch.Tensor]:
        if self._relations is None:
            return {}
        return {RELATIONS: self._relations} | (self._agreed.state() if self._agreed else {})

    def load_dense_state(self, state: Mapping[str, torch.Tensor]) -> None:
        """Copies the tensors of a `dense_state` into this step's.

        Raises:
            ValueError: the state is that of another model.
        """
        mine = {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in self._dense().items()}
        theirs = {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in state.items()}
        if mine != theirs:
            raise ValueError(f"dense state {theirs}, but this model has {mine}")
        for name, tensor in self._dense().items():
            tensor.copy_(state[name])

    def close(self) -> None:
        """Ends the threads."""
        self._stack.close()
