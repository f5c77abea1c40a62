"""The dense parameters of a network and their optimizer, one of torch.optim's, which works tensor by tensor.

Guarantees:
- `state` names the same tensors before the first step as after it, so that a checkpoint of any step can be loaded.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils import get_total_norm

from marius_oac.config.sections import DenseOptimizerConfig
from marius_oac.models.compute.dense_moments import network_from_kstep, network_to_kstep
from marius_oac.models.compute.eager import eager
from marius_oac.models.compute.soundness import LARGEST_VALUE
from marius_oac.types import present

_SGD, _Adagrad, _Adam = eager(torch.optim.SGD), eager(torch.optim.Adagrad), eager(torch.optim.Adam)

NETWORK, OPTIMIZER = "network.", "optimizer."
"""Prefixes in a state: of the names of parameters and buffers, and of the optimizer's state of each parameter."""


_LARGEST_GRADIENT = 2.0**63  # its square is finite
_STEP = "step"
"""The key of an optimizer's count of steps, the only number that torch's optimizers keep for a whole parameter."""


class NetworkParameters:
    """An `update.DenseGroup`: the parameters of a network. Since the optimizers work element by element, a slice is
    such an optimizer of one flat tensor, and may begin anywhere.

    Args:
        network: its parameters are updated in place; they must not be replaced.
        config: of the optimizer.
    """

    def __init__(self, network: nn.Module, config: DenseOptimizerConfig) -> None:
        self._network, self._config = network, config
        self.norms: Sequence[nn.Module] = [each for each in network.modules() if isinstance(each, _BatchNorm)]
        self._names = {name: each for name, each in network.named_parameters() if each.requires_grad}
        self.parameters: Sequence[torch.Tensor] = list(self._names.values())
        self._optimizer = _make(self._names.values(), config) if self._names else None
        self.rate, self.weight_decay, self.decay = config.learning_rate, config.weight_decay, config.decay
        initial = [float(each.detach().abs().max()) for each in self.parameters if each.numel()]
        self._largest = max([LARGEST_VALUE, *(2 * one for one in initial)])  # initial values may be larger
        self.size = sum(each.numel() for each in self.parameters)

    def adopt(self, optimizer: torch.optim.Optimizer) -> None:
        """See `DenseGroup.adopt`."""
        self._optimizer = optimizer

    def gradients(self) -> list[torch.Tensor]:
        """See `DenseGroup.gradients`; zeros for a parameter that the network didn't use."""
        for parameter in self.parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        return [present(parameter.grad) for parameter in self.parameters]

    def sound_gradients(self) -> list[torch.Tensor]:
        """See `DenseGroup.sound_gradients`; their squares must be finite, too."""
        return _are_at_most(_LARGEST_GRADIENT, [each.grad for each in self.parameters if each.grad is not None])

    def sound_values(self) -> list[torch.Tensor]:
        """See `DenseGroup.sound_values`."""
        return _are_at_most(self._largest, [each.detach() for each in self.parameters])

    def apply(self, timestamp: int, epoch: int) -> None:
        """See `DenseGroup.apply`."""
        optimizer = present(self._optimizer)
        if self.decay != 1:
            _set_rate(optimizer, self.rate * self.decay**epoch)
        optimizer.step()

    def clear(self) -> None:
        """See `DenseGroup.clear`."""
        for parameter in self.parameters:
            parameter.grad = None

    def _states(self) -> list[dict[str, torch.Tensor]]:
        """The optimizer's state of each parameter."""
        return [present(self._optimizer).state[each] for each in self.parameters]

    def cut(self, position: int) -> int:
        """See `DenseGroup.cut`."""
        return position

    def slice(self, first: int, end: int) -> NetworkSlice:
        """See `ServedDense.slice`."""
        states = self._states()
        parts = {
            key: one if key == _STEP else _flat(state[key] for state in states)[first:end]
            for key, one in states[0].items()
        }
        return NetworkSlice(self._config, _flat(self.parameters)[first:end], parts)

    def slice_floats(self, first: int, end: int) -> int:
        """See `DenseGroup.slice_floats`."""
        return sum(_plane_floats(key, end - first) for key in self._planes())

    def _planes(self) -> list[str]:
        """The keys of the planes of `NetworkSlice.state`, "" for the values."""
        return ["", *sorted(self._states()[0])]

    def take(self, states: Sequence[np.ndarray], bounds: Sequence[int]) -> None:
        """See `ServedDense.take`."""
        optimizer_states, keys = self._states(), self._planes()
        parts = [
            np.split(state, np.cumsum([_plane_floats(key, size) for key in keys])[:-1])
            for state, size in zip(states, np.diff(bounds).tolist(), strict=True)
        ]
        with torch.no_grad():
            for key, plane in zip(keys, zip(*parts, strict=True), strict=True):
                mine = [each[key] for each in optimizer_states] if key else self.parameters
                whole = torch.from_numpy(np.concatenate(plane))
                found = [whole[:1]] * len(mine) if key == _STEP else whole.split([each.numel() for each in mine])
                for tensor, values in zip(mine, found, strict=True):
                    tensor.copy_(values.view(tensor.shape))

    def state(self) -> dict[str, torch.Tensor]:
        """See `DenseGroup.state`."""
        state = {NETWORK + name: tensor for name, tensor in self._network.state_dict().items()}
        for name, own in zip(self._names, self._states(), strict=True):
            state |= {f"{OPTIMIZER}{name}.{key}": tensor for key, tensor in own.items()}
        return state

    def to_kstep(self, state: Mapping[str, torch.Tensor], epsilon: float, batches: int) -> Mapping[str, torch.Tensor]:
        """See `DenseGroup.to_kstep`."""
        return network_to_kstep(state, self._owners, self._betas, epsilon)

    def from_kstep(self, state: Mapping[str, torch.Tensor], batches: int) -> Mapping[str, torch.Tensor]:
        """See `DenseGroup.from_kstep`."""
        return network_from_kstep(state, self._owners, self._betas)

    @property
    def _owners(self) -> list[str]:
        return [OPTIMIZER + name for name in self._names]

    @property
    def _betas(self) -> tuple[float, float]:
        return self._config.beta1, self._config.beta2


class NetworkSlice:
    """A `types.DenseSlice` of n parameters.

    Args:
        config: of the optimizer.
        values: float32 [n], copied.
        state: the optimizer's state by name, [n], or 0-d for all; copied.
    """

    def __init__(self, config: DenseOptimizerConfig, values: torch.Tensor, state: Mapping[str, torch.Tensor]) -> None:
        self._config, self._parameter = config, nn.Parameter(values.clone())
        self._optimizer = _make([self._parameter], config)
        self._optimizer.state[self._parameter] = {key: tensor.detach().cpu().clone() for key, tensor in state.items()}

    def values(self) -> np.ndarray:
        """See `DenseSlice.values`."""
        return self._parameter.detach().numpy()

    def apply(self, gradient: np.ndarray, timestamp: int, epoch: int) -> None:
        """See `DenseSlice.apply`."""
        self._parameter.grad = torch.from_numpy(gradient)
        _set_rate(self._optimizer, self._config.learning_rate * self._config.decay**epoch)
        self._optimizer.step()

    def state(self) -> np.ndarray:
        """See `DenseSlice.state`: the values, then the optimizer's state, sorted by name."""
        state = self._optimizer.state[self._parameter]
        planes = [self.values(), *(state[key].reshape(-1).numpy() for key in sorted(state))]
        return np.concatenate(planes)


def _plane_floats(key: str, size: int) -> int:
    return 1 if key == _STEP else size


def _are_at_most(largest: float, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Whether no element is NaN or has an absolute value above `largest`, as a 0-d tensor; empty without elements."""
    tensors = [each for each in tensors if each.numel()]
    return [get_total_norm(tensors, norm_type=math.inf) <= largest] if tensors else []


def _flat(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    return torch.cat([each.detach().reshape(-1).cpu() for each in tensors])


def _set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate


def _make(given: Iterable[nn.Parameter], config: DenseOptimizerConfig) -> torch.optim.Optimizer:
    parameters = list(given)
    rate, decay, betas = config.learning_rate, config.weight_decay, (config.beta1, config.beta2)
    if config.kind == "sgd":
        return _SGD(parameters, rate, weight_decay=decay)
    if config.kind == "adagrad":
        return _Adagrad(parameters, rate, eps=config.epsilon, weight_decay=decay)
    optimizer = _Adam(parameters, rate, betas, config.epsilon, weight_decay=decay)
    for parameter in parameters:  # as its first step would
        optimizer.state[parameter] = {
            "step": torch.tensor(0.0),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }
    return optimizer
