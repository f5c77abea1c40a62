"""Encoders: sequences of layers, made from the configuration and the seed; layers of a user, FILE.py:NAME, too."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import dropout

from marius_oac.config.encoder import EncoderConfig, GatConfig, SageConfig
from marius_oac.config.parts import own_file
from marius_oac.errors import ConfigError
from marius_oac.models.compute.products import relu
from marius_oac.models.compute.torch_state import seeded_by
from marius_oac.models.compute.user_code import blaming, load_own
from marius_oac.models.gnn.block import Block
from marius_oac.models.gnn.layers import GatLayer, Layer, Means, SageLayer
from marius_oac.runtime.thread_pool import Shared
from marius_oac.types import present


def load_layer(name: str, inputs: int, key: str = "encoder.layers") -> Layer:
    """Calls a function or class of a user's file that returns a layer, and tries the layer on two nodes and an edge.

    The layer initialises its parameters, from torch's global generator.

    Args:
        name: `my_layers.py:make`. It is called as `make(inputs)` and returns an `nn.Module` with what `layers.Layer`
            describes, such as a `marius_oac.dgl.DglLayer`.
        inputs: the number of floats of an input.
        key: of the configuration, for messages.

    Raises:
        ConfigError: there is no such file or function, it fails, or it returns something else.
    """
    found = own_file(name)
    if found is None:
        raise ConfigError(f"must be FILE.py:NAME, not {name!r}", key)
    path, attribute = found
    make = load_own(path, attribute, key)
    if not callable(make):
        raise ConfigError(f"{path} has no function or class {attribute!r}", key)
    with blaming(path, key):
        layer = make(inputs)
        _check(layer, inputs, f"{path}: {attribute}({inputs})", key)
    return cast(Layer, layer)  # any module that has what `_check` looks for


def _check(layer: object, inputs: int, called: str, key: str) -> None:
    if not isinstance(layer, nn.Module):
        raise ConfigError(f"{called} gives a {type(layer).__name__}, not an nn.Module", key)
    width = getattr(layer, "width", None)
    if isinstance(width, bool) or not isinstance(width, int) or width < 1:
        raise ConfigError(f"{called} gives a layer whose `width` is {width!r}; floats of an output are needed", key)
    if not callable(getattr(layer, "activation", None)):
        raise ConfigError(f"{called} gives a layer without `activation`, a function such as torch.relu", key)
    edge = Block(torch.tensor([0, 1]), torch.tensor([1]), 2)
    was_training = layer.training
    layer.eval()  # so that the call changes no state of training
    with torch.no_grad():
        result = layer(torch.zeros(2, inputs), edge, None)
    layer.train(was_training)
    shape = tuple(getattr(result, "shape", ()))
    if shape != (1, width):
        raise ConfigError(f"{called} gives a layer that makes {shape} of one node where `width` says (1, {width})", key)


class Encoder(nn.Module):
    """Computes nodes' values from those of their neighbourhoods.

    Between two layers the activation of the first is applied: ReLU after GraphSAGE, ELU after GAT, as in the papers.
    The last layer has no activation.

    Args:
        layers: from the outermost nodes to the innermost; see `layers`, and `marius_oac.dgl` for dgl's.
        dropout: fraction of each layer's inputs that training sets to zero, drawn from torch's generator.
    """

    def __init__(self, layers: Iterable[Layer], dropout: float = 0.0) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.dropout = dropout
        self.width = self.sequence()[-1].width

    def sequence(self) -> list[Layer]:
        """The layers, in order."""
        return [cast(Layer, each) for each in self.layers]  # torch's list knows only modules

    def forward(self, values: Tensor | Means, blocks: Sequence[Block], thread_pool: Shared | None = None) -> Tensor:
        """The innermost nodes' values, float32 [outputs of the last block, width].

        Args:
            values: float32 [inputs of the first block, D], or the means of a first GraphSAGE layer.
            blocks: one for each layer, with `Means` for each layer after the first. The outputs of a block are the
                inputs of the next.
            thread_pool: runs the work on float32 on the CPU; products only if it is a `PooledProducts`; None: all work
                runs in this thread.

        Raises:
            ValueError: the blocks don't match the layers, the values or each other, or the means the first layer.
            ConfigError: a layer returns another number of rows or floats than it should.
        """
        done, x = (1, self._combined(values, thread_pool)) if isinstance(values, Means) else (0, values)
        layers = self.sequence()
        if done + len(blocks) != len(layers):
            raise ValueError(f"{len(blocks)} blocks for {len(layers) - done} layers")
        for number, (layer, block) in enumerate(zip(layers[done:], blocks, strict=True), done):
            if x.shape[0] != block.num_inputs:
                raise ValueError(f"block {number} has {block.num_inputs} inputs, but there are {x.shape[0]}")
            if number:
                x = _activated(layers[number - 1].activation, x, thread_pool)
            x = dropout(x, self.dropout, self.training) if self.dropout else x
            x = layer(x, block, thread_pool)
            if tuple(x.shape) != (block.num_outputs, layer.width):
                given = f"makes {tuple(x.shape)} of {block.num_outputs} nodes; its width is {layer.width}"
                raise ConfigError(given, f"encoder.layers.{number}")
        return x

    def _combined(self, means: Means, thread_pool: Shared | None) -> Tensor:
        first = self.layers[0]
        if not isinstance(first, SageLayer) or (first.own is None) != (means.own is None):
            raise ValueError(f"means {'alone ' if means.own is None else ''}are not what the first layer makes")
        if means.own is not None and means.own.shape != means.means.shape:
            raise ValueError(f"means {tuple(means.means.shape)} of nodes {tuple(means.own.shape)}")
        return first.combine(means, thread_pool)


def _activated(activation: Callable[[Tensor], Tensor], values: Tensor, thread_pool: Shared | None) -> Tensor:
    return relu(values, thread_pool) if activation is torch.relu else activation(values)


def make_encoder(config: EncoderConfig, inputs: int, seed: int) -> Encoder:
    """The encoder of a configuration. Its parameters are a function of configuration, inputs and seed.

    Args:
        inputs: D, floats of the outermost nodes' values.
    """
    layers: list[Layer] = []
    for number, one in enumerate(config.layers):
        if one.kind == "module":
            layers.append(_own_layer(one.module, inputs, number, seed))
        else:
            layers.append(_make_layer(one, inputs, last=number + 1 == len(config.layers)))
            _draw_parameters(layers[-1], number, seed)
        inputs = layers[-1].width
    return Encoder(layers, config.dropout)


def _own_layer(name: str, inputs: int, number: int, seed: int) -> Layer:
    """Makes a layer of a user's file. torch's generator is seeded for that, and restored afterwards."""
    with seeded_by(int.from_bytes(_digest(seed, number, "module")[:8], "little")):
        return load_layer(name, inputs, f"encoder.layers.{number}.module")


def _make_layer(config: SageConfig | GatConfig, inputs: int, last: bool) -> Layer:
    dimension = present(config.dimension)
    if isinstance(config, SageConfig):
        return SageLayer(inputs, dimension, config.aggregator)
    return GatLayer(inputs, dimension, config.heads, config.merged(last), config.attend_to_self)


def _draw_parameters(layer: nn.Module, number: int, seed: int) -> None:
    """Initialises matrices as Glorot and Bengio (AISTATS 2010), equation 16, times the gain of ReLU, and biases to 0.

    A parameter depends only on the seed, the layer's number, its name and its shape, since random numbers are
    counter-based (Philox).
    """
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            if parameter.dim() == 1:
                parameter.zero_()
                continue
            key = int.from_bytes(_digest(seed, number, name)[:16], "little")
            generator = np.random.Generator(np.random.Philox(key=key))
            bound = math.sqrt(2) * math.sqrt(6 / sum(parameter.shape))
            parameter.copy_(torch.from_numpy(generator.uniform(-bound, bound, tuple(parameter.shape))))


def _digest(seed: int, number: int, name: str) -> bytes:
    return hashlib.sha256(f"{seed} encoder {number} {name}".encode()).digest()
