"""Layers from a user's file: FILE.py:NAME."""

from __future__ import annotations

from typing import cast

import torch
from torch import nn

from marius_oac.config.parts import own_file
from marius_oac.errors import ConfigError
from marius_oac.models.compute.user_code import blaming, load_own
from marius_oac.models.gnn.block import Block
from marius_oac.models.gnn.layers import Layer


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
