"""The loss of a batch of edges in torch, and its gradient by autograd: for CUDA, and the oracle of the other one.

    loss = 1 / (B S) * sum over edges i and sides s of edge_loss(positive score, scores of chunk(i)'s K negatives on s)
         + weight / B * sum over edges of the penalties of head, tail and relation

B edges, S sides. See `losses` for the edge's loss, `regularizers` for the penalty.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from marius_oac.config import Config
from marius_oac.models.decoders import make_decoder
from marius_oac.models.losses import edge_losses
from marius_oac.models.regularizers import penalized, penalties
from marius_oac.types import Side


class AutogradGradient:
    """Loss and gradient of one batch for any decoder and loss. Works in the float type of the values."""

    def __init__(self, config: Config) -> None:
        self._model, self._training = config.model, config.training
        self._decoder = make_decoder(config.model)
        # With reciprocal relations every edge stands twice, so that only tails are replaced.
        self._sides = (Side.TAIL,) if config.model.reciprocal else (Side.HEAD, Side.TAIL)

    def __call__(
        self, values: Tensor, relations: Tensor | None, arrays: Mapping[str, Tensor]
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """The loss, 0-d, and its gradients by `values` [n, D] and `relations` [m, Dr]."""
        inputs = [tensor.detach().requires_grad_() for tensor in (values, relations) if tensor is not None]
        with torch.enable_grad():
            loss = self.loss(inputs[0], inputs[1] if len(inputs) > 1 else None, arrays)
        gradients = torch.autograd.grad(loss, inputs)
        return loss.detach(), gradients[0], gradients[1] if len(inputs) > 1 else None

    def loss(self, values: Tensor, relations: Tensor | None, arrays: Mapping[str, Tensor]) -> Tensor:
        """The loss of a batch, 0-d.

        Args:
            values: [n, D], the batch's entity rows without their state.
            relations: [m, Dr], rows of the batch's `relation_rows`; None for Dot.
            arrays: of the edge planner (see the design page), on the device of the values.
        """
        # Indexing, not index_select: its gradient on CUDA adds up in a fixed order.
        heads, tails = values[arrays["heads"]], values[arrays["tails"]]
        relation = None if relations is None else relations[arrays["relations"]]
        losses = []
        for s, side in enumerate(self._sides):
            anchors, targets = (heads, tails) if side == Side.TAIL else (tails, heads)
            queries = self._decoder.query(anchors, relation, side)
            losses += (
                self._all(values, queries, arrays, side)
                if self._training.negatives.all
                else self._sampled(values, queries, targets, arrays, s)
            )
        total = torch.cat(losses).mean()
        if penalized(self._training.regularization):
            factors = [heads, tails] if relation is None else [heads, tails, relation]
            config = self._training.regularization
            total = total + config.weight * sum(penalties(config, self._model, each).mean() for each in factors)
        return total

    def _all(self, values: Tensor, queries: Tensor, arrays: Mapping[str, Tensor], side: Side) -> Iterator[Tensor]:
        targets = arrays["tails" if side == Side.TAIL else "heads"].unsqueeze(-1)
        scores = self._decoder.against(queries, values)
        positive = scores.gather(-1, targets).squeeze(-1)
        negatives = scores.scatter(-1, targets, -torch.inf)
        yield edge_losses(self._training.loss, positive, negatives, max(len(values) - 1, 1))

    def _sampled(
        self, values: Tensor, queries: Tensor, targets: Tensor, arrays: Mapping[str, Tensor], s: int
    ) -> Iterator[Tensor]:
        drawn = arrays["negatives"][s]
        own = arrays["tails" if self._sides[s] == Side.TAIL else "heads"]
        candidates = values[drawn]
        chunks, count, dimension = candidates.shape
        positive = self._decoder.pairwise(queries, targets)
        if len(queries) % chunks == 0:
            # Chunks of one size: one call.
            negatives = self._decoder.against(queries.view(chunks, -1, dimension), candidates)
            left_out = own.view(chunks, -1, 1) == drawn.unsqueeze(1)
            negatives = negatives.masked_fill(left_out, -torch.inf).flatten(0, 1)
            yield edge_losses(self._training.loss, positive, negatives, count)
            return
        offsets = arrays["chunk_offsets"].tolist()
        for c in range(chunks):
            chunk = slice(offsets[c], offsets[c + 1])
            negatives = self._decoder.against(queries[chunk], candidates[c])
            negatives = negatives.masked_fill(own[chunk].unsqueeze(-1) == drawn[c], -torch.inf)
            yield edge_losses(self._training.loss, positive[chunk], negatives, count)
