"""Layers from a user's file: FILE.py:NAME."""

from __future__ import annotations

import torch
from torch import nn

from marius_oac.errors import ConfigError
from marius_oac.models.compute.user_code import blaming, load_own, own_file
from marius_oac.models.gnn.block import Block


def load_layer(name: str, inputs: int, key: str = "encoder.layers") -> nn.Module:
    """The layer that a function or class of a user's file gives.

    It is tried on two nodes and an edge. Parameters are drawn by the layer itself, from torch's global generator.

    Args:
        name: `my_layers.py:make`. It is called as `make(inputs)` and returns an `nn.Module` as `layers` describes it,
            or `marius_oac.dgl.DglLayer`, which is one: with `width`, floats of an output, `activation`, a function
            between it and the next layer, and `forward(values [n, inputs], block, thread_pool) -> [O, width]`.
        inputs: floats of an input.
        key: of the configuration, for the errors.

    Raises:
        ConfigError: there is no such file or function, it fails, or gives something else.
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
    return layer


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
    layer.eval()  # nothing that training looks at is changed
    with torch.no_grad():
        result = layer(torch.zeros(2, inputs), edge, None)
    layer.train(was_training)
    shape = tuple(getattr(result, "shape", ()))
    if shape != (1, width):
        raise ConfigError(f"{called} gives a layer that makes {shape} of one node where `width` says (1, {width})", key)
