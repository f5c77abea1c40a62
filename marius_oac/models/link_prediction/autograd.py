"""The loss of a batch of edges in torch, and its gradient by autograd: for CUDA, and the oracle of the other one.

    loss = 1 / (B S) * sum over edges i and sides s of edge_loss(positive score, scores of chunk(i)'s K negatives on s)
         + weight / B * sum over edges of the penalties of head, tail and relation

B edges, S sides. See `losses` for the edge's loss, `regularizers` for the penalty.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import embedding

from marius_oac.batches import EdgeBatch
from marius_oac.config.link_prediction import Config
from marius_oac.models.link_prediction.decoders import make_decoder
from marius_oac.models.link_prediction.losses import edge_losses
from marius_oac.models.link_prediction.regularizers import penalized, penalties
from marius_oac.types import Side


class AutogradGradient:
    """Loss and gradient of one batch for any decoder and loss. Works in the float type of the values."""

    def __init__(self, config: Config) -> None:
        self._model, self._training = config.model, config.training
        self._decoder = make_decoder(config.model)
        # With reciprocal relations every edge stands twice, so that only tails are replaced.
        self._sides = (Side.TAIL,) if config.model.reciprocal else (Side.HEAD, Side.TAIL)

    def __call__(
        self, values: Tensor, relations: Tensor | None, data: EdgeBatch[Tensor]
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """The loss, 0-d, and its gradients by `values` [n, D] and `relations` [m, Dr]."""
        inputs = [tensor.detach().requires_grad_() for tensor in (values, relations) if tensor is not None]
        with torch.enable_grad():
            loss = self.loss(inputs[0], inputs[1] if len(inputs) > 1 else None, data)
        gradients = torch.autograd.grad(loss, inputs)
        return loss.detach(), gradients[0], gradients[1] if len(inputs) > 1 else None

    def loss(self, values: Tensor, relations: Tensor | None, data: EdgeBatch[Tensor]) -> Tensor:
        """The loss of a batch, 0-d.

        Args:
            values: [n, D], the batch's entity rows without their state.
            relations: [m, Dr], rows of the batch's `relation_rows`; None for Dot.
            data: its arrays are on the device of the values.
        """
        ends, candidates = self._gathered(values, data)
        heads, tails = ends.unbind()
        # A lookup's gradient adds up in a fixed order, on CUDA too, and shares the work where a row is in many edges.
        relation = None if relations is None else embedding(data.relations, relations)
        queries = torch.stack(
            [self._decoder.query(heads if side == Side.TAIL else tails, relation, side) for side in self._sides]
        )
        # Heads are what stands on the side of heads: the ends are targets as they lie.
        targets = ends if len(self._sides) == 2 else tails.unsqueeze(0)
        own = torch.stack([data.tails if side == Side.TAIL else data.heads for side in self._sides])
        positive = self._decoder.pairwise(queries, targets)
        if candidates is None:
            total = self._all(values, queries, positive, own).mean()
        else:
            total = self._sampled(queries, positive, candidates, own, data).mean()
        if penalized(self._training.regularization):
            factors = [heads, tails] if relation is None else [heads, tails, relation]
            config = self._training.regularization
            total = total + config.weight * sum(penalties(config, self._model, each).mean() for each in factors)
        return total

    def _gathered(self, values: Tensor, data: EdgeBatch[Tensor]) -> tuple[Tensor, Tensor | None]:
        """Heads and tails [2, B, D], and the negatives [S, C, K, D] that were drawn, if there are any.

        They are one lookup: its gradient sorts them and adds them up once.
        """
        picks = [data.heads, data.tails]
        if not self._training.negatives.all:
            picks.append(data.negatives.flatten())
        ends, *drawn = embedding(torch.cat(picks), values).split([2 * len(picks[0]), *map(len, picks[2:])])
        ends = ends.view(2, -1, values.shape[1])
        return ends, drawn[0].view(*data.negatives.shape, -1) if drawn else None

    def _all(self, values: Tensor, queries: Tensor, positive: Tensor, own: Tensor) -> Tensor:
        """Losses [S * B] where every row is a candidate but the own end, int64 [S, B]."""
        count = max(len(values) - 1, 1)
        return self._losses(positive.flatten(), queries.flatten(0, 1), own.view(-1, 1), values, None, count)

    def _sampled(
        self, queries: Tensor, positive: Tensor, candidates: Tensor, own: Tensor, data: EdgeBatch[Tensor]
    ) -> Tensor:
        """Losses [S, B] of queries [S, B, D], each chunk against its own candidates of [S, C, K, D]."""
        drawn = data.negatives.unsqueeze(-2)
        sides, chunks, count, _ = candidates.shape
        if own.shape[1] % chunks == 0:
            # Chunks of one size: one call.
            given = (each.unflatten(1, (chunks, -1)) for each in (positive, queries, own.unsqueeze(-1)))
            return self._losses(*given, candidates, drawn, count).flatten(1)
        sizes, losses = np.diff(data.chunk_offsets).tolist(), []
        per_edge = (each.split(sizes, 1) for each in (positive, queries, own.unsqueeze(-1)))
        for given in zip(*per_edge, candidates.unbind(1), drawn.unbind(1), strict=True):
            losses.append(self._losses(*given, count))
        return torch.cat(losses, 1)

    def _losses(
        self, positive: Tensor, queries: Tensor, own: Tensor, candidates: Tensor, drawn: Tensor | None, count: int
    ) -> Tensor:
        """Losses [..., B] of queries [..., B, D] against candidates [..., K, D] but their own, int64 [..., B, 1].

        `drawn` int64 [..., 1, K] says which ones the candidates are; None: they are in order.
        """
        return edge_losses(
            self._training.loss,
            positive,
            # Scores get no name: a loss lets go of them when it has made something else of them.
            _left_out(self._decoder.against(queries, candidates), own, drawn),
            count,
        )


def _left_out(scores: Tensor, own: Tensor, drawn: Tensor | None) -> Tensor:
    """The scores, which are -inf where a candidate is a query's own.

    Not seen by autograd, which need not keep where that is: in every loss the gradient of a score of -inf is 0, and no
    gradient needs the scores.
    """
    with torch.no_grad():
        return scores.scatter_(-1, own, -torch.inf) if drawn is None else scores.masked_fill_(own == drawn, -torch.inf)
