"""What a layer of a graph encoder must do, the package's or a user's own.

from marius_oac.testing.layers import check_layer

def test_my_layer():
    check_layer(MyLayer)
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

import torch
from torch import Tensor

from marius_oac.models.compute.torch_state import seeded_by
from marius_oac.models.gnn.block import Block
from marius_oac.models.gnn.layers import Layer
from marius_oac.runtime.thread_pool import ThreadPool
from marius_oac.testing.gradients import check_gradient

_INPUTS = 4
_OFFSETS, _SOURCES = (0, 2, 2, 5), (3, 4, 0, 4, 5)
"""Three outputs of six inputs; the second has no neighbour, the third is one of its neighbours' neighbours."""


def check_layer(make: Callable[[int], Layer], exact_gradient: bool = True) -> None:
    """Checks shapes, gradients, nodes without neighbours, and that nothing but seed, values and edges matters.

    Args:
        make: is called with the number of floats of an input, as `encoder.layers.N.module` names it.
        exact_gradient: False if the layer can't be differentiated in float64.

    Raises:
        AssertionError: something is wrong.
    """
    layer, again = (_made(make) for _ in range(2))
    same = zip(layer.state_dict().values(), again.state_dict().values(), strict=True)
    assert all(torch.equal(one, other) for one, other in same), "parameters are not those of the seed alone"
    layer.eval()
    block = Block(torch.tensor(_OFFSETS), torch.tensor(_SOURCES), 6)
    values = torch.randn(6, _INPUTS, generator=torch.Generator().manual_seed(0))
    given = values.clone()
    with torch.no_grad():
        found = layer(given, block, None)
        shape = (block.num_outputs, layer.width)
        assert tuple(found.shape) == shape, f"forward returns {list(found.shape)}, not {list(shape)}"
        assert found.isfinite().all(), "a result is not finite; the second node has no neighbours"
        assert torch.equal(given, values), "forward changes its inputs"
        assert torch.equal(layer(values, block, None), found), "in evaluation the same inputs give other results"
        with closing(ThreadPool(2)) as thread_pool:
            assert torch.equal(layer(values, block, thread_pool), found), "bits depend on the number of threads"
        _check_alone(layer, values, found)
    layer.train()
    leaf = values.clone().requires_grad_()
    out = layer(leaf, block, None)
    gradients = torch.autograd.grad(out.sum(), [leaf, *layer.parameters()], allow_unused=True)
    assert gradients[0] is not None and gradients[0].ne(0).any(), "inputs have no gradient"
    assert all(each is None or each.isfinite().all() for each in gradients), "a gradient is not finite"
    idle = [name for (name, _), each in zip(layer.named_parameters(), gradients[1:], strict=True) if each is None]
    assert not idle, f"parameters without a gradient: {', '.join(idle)}"
    if exact_gradient:
        layer.eval().double()
        check_gradient("forward", lambda x: layer(x, block, None), values.double())


def _check_alone(layer: Layer, values: Tensor, found: Tensor) -> None:
    """An output has its own value and those of its neighbours, and no other."""
    for output, (begin, end) in enumerate(zip(_OFFSETS[:-1], _OFFSETS[1:], strict=True)):
        sources = list(_SOURCES[begin:end])
        picks = [output, *sources]
        block = Block(torch.tensor([0, len(sources)]), torch.arange(1, 1 + len(sources)), 1 + len(sources))
        one = layer(values[picks], block, None)
        assert torch.allclose(one[0], found[output], atol=1e-5), "an output depends on nodes other than its neighbours"


def _made(make: Callable[[int], Layer]) -> Layer:
    with seeded_by(0):
        return make(_INPUTS)
