"""The dense parameters of a network and their optimizer, one of torch.optim's, which works tensor by tensor.

Guarantees:
- `state` names the same tensors before the first step as after it, so that a checkpoint of any step can be loaded.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce

import numpy as np
import torch
from torch import nn
from torch.nn.utils import get_total_norm

from marius_oac.config.sections import DenseOptimizerConfig
from marius_oac.models.compute.soundness import LARGEST_VALUE
from marius_oac.types import BatchData, DenseSync, present

NETWORK, OPTIMIZER = "network.", "optimizer."
"""Prefixes in a state: of the names of parameters and buffers, and of the optimizer's state of each parameter."""


_LARGEST_GRADIENT = 2.0**63  # its square is finite
_STEP = "step"
"""The key of an optimizer's count of steps, the only number that torch's optimizers keep for a whole parameter."""


class DenseOptimizer:
    """Updates the dense parameters of a network. It is also a `types.ServedDense`: since the optimizers work element by
    element, a slice is such an optimizer of one flat tensor.

    Args:
        network: its parameters are updated in place; they must not be replaced.
        config: of the optimizer.
        sync: how they agree with those of other nodes; None: there is one node.
    """

    grain = 1

    def __init__(self, network: nn.Module, config: DenseOptimizerConfig, sync: DenseSync | None = None) -> None:
        self._network = network
        self._parameters = {name: each for name, each in network.named_parameters() if each.requires_grad}
        self._sync = sync
        self._optimizer: torch.optim.Optimizer | None = None
        if self._parameters:
            parameters = list(self._parameters.values())
            own = sync.optimizer(parameters) if sync else None
            self._optimizer = own or _make(parameters, config)
            if sync:
                sync.attach(parameters)
        self._config = config
        initial = [float(each.detach().abs().max()) for each in self._parameters.values() if each.numel()]
        self._largest = max([LARGEST_VALUE, *(2 * one for one in initial)])  # initial values may be larger
        self.size = sum(each.numel() for each in self._parameters.values())

    def step(self, data: BatchData, timestamp: int) -> torch.Tensor | float:
        """Updates the parameters from their gradients, and then clears these.

        The learning rate is multiplied by `decay ** data.epoch`. With a `sync` the gradients are `data.share` of those
        of a batch over all nodes.

        Returns:
            0; or NaN if a gradient or its square is NaN or infinite, or an updated parameter is not sound (see
            `soundness`). Added to the batch's loss, NaN shows which batch was at fault. It is a 0-d tensor on the
            parameters' device, if there are parameters, so that nothing waits for the device.
        """
        if self._optimizer is None:
            return 0.0
        gradients = [each.grad for each in self._parameters.values() if each.grad is not None]
        sound = _are_at_most(_LARGEST_GRADIENT, gradients)
        self._step(self._optimizer, data, timestamp)
        sound += _are_at_most(self._largest, [each.detach() for each in self._parameters.values()])
        return torch.where(reduce(torch.logical_and, sound), 0.0, math.nan) if sound else 0.0

    def _step(self, optimizer: torch.optim.Optimizer, data: BatchData, timestamp: int) -> None:
        decay = self._config.decay
        factor = decay**data.epoch
        if self._sync and self._sync.dispatched:
            self._sync.hand_over(self._gradients(), factor)
            optimizer.zero_grad(set_to_none=True)
            return
        if decay != 1:
            _set_rate(optimizer, self._config.learning_rate * factor)
        if not self._sync or self._sync.reduce(self._gradients(), data.share):
            optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if self._sync:
            self._sync.updated(timestamp)

    def _gradients(self) -> list[torch.Tensor]:
        for parameter in self._parameters.values():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        return [present(parameter.grad) for parameter in self._parameters.values()]

    def _states(self) -> list[dict[str, torch.Tensor]]:
        """The optimizer's state of each parameter."""
        return [present(self._optimizer).state[each] for each in self._parameters.values()]

    def slice(self, first: int, end: int) -> NetworkSlice:
        """See `ServedDense.slice`."""
        states = self._states()
        parts = {
            key: one if key == _STEP else _flat(state[key] for state in states)[first:end]
            for key, one in states[0].items()
        }
        return NetworkSlice(self._config, _flat(self._parameters.values())[first:end], parts)

    def take(self, states: Sequence[np.ndarray], bounds: Sequence[int]) -> None:
        """See `ServedDense.take`."""
        optimizer_states = self._states()
        keys = ("", *sorted(optimizer_states[0]))  # of the planes of `NetworkSlice.state`
        parts = [
            np.split(state, np.cumsum([1 if key == _STEP else size for key in keys])[:-1])
            for state, size in zip(states, np.diff(bounds), strict=True)
        ]
        with torch.no_grad():
            for key, plane in zip(keys, zip(*parts, strict=True), strict=True):
                mine = [each[key] for each in optimizer_states] if key else list(self._parameters.values())
                whole = torch.from_numpy(np.concatenate(plane))
                found = [whole[:1]] * len(mine) if key == _STEP else whole.split([each.numel() for each in mine])
                for tensor, values in zip(mine, found, strict=True):
                    tensor.copy_(values.view(tensor.shape))

    def state(self) -> dict[str, torch.Tensor]:
        """Parameters, buffers and optimizer state, by name: the tensors themselves, not copies."""
        state = {NETWORK + name: tensor for name, tensor in self._network.state_dict().items()}
        for name, own in zip(self._parameters, self._states(), strict=True):
            state |= {f"{OPTIMIZER}{name}.{key}": tensor for key, tensor in own.items()}
        return state

    def load(self, state: Mapping[str, torch.Tensor]) -> None:
        """Copies the tensors of a `state` into this one's.

        Raises:
            ValueError: the state is that of another network or optimizer.
        """
        mine = self.state()
        for name in sorted({*mine, *state}):
            here, there = (
                (tuple(each[name].shape), each[name].dtype) if name in each else "nothing" for each in (mine, state)
            )
            if here != there:
                raise ValueError(f"dense state '{name}': {there}, but this model has {here}")
        with torch.no_grad():
            for name, tensor in mine.items():
                tensor.copy_(state[name])


class NetworkSlice:
    """A `types.DenseSlice` of n parameters.

    Args:
        config: of the optimizer.
        values: float32 [n], copied.
        state: the optimizer's state by name, [n], or 0-d for all; copied.
    """

    def __init__(self, config: DenseOptimizerConfig, values: torch.Tensor, state: Mapping[str, torch.Tensor]) -> None:
        self._rate, self._parameter = config.learning_rate, nn.Parameter(values.clone())
        self._optimizer = _make([self._parameter], config)
        self._optimizer.state[self._parameter] = {key: tensor.detach().cpu().clone() for key, tensor in state.items()}

    def values(self) -> np.ndarray:
        """See `DenseSlice.values`."""
        return self._parameter.detach().numpy()

    def apply(self, gradient: np.ndarray, timestamp: int, factor: float) -> None:
        """See `DenseSlice.apply`."""
        self._parameter.grad = torch.from_numpy(gradient)
        _set_rate(self._optimizer, self._rate * factor)
        self._optimizer.step()

    def state(self) -> np.ndarray:
        """See `DenseSlice.state`: the values, then the optimizer's state, sorted by name."""
        state = self._optimizer.state[self._parameter]
        planes = [self.values(), *(state[key].reshape(-1).numpy() for key in sorted(state))]
        return np.concatenate(planes)


def _are_at_most(largest: float, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Whether no element is NaN or has an absolute value above `largest`, as a 0-d tensor; empty without elements."""
    tensors = [each for each in tensors if each.numel()]
    return [get_total_norm(tensors, norm_type=math.inf) <= largest] if tensors else []


def _flat(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    return torch.cat([each.detach().reshape(-1).cpu() for each in tensors])


def _set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate


def _make(parameters: list[nn.Parameter], config: DenseOptimizerConfig) -> torch.optim.Optimizer:
    rate, decay, betas = config.learning_rate, config.weight_decay, (config.beta1, config.beta2)
    if config.kind == "sgd":
        return torch.optim.SGD(parameters, rate, weight_decay=decay)
    if config.kind == "adagrad":
        return torch.optim.Adagrad(parameters, rate, eps=config.epsilon, weight_decay=decay)
    optimizer = torch.optim.Adam(parameters, rate, betas, config.epsilon, weight_decay=decay)
    for parameter in parameters:  # as its first step would
        optimizer.state[parameter] = {
            "step": torch.tensor(0.0),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }
    return optimizer
