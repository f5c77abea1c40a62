"""The loss of a batch of edges in torch, and its gradient by autograd: for CUDA, and for a decoder or loss of a user.

    loss = 1 / (B S) * sum over edges i and sides s of edge_loss(positive score, scores of chunk(i)'s K negatives on s)
         + weight / B * sum over edges of the penalties of head, tail and relation

B edges, S sides. See `losses` for the edge's loss, `regularizers` for the penalty.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import embedding

from marius_oac.batches import EdgeBatch
from marius_oac.config.link_prediction import Config
from marius_oac.errors import ConfigError
from marius_oac.models.compute.parts import blaming_own
from marius_oac.models.link_prediction import decoders, losses
from marius_oac.models.link_prediction.decoders import make_decoder
from marius_oac.models.link_prediction.distances import scored_by_tiles
from marius_oac.models.link_prediction.losses import make_loss
from marius_oac.models.link_prediction.regularizers import penalized, penalties
from marius_oac.types import Side, present


class AutogradGradient:
    """Computes loss and gradient of a batch for any decoder and loss, in the float type of the values."""

    def __init__(self, config: Config) -> None:
        self._training, self._names = config.training, (config.model.decoder, config.training.loss.kind)
        self._decoder, self._loss = make_decoder(config.model), make_loss(config.training.loss)
        # With reciprocal relations every edge is there twice, so only tails are replaced.
        self._sides = (Side.TAIL,) if config.model.reciprocal else (Side.HEAD, Side.TAIL)

    def __call__(
        self, values: Tensor, relations: Tensor | None, data: EdgeBatch[Tensor]
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """The loss, 0-d, and its gradients with respect to `values` [n, D] and `relations` [m, Dr]; see `loss`."""
        inputs = [tensor.detach().requires_grad_() for tensor in (values, relations) if tensor is not None]
        with blaming_own(self._names[0], decoders.KEY), blaming_own(self._names[1], losses.KEY):
            with torch.enable_grad():
                loss = self.loss(inputs[0], inputs[1] if len(inputs) > 1 else None, data)
            gradients = torch.autograd.grad(loss, inputs)
        return loss.detach(), gradients[0], gradients[1] if len(inputs) > 1 else None

    def loss(self, values: Tensor, relations: Tensor | None, data: EdgeBatch[Tensor]) -> Tensor:
        """The loss of a batch, 0-d.

        Args:
            values: [n, D], the batch's entity rows without their state.
            relations: [m, Dr], values of the batch's `relation_rows`; None for Dot.
            data: the batch, its tensors on the device of the values.
        """
        ends, candidates = self._gathered(values, data)
        heads, tails = ends.unbind()
        # The gradient of a lookup adds up in a fixed order, on CUDA too, and in parallel if a row is in many edges.
        relation = None if relations is None else embedding(present(data.relations), relations)
        queries = torch.stack(
            [self._decoder.query(heads if side == Side.TAIL else tails, relation, side) for side in self._sides]
        )
        # `ends` are heads and tails, in the order of the sides.
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
            total = total + config.weight * sum(penalties(config, self._decoder, each).mean() for each in factors)
        return total

    def _gathered(self, values: Tensor, data: EdgeBatch[Tensor]) -> tuple[Tensor, Tensor | None]:
        """Heads and tails [2, B, D], and the sampled negatives [S, C, K, D]; None if all rows are negatives.

        It is one lookup, so that its gradient sorts the rows and adds them up only once.
        """
        picks, drawn = [data.heads, data.tails], None if self._training.negatives.all else present(data.negatives)
        if drawn is not None:
            picks.append(drawn.flatten())
        ends, *rest = embedding(torch.cat(picks), values).split([2 * len(picks[0]), *map(len, picks[2:])])
        ends = ends.view(2, -1, values.shape[1])
        return ends, None if drawn is None else rest[0].view(*drawn.shape, -1)

    def _all(self, values: Tensor, queries: Tensor, positive: Tensor, own: Tensor) -> Tensor:
        """Losses [S * B] against all rows except each edge's own end, int64 [S, B]."""
        count = max(len(values) - 1, 1)
        return self._losses(positive.flatten(), queries.flatten(0, 1), own.view(-1, 1), values, None, count)

    def _sampled(
        self, queries: Tensor, positive: Tensor, candidates: Tensor, own: Tensor, data: EdgeBatch[Tensor]
    ) -> Tensor:
        """Losses [S, B] of queries [S, B, D], each chunk against its own candidates of [S, C, K, D]."""
        drawn, own = present(data.negatives).unsqueeze(-2), own.unsqueeze(-1)
        chunks, count = candidates.shape[1:3]
        if own.shape[1] % chunks == 0:  # chunks of one size need one call
            positive, queries, own = (each.unflatten(1, (chunks, -1)) for each in (positive, queries, own))
            return self._losses(positive, queries, own, candidates, drawn, count).flatten(1)
        sizes = np.diff(data.chunk_offsets).tolist()
        per_edge = (each.split(sizes, 1) for each in (positive, queries, own))
        per_chunk = zip(*per_edge, candidates.unbind(1), drawn.unbind(1), strict=True)
        return torch.cat([self._losses(p, q, o, c, d, count) for p, q, o, c, d in per_chunk], 1)

    def _losses(
        self, positive: Tensor, queries: Tensor, own: Tensor, candidates: Tensor, drawn: Tensor | None, count: int
    ) -> Tensor:
        """Losses [..., B] of queries [..., B, D] against candidates [..., K, D] except their own, int64 [..., B, 1].

        `drawn`, int64 [..., 1, K], are the rows of the candidates; None: they are rows 0 to K - 1.
        """
        score = self._decoder.score if self._decoder.compiled else partial(scored_by_tiles, self._decoder.score)
        # Scores get no name here, so that the loss can free them early.
        found = self._loss.losses(positive, _left_out(score(queries, candidates), own, drawn), count)
        if found.shape != positive.shape:
            what = f"losses returns {list(found.shape)}, not a loss for each positive score, {list(positive.shape)}"
            raise ConfigError(f"{self._names[1]}: {what}", losses.KEY)
        return found


def _left_out(scores: Tensor, own: Tensor, drawn: Tensor | None) -> Tensor:
    """The scores, set to -inf where a candidate is the query's own.

    This is hidden from autograd, which would keep the mask. No gradient needs these scores, and in every loss the
    gradient of a score of -inf is 0.
    """
    with torch.no_grad():
        return scores.scatter_(-1, own, -torch.inf) if drawn is None else scores.masked_fill_(own == drawn, -torch.inf)
