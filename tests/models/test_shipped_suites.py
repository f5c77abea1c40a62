"""The suites for networks and layers: the package's own pass them, and planted mistakes don't."""

from pathlib import Path

import pytest
import torch
from torch import nn

from marius_oac import Network
from marius_oac.models.compute.user_code import load_own
from marius_oac.models.ctr.network import NETWORKS, network_class
from marius_oac.models.gnn.encoder import _draw_parameters
from marius_oac.models.gnn.layers import GatLayer, SageLayer
from marius_oac.testing.layers import check_layer
from marius_oac.testing.networks import check_network

EXAMPLES = Path(__file__).parents[2] / "examples"
pytestmark = pytest.mark.usefixtures("all_code_is_known")


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_of_the_package_pass(name):
    check_network(network_class(name))


def test_the_example_s_network_and_layer_pass():
    check_network(load_own(EXAMPLES / "my_network.py", "TwoTowers", "model.network"))
    check_layer(load_own(EXAMPLES / "my_layers.py", "Isomorphism", "encoder.layers"), exact_gradient=False)


@pytest.mark.parametrize(
    "make",
    [
        lambda inputs: SageLayer(inputs, 5),
        lambda inputs: SageLayer(inputs, 5, "gcn"),
        lambda inputs: GatLayer(inputs, 3, 2, "concat", True),
        lambda inputs: GatLayer(inputs, 5, 2, "mean", False),
    ],
)
def test_layers_of_the_package_pass(make):
    def drawn(inputs):
        layer = make(inputs)
        _draw_parameters(layer, 0, 1)
        return layer

    check_layer(drawn, exact_gradient=False)


class Good(Network):
    """A product of all fields and numbers."""

    def __init__(self, schema, config):
        super().__init__(schema, config)
        self.product = nn.Linear(schema.width, 1)

    def forward(self, inputs):
        return self.product(torch.cat((*inputs.fields, inputs.numbers), 1)).squeeze(1)


class Rectified(Good):
    """Where an input is negative the gradient is 0, and the network learns all the same."""

    def forward(self, inputs):
        return self.product(torch.relu(torch.cat((*inputs.fields, inputs.numbers), 1))).squeeze(1)


class OfTheBatch(Good):
    def forward(self, inputs):
        logits = super().forward(inputs)
        return logits - logits.mean()


class TwoColumns(Good):
    def forward(self, inputs):
        return super().forward(inputs)[:, None]


class InPlace(Good):
    def forward(self, inputs):
        with torch.no_grad():
            inputs.fields[0].mul_(0.5)
        return super().forward(inputs)


class Random(Good):
    def forward(self, inputs):
        return super().forward(inputs) + torch.rand(())


class Idle(Good):
    def __init__(self, schema, config):
        super().__init__(schema, config)
        self.unused = nn.Parameter(torch.zeros(1))


class Cut(Good):
    def forward(self, inputs):
        return self.product(torch.cat((*inputs.fields, inputs.numbers), 1).detach()).squeeze(1)


class Counted(Good):
    made = 0

    def __init__(self, schema, config):
        super().__init__(schema, config)
        Counted.made += 1
        self.scale = nn.Parameter(torch.tensor(float(Counted.made)))

    def forward(self, inputs):
        return self.scale * super().forward(inputs)


@pytest.mark.parametrize(
    "wrong, said",
    [
        (OfTheBatch, "depends on other examples"),
        (TwoColumns, "not a logit for each"),
        (InPlace, "changes its inputs"),
        (Random, "other logits"),
        (Idle, "without a gradient: unused"),
        (Cut, "no embedding has a gradient"),
        (Counted, "not those of the seed"),
    ],
)
def test_mistakes_of_a_network_are_found(wrong, said):
    check_network(Good)
    check_network(Rectified)
    with pytest.raises(AssertionError, match=said):
        check_network(wrong)


class Layer(nn.Module):
    """A product of a node and one of the sum of its neighbours."""

    activation = staticmethod(torch.relu)

    def __init__(self, inputs):
        super().__init__()
        self.width, self.own, self.others = 3, nn.Linear(inputs, 3), nn.Linear(inputs, 3)

    def sums(self, values, block):
        return torch.zeros(block.num_outputs, values.shape[1], dtype=values.dtype).index_add(
            0, block.destinations, values[block.sources]
        )

    def forward(self, values, block, thread_pool=None):
        return self.own(values[: block.num_outputs]) + self.others(self.sums(values, block))


class AllInputs(Layer):
    def sums(self, values, block):
        return super().sums(values, block) + values.mean(0)


class NoNeighbours(Layer):
    def sums(self, values, block):
        return super().sums(values, block) / block.degrees[:, None]


class Inputs(Layer):
    def forward(self, values, block, thread_pool=None):
        return super().forward(values, block)[:1]


class Dropping(Layer):
    def forward(self, values, block, thread_pool=None):
        return super().forward(nn.functional.dropout(values, 0.5), block)


class Overwriting(Layer):
    def forward(self, values, block, thread_pool=None):
        with torch.no_grad():
            values[0] = 0
        return super().forward(values, block)


class Stuck(Layer):
    def sums(self, values, block):
        return super().sums(values.detach(), block)


@pytest.mark.parametrize(
    "wrong, said",
    [
        (AllInputs, "other than its neighbours"),
        (NoNeighbours, "not finite"),
        (Inputs, "forward returns"),
        (Dropping, "other results"),
        (Overwriting, "changes its inputs"),
        (Stuck, "gradient is not that of the values"),
    ],
)
def test_mistakes_of_a_layer_are_found(wrong, said):
    check_layer(Layer)
    with pytest.raises(AssertionError, match=said):
        check_layer(wrong)
