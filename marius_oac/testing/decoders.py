"""What a decoder must do, the package's or a user's own.

from marius_oac.testing.decoders import check_decoder

def test_my_decoder():
    check_decoder(MyDecoder)
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from marius_oac.config.link_prediction import ModelConfig
from marius_oac.models.link_prediction.decoders import Decoder
from marius_oac.testing.gradients import check_gradient
from marius_oac.types import Side

_EDGES, _CANDIDATES = 5, 7


def check_decoder(make: type[Decoder], dimension: int = 6, both_sides: bool = True, **model: Any) -> None:
    """Checks shapes, gradients, that inputs stay as they are, and that queries and candidates are independent.

    Scores are checked for one chunk, and for chunks of a batch in two dimensions more, as training has them.

    Args:
        make: the decoder's class.
        dimension: floats of an entity.
        both_sides: an edge must have the same score by the query for its tail as by that for its head. Otherwise train
            with `model.reciprocal`.
        model: other keys of the section `model`.

    Raises:
        AssertionError: something is wrong.
    """
    decoder = make(ModelConfig(decoder="own.py:Own", dimension=dimension, **model))
    random = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random, dtype=torch.float64)

    width = decoder.relation_width(dimension)
    assert type(width) is int and (width > 0) == decoder.uses_relations, f"relation_width returns {width!r}"
    heads, tails, candidates = draw(_EDGES, dimension), draw(_EDGES, dimension), draw(_CANDIDATES, dimension)
    relations = draw(_EDGES, width) if width else None
    scores = {}
    for side in Side:
        anchors, targets = (heads, tails) if side == Side.TAIL else (tails, heads)
        queries = _unchanged("query", decoder.query, anchors, relations, side)
        assert queries.shape[:-1] == (_EDGES,), f"query returns {list(queries.shape)} for {_EDGES} anchors"
        for i in range(_EDGES):
            one = decoder.query(anchors[i : i + 1], None if relations is None else relations[i : i + 1], side)
            _same("a query depends on other queries of the batch", one[0], queries[i])
        given = [anchors] if relations is None else [anchors, relations]
        check_gradient("query", lambda a, r=None, side=side: decoder.query(a, r, side), *given)
        _check_scores(decoder, queries, candidates)
        scores[side] = decoder.pairwise(queries, targets)
        _same("pairwise and score differ", scores[side], decoder.score(queries, targets).diagonal())
    if both_sides:
        _same("an edge's score differs between the sides", scores[Side.HEAD], scores[Side.TAIL])


def _check_scores(decoder: Decoder, queries: Tensor, candidates: Tensor) -> None:
    found = _unchanged("score", decoder.score, queries, candidates)
    shape = (len(queries), len(candidates))
    assert found.shape == shape, f"score returns {list(found.shape)}, not {list(shape)}"
    for i, j in ((0, 0), (len(queries) - 1, len(candidates) - 1)):
        one = decoder.score(queries[i : i + 1], candidates[j : j + 1])
        _same("a score depends on other queries or candidates", one[0, 0], found[i, j])
    chunks = decoder.score(queries.expand(2, 3, -1, -1), candidates.expand(2, 3, -1, -1))
    assert chunks.shape == (2, 3, *shape), f"score returns {list(chunks.shape)} for 2 x 3 chunks, not {[2, 3, *shape]}"
    _same("chunks of a batch have other scores", chunks, found.expand(2, 3, -1, -1))
    check_gradient("score", decoder.score, queries, candidates)
    leaf = queries.detach().clone().requires_grad_()
    for weights in (torch.ones(len(queries)), torch.zeros(len(queries))):  # 0: a candidate that is left out
        (gradient,) = torch.autograd.grad((decoder.score(leaf, queries).diagonal() * weights).sum(), leaf)
        assert gradient.isfinite().all(), "no finite gradient where a candidate equals the query"


def _unchanged(name: str, function: Any, *given: Any) -> Tensor:
    before = [each.clone() if isinstance(each, Tensor) else each for each in given]
    found: Tensor = function(*given)
    for old, new in zip(before, given, strict=True):
        assert not isinstance(old, Tensor) or torch.equal(old, new), f"{name} changes its arguments"
    return found


def _same(what: str, found: Tensor, expected: Tensor) -> None:
    assert torch.allclose(found, expected, rtol=1e-9, atol=1e-9), what
