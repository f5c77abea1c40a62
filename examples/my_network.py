"""A network of your own: two towers, one over the user's features and one over the rest, and the cosine between them.

    marius-oac train frappe_deepfm.yaml --set model.network=my_network.py:TwoTowers

Rows, optimizers, batches, checkpoints and the same bits in every mode are looked after: the class only says what
becomes of a batch. See `marius_oac.models.ctr.schema` for what `schema` and `inputs` hold.
"""

import torch
from torch import nn

from marius_oac import Network


class TwoTowers(Network):
    """The first field is the user; all others and the numbers are what is shown to them."""

    first_order = True  # rows have one float more, and inputs.first_order is there

    def __init__(self, schema, config):
        super().__init__(schema, config)
        width = config.hidden[-1]
        self.user = nn.Linear(schema.fields[0].dimension, width)
        self.shown = nn.Sequential(
            nn.Linear(schema.width - schema.fields[0].dimension, config.hidden[0]),
            nn.ReLU(),
            nn.Linear(config.hidden[0], width),
        )
        self.scale, self.bias = nn.Parameter(torch.tensor(5.0)), nn.Parameter(torch.zeros(()))

    def forward(self, inputs):
        user = self.user(inputs.fields[0])
        shown = self.shown(torch.cat((*inputs.fields[1:], inputs.numbers), 1))
        return self.scale * torch.cosine_similarity(user, shown) + inputs.first_order.sum(1) + self.bias
