"""Decoders in torch: a query from one end of an edge and its relation, and a similarity of query and candidates.

`query(anchor, relation, side)` stands for the end of the edge on `side`: for `Side.TAIL` the anchor is the head. The
score of candidate c is `similarity(query, c)`. Everything is differentiable, on the CPU and on CUDA, in any float type.
Complex vectors are laid out [re | im]; RotatE's relation is D / 2 phases in radians.

| decoder | query for tails / heads | similarity | source |
|---|---|---|---|
| DistMult | h * r / t * r | inner | Yang et al., ICLR 2015 |
| ComplEx | h r / t conj(r) | inner, that is Re<h, r, conj(t)> | Trouillon et al., ICML 2016, equation 9 |
| TransE | h + r / t - r | -L1 or -L2 | Bordes et al., NIPS 2013 |
| RotatE | h e^{ir} / t e^{-ir} | -sum of complex moduli | Sun et al., ICLR 2019, equation 4 |
| Dot | h / t | inner | |
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from marius_oac.config.link_prediction import ModelConfig
from marius_oac.models.link_prediction.distances import distances
from marius_oac.types import Side


class Decoder(ABC):
    """What every decoder can do. `uses_relations` is False where `relation` is None."""

    uses_relations = True

    def relation_width(self, dimension: int) -> int:
        """Floats per relation for entities of `dimension` floats."""
        return dimension

    @abstractmethod
    def query(self, anchor: Tensor, relation: Tensor | None, side: Side) -> Tensor:
        """[B, D] of anchors [B, D] and relations [B, Dr], for candidates on `side`."""

    @abstractmethod
    def pairwise(self, query: Tensor, candidate: Tensor) -> Tensor:
        """Scores [..., B] of queries [..., B, D] with the candidate of the same place."""

    @abstractmethod
    def against(self, query: Tensor, candidates: Tensor) -> Tensor:
        """Scores [..., B, K] of queries [..., B, D] with each of the candidates [..., K, D]."""


class _InnerProduct(Decoder):
    def pairwise(self, query: Tensor, candidate: Tensor) -> Tensor:
        return (query * candidate).sum(-1)

    def against(self, query: Tensor, candidates: Tensor) -> Tensor:
        return query @ candidates.transpose(-1, -2)


class DistMult(_InnerProduct):
    def query(self, anchor: Tensor, relation: Tensor | None, side: Side) -> Tensor:
        return anchor * relation


class ComplEx(_InnerProduct):
    def query(self, anchor: Tensor, relation: Tensor | None, side: Side) -> Tensor:
        return rotated(anchor, relation, conjugate=side == Side.HEAD)


class Dot(_InnerProduct):
    uses_relations = False

    def relation_width(self, dimension: int) -> int:
        return 0

    def query(self, anchor: Tensor, relation: Tensor | None, side: Side) -> Tensor:
        return anchor


class TransE(Decoder):
    """Args: norm: 1 or 2, of the distance."""

    def __init__(self, norm: int) -> None:
        self._norm = norm

    def query(self, anchor: Tensor, relation: Tensor | None, side: Side) -> Tensor:
        return anchor + relation if side == Side.TAIL else anchor - relation

    def pairwise(self, query: Tensor, candidate: Tensor) -> Tensor:
        return -torch.linalg.vector_norm(query - candidate, self._norm, -1)

    def against(self, query: Tensor, candidates: Tensor) -> Tensor:
        # Distances by way of inner products lose all digits where a candidate is near its query.
        return distances("l1" if self._norm == 1 else "l2", query, candidates).neg_()


class RotatE(Decoder):
    def relation_width(self, dimension: int) -> int:
        return dimension // 2

    def query(self, anchor: Tensor, relation: Tensor | None, side: Side) -> Tensor:
        return rotated(anchor, torch.cat((relation.cos(), relation.sin()), -1), conjugate=side == Side.HEAD)

    def pairwise(self, query: Tensor, candidate: Tensor) -> Tensor:
        difference = query - candidate
        pairs = torch.stack(difference.chunk(2, -1), -1)
        return -torch.linalg.vector_norm(pairs, 2, -1).sum(-1)

    def against(self, query: Tensor, candidates: Tensor) -> Tensor:
        return distances("moduli", query, candidates).neg_()


def rotated(z: Tensor, by: Tensor, conjugate: bool) -> Tensor:
    """The complex products of z and `by`, or its conjugate, all [..., re | im]; differentiable once."""
    return _Rotated.apply(z, by, conjugate)


class _Rotated(torch.autograd.Function):
    """A derivative of a complex product is one, too; autograd would take twice the operations."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, by: Tensor, conjugate: bool) -> Tensor:
        ctx.save_for_backward(z, by)
        ctx.conjugate = conjugate
        return _product(z, by, conjugate)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        z, by = ctx.saved_tensors
        by_other = _product(z, gradient, True) if ctx.conjugate else _product(gradient, z, True)
        return _product(gradient, by, not ctx.conjugate), by_other, None


def _product(z: Tensor, by: Tensor, conjugate: bool) -> Tensor:
    """z times `by`, or its conjugate."""
    product, sign = torch.empty_like(z), -1 if conjugate else 1
    (re, im), (z_re, z_im), (by_re, by_im) = (each.chunk(2, -1) for each in (product, z, by))
    torch.mul(z_re, by_re, out=re).addcmul_(z_im, by_im, value=-sign)
    torch.mul(z_im, by_re, out=im).addcmul_(z_re, by_im, value=sign)
    return product


def make_decoder(config: ModelConfig) -> Decoder:
    """The decoder of the configuration."""
    if config.decoder == "transe":
        return TransE(config.norm)
    return {"distmult": DistMult, "complex": ComplEx, "rotate": RotatE, "dot": Dot}[config.decoder]()
