"""What a network of clicks must do, the package's or a user's own.

from marius_oac.testing.networks import check_network

def test_my_network():
    check_network(MyNetwork)
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from marius_oac.config.ctr import NetworkConfig
from marius_oac.models.compute.torch_state import seeded_by
from marius_oac.models.ctr.network import Network
from marius_oac.models.ctr.schema import Field, Inputs, Schema, SequenceField

_EXAMPLES, _NUMBERS, _DIMENSION, _VALUES = 6, 2, 4, 3
_FIELDS = ("user", "item", "place")


def check_network(make: type[Network], **keys: Any) -> None:
    """Checks shapes, gradients, and that parameters and results depend on nothing but seed and inputs.

    Args:
        make: the network's class.
        keys: of the section `model`.

    Raises:
        AssertionError: something is wrong.
    """
    fields = tuple(Field(name, _DIMENSION) for name in _FIELDS)
    history = (SequenceField("history", _DIMENSION, _VALUES),) if make.takes_sequences else ()
    schema = Schema(_NUMBERS, fields, history, "item" if history else None)
    config = NetworkConfig(**{"network": "own.py:Own", "dimension": _DIMENSION, "hidden": [5], "bottom": [5],
                              "target": schema.target} | keys)  # fmt: skip
    network, again = (_made(make, schema, config) for _ in range(2))
    same = zip(network.state_dict().values(), again.state_dict().values(), strict=True)
    assert all(torch.equal(one, other) for one, other in same), "parameters are not those of the seed alone"
    network.eval()
    inputs = _draw(schema, make.first_order)
    before = _rows(inputs, slice(None))
    with torch.no_grad():
        found = network(inputs)
        assert found.shape == (_EXAMPLES,), f"forward returns {list(found.shape)}, not a logit for each of {_EXAMPLES}"
        assert found.dtype == torch.float32 and found.isfinite().all(), "logits are not finite float32"
        unchanged = zip(_tensors(inputs), _tensors(before), strict=True)
        assert all(torch.equal(one, other) for one, other in unchanged), "forward changes its inputs"
        assert torch.equal(network(inputs), found), "in evaluation the same inputs give other logits"
        for i in range(_EXAMPLES):
            one = network(_rows(inputs, slice(i, i + 1)))
            assert torch.allclose(one[0], found[i], atol=1e-5), "an example's logit depends on other examples"
    _check_training(network, inputs)


def _check_training(network: Network, inputs: Inputs) -> None:
    network.train()
    leaves = [each.requires_grad_() for each in _tensors(inputs) if each.is_floating_point()]
    with seeded_by(1):
        logits = network(inputs)
    assert logits.requires_grad, "logits have no gradient"
    parameters = list(network.parameters())
    gradients = torch.autograd.grad(logits.sum(), [*leaves, *parameters], allow_unused=True)
    assert all(each is None or each.isfinite().all() for each in gradients), "a gradient is not finite"
    used = gradients[: len(leaves)]
    learns = any(each is not None and each.ne(0).any() for each in used)
    assert learns, "no embedding has a gradient: nothing would be learned of the features"
    idle = [name for (name, _), each in zip(network.named_parameters(), gradients[len(leaves) :], strict=True)
            if each is None]  # fmt: skip
    assert not idle, f"parameters without a gradient: {', '.join(idle)}"


def _made(make: type[Network], schema: Schema, config: NetworkConfig) -> Network:
    with seeded_by(0):
        return make(schema, config)


def _draw(schema: Schema, first_order: bool) -> Inputs:
    random = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=random)

    fields = tuple(normal(_EXAMPLES, field.dimension) for field in schema.fields)
    lengths = torch.tensor([0, 1, 2, 3, 1, 3])
    held = (torch.arange(_VALUES) < lengths[:, None])[..., None]
    sequences = {each.name: (normal(_EXAMPLES, _VALUES, each.dimension) * held, lengths) for each in schema.sequences}
    weights = normal(_EXAMPLES, len(fields)) if first_order else None
    return Inputs(normal(_EXAMPLES, schema.num_numbers), fields, torch.stack(fields, 1), weights, sequences)


def _tensors(inputs: Inputs) -> list[Tensor]:
    others = [each for each in (inputs.stacked, inputs.first_order) if each is not None]
    return [*inputs.fields, *others, *(each for pair in inputs.sequences.values() for each in pair)]


def _rows(inputs: Inputs, rows: slice) -> Inputs:
    return replace(
        inputs,
        numbers=inputs.numbers[rows].clone(),
        fields=tuple(each[rows].clone() for each in inputs.fields),
        stacked=None if inputs.stacked is None else inputs.stacked[rows].clone(),
        first_order=None if inputs.first_order is None else inputs.first_order[rows].clone(),
        sequences={name: (values[rows].clone(), counts[rows].clone()) for name, (values, counts) in
                   inputs.sequences.items()},
    )  # fmt: skip
