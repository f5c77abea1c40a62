"""A network of a user's own: the mean of the fields, and the numbers, through one layer."""

import torch

from marius_oac import Network


class Net(Network):
    def __init__(self, schema, config):
        super().__init__(schema, config)
        self.out = torch.nn.Linear(schema.fields[0].dimension + schema.num_numbers, 1)

    def forward(self, inputs):
        fields = torch.stack(inputs.fields).mean(0)
        return self.out(torch.cat((fields, inputs.numbers), 1)).squeeze(1)
