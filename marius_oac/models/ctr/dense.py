"""The dense parameters of a network and their optimizer: torch.optim's plain ones, tensor by tensor.

Guarantees:
- `state` names the same tensors before the first step as after it, so that a checkpoint of any moment can be loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from marius_oac.config_ctr import DenseOptimizerConfig
from marius_oac.types import DenseSync

NETWORK, OPTIMIZER = "network.", "optimizer."
"""What the names of parameters and buffers, and of the optimizer's state by parameter, begin with."""


class DenseOptimizer:
    """Args:
    network: its parameters are updated in place; they must not be replaced.
    sync: how they agree with those of other nodes; None: there is one node.
    """

    def __init__(self, network: nn.Module, config: DenseOptimizerConfig, sync: DenseSync | None = None) -> None:
        self._network = network
        self._parameters = {name: each for name, each in network.named_parameters() if each.requires_grad}
        self._sync, self._optimizer = sync, None
        if self._parameters:
            parameters = list(self._parameters.values())
            own = sync.optimizer(parameters) if sync else None
            self._optimizer = own or _make(parameters, config)
            if sync:
                sync.attach(parameters)
        self._rate, self._decay = config.learning_rate, config.decay

    def step(self, arrays: Mapping[str, Any], timestamp: int) -> None:
        """One update from the parameters' gradients, which are then forgotten.

        Where `decay` is not 1, the learning rate is `decay ** arrays["epoch"]` of itself (on CUDA the host then waits
        for that number). With a `sync` the gradients are `arrays["share"]` of those of a batch over all nodes.
        """
        if self._optimizer is not None:
            if self._decay != 1:
                for group in self._optimizer.param_groups:
                    group["lr"] = self._rate * self._decay ** int(arrays["epoch"].item())
            if self._sync:
                self._sync.reduce(self._gradients(), float(arrays["share"].item()))
            self._optimizer.step()
            self._optimizer.zero_grad(set_to_none=True)
            if self._sync:
                self._sync.updated(timestamp)

    def _gradients(self) -> list[torch.Tensor]:
        for parameter in self._parameters.values():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        return [parameter.grad for parameter in self._parameters.values()]

    def state(self) -> dict[str, torch.Tensor]:
        """Parameters, buffers and optimizer state, by name: the tensors themselves, not copies."""
        state = {NETWORK + name: tensor for name, tensor in self._network.state_dict().items()}
        for name, parameter in self._parameters.items():
            for key, tensor in self._optimizer.state[parameter].items():
                state[f"{OPTIMIZER}{name}.{key}"] = tensor
        return state

    def load(self, state: Mapping[str, torch.Tensor]) -> None:
        """Takes over, by copy, what `state` gave.

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


def _make(parameters: list[nn.Parameter], config: DenseOptimizerConfig) -> torch.optim.Optimizer:
    common = {"lr": config.learning_rate, "weight_decay": config.weight_decay}
    if config.kind == "sgd":
        return torch.optim.SGD(parameters, **common)
    if config.kind == "adagrad":
        return torch.optim.Adagrad(parameters, eps=config.epsilon, **common)
    optimizer = torch.optim.Adam(parameters, betas=(config.beta1, config.beta2), eps=config.epsilon, **common)
    for parameter in parameters:  # as its first step would
        optimizer.state[parameter] = {
            "step": torch.tensor(0.0),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }
    return optimizer
