"""Layers of your own for a graph encoder: one in plain torch, and one of dgl's.

    encoder:
      layers:
        - {kind: module, module: my_layers.py:Isomorphism, neighbors: 10}
        - {kind: module, module: my_layers.py:attention, neighbors: 10}

Each name is called with the number of floats of an input. What it gives is a torch module with `width`, the floats of
an output, `activation`, a function between it and the next layer, and `forward(values, block, thread_pool)`. Parameters
may be drawn as torch does: its generator is seeded around the call.
"""

import torch
from torch import nn

from marius_oac.dgl import DglLayer, load
from marius_oac.models.gnn.segments import neighbours

WIDTH = 50


class Isomorphism(nn.Module):
    """A layer of a graph isomorphism network (Xu et al., ICLR 2019, equation 4.1): a perceptron of (1 + epsilon) times
    a node plus the sum of its neighbours.

    A block knows who sends to whom: `block.sources` [messages], `block.destinations` [messages] and `block.degrees`
    [outputs]; the outputs are the first of the inputs. `neighbours` gives [outputs, inputs] of the nodes themselves and
    of the sums, and has the same bits whatever the number of threads.
    """

    activation = staticmethod(torch.relu)

    def __init__(self, inputs):
        super().__init__()
        self.width = WIDTH
        self.epsilon = nn.Parameter(torch.zeros(1))
        self.perceptron = nn.Sequential(nn.Linear(inputs, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))

    def forward(self, values, block, thread_pool=None):
        own, sums = neighbours(values, block, thread_pool)
        return self.perceptron((1 + self.epsilon) * own + sums)


def attention(inputs):
    """dgl's GATv2 (Brody et al., ICLR 2022), with two heads side by side."""
    dgl = load()
    return DglLayer(dgl.nn.GATv2Conv(inputs, WIDTH // 2, 2, allow_zero_in_degree=True), inputs, merge="concat")
