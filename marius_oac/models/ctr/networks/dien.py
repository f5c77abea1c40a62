"""DIEN."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, softplus

from marius_oac.config.ctr import NetworkConfig
from marius_oac.errors import ConfigError
from marius_oac.models.ctr.layers import MLP, mask_of, side_by_side
from marius_oac.models.ctr.network import Network
from marius_oac.models.ctr.schema import Inputs, Schema


class Recurrence(nn.Module):
    """A GRU whose update gate is scaled in each step (Zhou et al., AAAI 2019, equations 2 to 5).

        u = sigmoid(W_u x_t + U_u h + b_u)      r = sigmoid(W_r x_t + U_r h + b_r)
        n = tanh(W_n x_t + r * U_n h + b_n)     h = (1 - a_t u) * h + a_t u * n

    Without scales (a_t = 1) it is a GRU; with attention weights it is the paper's AUGRU. With a_t = 0 the state stays.
    """

    def __init__(self, inputs: int, dimension: int) -> None:
        super().__init__()
        self.dimension = dimension
        self.driven = nn.Linear(inputs, 3 * dimension)
        self.kept = nn.Linear(dimension, 3 * dimension, bias=False)

    def forward(self, steps: Tensor, scales: Tensor | None = None) -> list[Tensor]:
        """The state after each of the L steps, [B, D] each, of steps [B, L, inputs] and scales a [B, L]; float32."""
        state, states = steps.new_zeros(steps.shape[0], self.dimension), []
        gates = (2 * self.dimension, self.dimension)
        # The part that depends only on the steps is one product for all of them.
        for t, drive in enumerate(self.driven(steps).unbind(1)):
            (gates_x, new_x), (gates_h, new_h) = drive.split(gates, 1), self.kept(state).split(gates, 1)
            update, reset = torch.sigmoid(gates_x + gates_h).chunk(2, 1)
            new = torch.tanh(new_x + reset * new_h)
            if scales is not None:
                update = scales[:, t, None] * update
            state = state + update * (new - state)
            states.append(state)
        return states


class InterestEvolution(nn.Module):
    """For one sequence, a GRU extracts interests, attention to the target weights them, and an AUGRU follows their
    evolution.

    Zhou et al., "Deep Interest Evolution Network", AAAI 2019, sections "Interest Extractor Layer" and "Interest
    Evolving Layer": attention is the softmax over a sequence's interests h of h W e, where e is the target's embedding.
    """

    def __init__(self, dimension: int, target: int) -> None:
        super().__init__()
        self.extractor = Recurrence(dimension, dimension)
        self.evolution = Recurrence(dimension, dimension)
        self.attention = nn.Linear(target, dimension, bias=False)

    def forward(self, padded: Tensor, lengths: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """The last state, float32 [B, D], zeros if the sequence is empty; and the interests, float32 [B, L, D].

        Args:
            padded: float32 [B, L, D].
            lengths: int64 [B].
            target: float32 [B, D of the target].
        """
        mask = mask_of(padded, lengths)
        interests = torch.stack(self.extractor(padded), 1)  # those of the padding get no weight
        scores = torch.bmm(interests, self.attention(target)[:, :, None]).squeeze(2)
        # With -inf the softmax of an empty sequence would be NaN.
        weights = scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(1) * mask
        return self.evolution(interests, weights)[-1], interests


def auxiliary_loss(interests: Tensor, padded: Tensor, lengths: Tensor) -> Tensor:
    """How badly interests h foretell the next values e of their sequences, 0-d.

        - log sigmoid(h_t e_{t+1}) - log(1 - sigmoid(h_t n_{t+1}))

    (Zhou et al., equation 6), averaged over a sequence's steps, then over the batch; the paper sums over the steps. A
    negative n is a value of the batch's sequences, drawn by torch's random numbers. A pair whose two values have the
    same row does not count; neither does a sequence of less than two values.

    Args:
        interests, padded: float32 [B, L, D].
        lengths: int64 [B].
    """
    now, following = interests[:, :-1], padded[:, 1:]
    ends = lengths.cumsum(0)
    drawn = torch.rand(following.shape[:2], dtype=torch.float64, device=padded.device)
    places = (drawn * ends[-1]).long()  # among all values of the batch
    examples = torch.searchsorted(ends, places, right=True).clamp(max=len(lengths) - 1)  # beyond it if there is none
    steps = places - (ends - lengths)[examples]
    # As `embedding`, whose gradient has a fixed order of sums on a GPU, too.
    negatives = embedding(examples * padded.shape[1] + steps, padded.flatten(0, 1))
    losses = softplus(-(now * following).sum(2)) + softplus((now * negatives).sum(2))
    counts = mask_of(padded, lengths)[:, 1:] & (negatives != following).any(2)
    return ((losses * counts).sum(1) / counts.sum(1).clamp(min=1)).mean()


class DIEN(Network):
    """An MLP over the last states of all sequences, the fields and the numbers. In training the auxiliary losses of all
    sequences, times `model.auxiliary_loss`, are added to its loss."""

    takes_sequences = True

    def __init__(self, schema: Schema, config: NetworkConfig) -> None:
        super().__init__(schema, config)
        places = [number for number, field in enumerate(schema.fields) if field.name == schema.target]
        if not (schema.sequences and places):
            raise ConfigError("'dien' needs data.sequences, and the field that they lead up to", "model.target")
        self.target, self.auxiliary_weight = places[0], config.auxiliary_loss
        width = schema.fields[self.target].dimension
        self.evolutions = nn.ModuleList(InterestEvolution(each.dimension, width) for each in schema.sequences)
        self.deep = MLP(schema.width + sum(each.dimension for each in schema.sequences), config.hidden, config, 1)

    def forward(self, inputs: Inputs) -> Tensor:
        """See `Network.forward`."""
        target, sequences = inputs.fields[self.target], [inputs.sequences[each.name] for each in self.schema.sequences]
        found = [evolution(*each, target) for each, evolution in zip(sequences, self.evolutions, strict=True)]
        states, interests = zip(*found, strict=True)
        if self.training and self.auxiliary_weight:
            losses = [auxiliary_loss(own, *each) for own, each in zip(interests, sequences, strict=True)]
            self.auxiliary_loss = self.auxiliary_weight * torch.stack(losses).sum()
        return self.deep(torch.cat((side_by_side(inputs), *states), 1)).squeeze(1)
