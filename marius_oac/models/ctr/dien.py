"""DIEN."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from marius_oac.config_ctr import NetworkConfig
from marius_oac.errors import ConfigError
from marius_oac.models.ctr.layers import MLP, mask_of, side_by_side
from marius_oac.models.ctr.network import Network
from marius_oac.models.ctr.schema import Inputs, Schema


class InterestEvolution(nn.Module):
    """One sequence: a GRU extracts interests, attention to the target weighs them, an AUGRU follows their evolution.

    Zhou et al., "Deep Interest Evolution Network", AAAI 2019: GRU of section "Interest Extractor Layer" (equations 2 to
    5), attention and AUGRU of "Interest Evolving Layer" (equations 12 to 16). The auxiliary loss is left out.
    """

    def __init__(self, dimension: int, target: int) -> None:
        super().__init__()
        self.dimension = dimension
        self.extractor, self.evolution = (nn.Linear(2 * dimension, 2 * dimension) for _ in range(2))
        self.extracted, self.evolved = (nn.Linear(2 * dimension, dimension) for _ in range(2))
        self.attention = nn.Linear(target, dimension, bias=False)

    def forward(self, padded: Tensor, lengths: Tensor, target: Tensor) -> Tensor:
        """[B, D]: the last state; zeros where the sequence is empty."""
        mask = mask_of(padded, lengths)
        state, interests = padded.new_zeros(padded.shape[0], self.dimension), []
        for step in range(padded.shape[1]):
            new, keep = _gru(self.extractor, self.extracted, padded[:, step], state)
            state = torch.where(mask[:, step, None], (1 - keep) * state + keep * new, state)
            interests.append(state)
        attended = torch.stack([(interest * self.attention(target)).sum(1) for interest in interests], 1)
        weights = attended.masked_fill(~mask, -torch.inf).softmax(1).masked_fill(~mask, 0.0)
        state = torch.zeros_like(state)
        for step, interest in enumerate(interests):
            new, keep = _gru(self.evolution, self.evolved, interest, state)
            keep = weights[:, step, None] * keep
            state = torch.where(mask[:, step, None], (1 - keep) * state + keep * new, state)
        return state


def _gru(gates: nn.Linear, candidate: nn.Linear, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """The candidate state and the update gate of a GRU's step."""
    update, reset = torch.sigmoid(gates(torch.cat((x, state), 1))).chunk(2, 1)
    return torch.tanh(candidate(torch.cat((x, reset * state), 1))), update


class DIEN(Network):
    """The last states of all sequences, beside fields and numbers, into an MLP."""

    takes_sequences = True

    def __init__(self, schema: Schema, config: NetworkConfig) -> None:
        super().__init__(schema, config)
        places = [number for number, field in enumerate(schema.fields) if field.name == schema.target]
        if not (schema.sequences and places):
            raise ConfigError("'dien' needs data.sequences, and the field that they lead up to", "model.target")
        self.target = places[0]
        width = schema.fields[self.target].dimension
        self.evolutions = nn.ModuleList(InterestEvolution(each.dimension, width) for each in schema.sequences)
        self.deep = MLP(schema.width + sum(each.dimension for each in schema.sequences), config.hidden, config, 1)

    def forward(self, inputs: Inputs) -> Tensor:
        target = inputs.fields[self.target]
        states = [
            evolution(*inputs.sequences[each.name], target)
            for each, evolution in zip(self.schema.sequences, self.evolutions, strict=True)
        ]
        return self.deep(torch.cat((side_by_side(inputs), *states), 1)).squeeze(1)
