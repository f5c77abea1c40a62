"""Decoders in torch. A decoder makes a query from one end of an edge and its relation, and scores candidates by their
similarity to the query.

`query(anchor, relation, side)` is a query for candidates on `side`: for `Side.TAIL` the anchor is the head. The score
of candidate c is `similarity(query, c)`. All functions are differentiable, on the CPU and on CUDA, in any float type.
Complex vectors are stored as [re | im]; RotatE's relation is D / 2 phases in radians.

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
from typing import Any, NamedTuple

import torch
from torch import Tensor

from marius_oac.config.link_prediction import ModelConfig
from marius_oac.config.parts import DECODERS
from marius_oac.kernels.cpu import decoders as kernels
from marius_oac.models.compute.parts import part_class
from marius_oac.models.link_prediction.distances import Kind, distances
from marius_oac.types import Side, present

KEY = "model.decoder"


class Compiled(NamedTuple):
    """A decoder in the kernels of `kernels.cpu.decoders`: codes of how a query is formed, and of the similarity.

    `phases`: relations are phases, which the form takes as [cos | sin].
    """

    form: int
    similarity: int
    phases: bool = False


class Held(NamedTuple):
    """What autograd holds of a batch on a device.

    Attributes:
        forward: floats for each of the queries', from the forward pass on.
        backward: more of them where the gradient of the positive scores is computed.
        relations: whether the gathered relations are needed for the gradient.
    """

    forward: float = 1
    backward: float = 3
    relations: bool = True


class Decoder(ABC):
    """A decoder, made of the configuration's section `model`; the base class of a user's own, which needs only `query`
    and `score`. Both must be differentiable, and treat each query and candidate by itself.

    Attributes:
        uses_relations: False if `relation` is None.
        complex_moduli: whether the penalty n3 uses moduli of complex numbers [re | im], not absolute values of floats.
        compiled: for the handwritten gradient on the CPU; None: autograd computes it there, too.
        distance: the kind of distance whose negative is the score; None: another score.
        held: for the memory plan.
    """

    uses_relations = True
    complex_moduli = False
    compiled: Compiled | None = None
    distance: Kind | None = None
    held = Held()

    def __init__(self, config: ModelConfig) -> None:
        self.config = config

    def relation_width(self, dimension: int) -> int:
        """The number of floats of a relation for entities of `dimension` floats."""
        return dimension if self.uses_relations else 0

    @abstractmethod
    def query(self, anchor: Tensor, relation: Tensor | None, side: Side) -> Tensor:
        """Queries [B, D] for candidates on `side`, of anchors [B, D] and relations [B, Dr]."""

    def pairwise(self, query: Tensor, candidate: Tensor) -> Tensor:
        """Scores [..., B] of queries [..., B, D] with one candidate each, [..., B, D]."""
        return self.score(query.unsqueeze(-2), candidate.unsqueeze(-2))[..., 0, 0]

    @abstractmethod
    def score(self, queries: Tensor, candidates: Tensor) -> Tensor:
        """Scores [..., B, K] of queries [..., B, D] with all candidates [..., K, D]."""


class _InnerProduct(Decoder):
    def pairwise(self, query: Tensor, candidate: Tensor) -> Tensor:
        return (query * candidate).sum(-1)

    def score(self, queries: Tensor, candidates: Tensor) -> Tensor:
        return queries @ candidates.transpose(-1, -2)


class DistMult(_InnerProduct):
    """DistMult, see the module's docstring."""

    compiled = Compiled(kernels.PRODUCT, kernels.INNER)

    def query(self, anchor: Tensor, relation: Tensor | None, side: Side) -> Tensor:
        """The elementwise product; see `Decoder.query`."""
        return anchor * present(relation)


class ComplEx(_InnerProduct):
    """ComplEx, see the module's docstring."""

    complex_moduli = True
    compiled = Compiled(kernels.COMPLEX_PRODUCT, kernels.INNER)

    def query(self, anchor: Tensor, relation: Tensor | None, side: Side) -> Tensor:
        """The complex product; see `Decoder.query`."""
        return rotated(anchor, present(relation), conjugate=side == Side.HEAD)


class Dot(_InnerProduct):
    """The inner product of head and tail, for graphs without relations."""

    uses_relations = False
    compiled = Compiled(kernels.PLAIN, kernels.INNER)

    def query(self, anchor: Tensor, relation: Tensor | None, side: Side) -> Tensor:
        """The anchor; see `Decoder.query`."""
        return anchor


class TransE(Decoder):
    """TransE with the L1 or the L2 distance, by `norm`, 1 or 2."""

    held = Held(forward=2, backward=1, relations=False)

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.distance = "l1" if config.norm == 1 else "l2"
        self.compiled = Compiled(kernels.SUM, kernels.L1 if config.norm == 1 else kernels.L2)

    def query(self, anchor: Tensor, relation: Tensor | None, side: Side) -> Tensor:
        """The translated anchor; see `Decoder.query`."""
        return anchor + present(relation) if side == Side.TAIL else anchor - present(relation)

    def pairwise(self, query: Tensor, candidate: Tensor) -> Tensor:
        """See `Decoder.pairwise`."""
        return -torch.linalg.vector_norm(query - candidate, self.config.norm, -1)

    def score(self, queries: Tensor, candidates: Tensor) -> Tensor:
        """See `Decoder.score`."""
        # Distances computed from inner products lose all digits if a candidate is near its query.
        return distances(present(self.distance), queries, candidates).neg_()


class RotatE(Decoder):
    """RotatE, see the module's docstring."""

    compiled = Compiled(kernels.COMPLEX_PRODUCT, kernels.MODULI, phases=True)
    distance = "moduli"
    held = Held(forward=3.5)

    def relation_width(self, dimension: int) -> int:
        """D / 2 phases."""
        return dimension // 2

    def query(self, anchor: Tensor, relation: Tensor | None, side: Side) -> Tensor:
        """The rotated anchor; see `Decoder.query`."""
        phases = present(relation)
        return rotated(anchor, torch.cat((phases.cos(), phases.sin()), -1), conjugate=side == Side.HEAD)

    def pairwise(self, query: Tensor, candidate: Tensor) -> Tensor:
        """See `Decoder.pairwise`."""
        difference = query - candidate
        pairs = torch.stack(difference.chunk(2, -1), -1)
        return -torch.linalg.vector_norm(pairs, 2, -1).sum(-1)

    def score(self, queries: Tensor, candidates: Tensor) -> Tensor:
        """See `Decoder.score`."""
        return distances("moduli", queries, candidates).neg_()


def rotated(z: Tensor, by: Tensor, conjugate: bool) -> Tensor:
    """The complex products of z and `by`, or its conjugate, all [..., D] as [re | im]; differentiable once."""
    return _Rotated.apply(z, by, conjugate)


class _Rotated(torch.autograd.Function):
    """The derivative of a complex product is one too. Autograd would need twice as many operations."""

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
    return part_class(config.decoder, DECODERS, Decoder, KEY)(config)
