"""Evaluation with negatives that come with the graph, against OGB's rules written naively."""

from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from marius_oac.config.link_prediction import ModelConfig
from marius_oac.data.graphs.given import GivenNegatives
from marius_oac.errors import InputError, MariusOacError
from marius_oac.evaluation import given as module
from marius_oac.evaluation.given import evaluate_given, given_ranks, hits_at, needed_bytes
from marius_oac.evaluation.scores import EntityReader, LinkScorer
from marius_oac.types import Side
from tests.evaluation import naive_given, naive_ranking
from tests.evaluation.test_evaluate import DECODERS, DEVICES, SLOW, make_edges, make_scorer
from tests.models import own_parts

PATHS = {Side.HEAD: Path("heads.npy"), Side.TAIL: Path("tails.npy"), None: Path("pairs.npy")}


def of_sides(**sides) -> GivenNegatives:
    return GivenNegatives("mrr", {Side[name.upper()]: table for name, table in sides.items()}, None, PATHS)


def of_pairs(pairs, metric="hits@20") -> GivenNegatives:
    return GivenNegatives(metric, {}, pairs, PATHS)


def naive_scores(scorer, edges, side, table):
    own = 0 if side is Side.HEAD else -1
    positive = [naive_ranking.edge_score(scorer, edge, side, edge[own]) for edge in edges.tolist()]
    negative = [[naive_ranking.edge_score(scorer, edge, side, node) for node in row]
                for edge, row in zip(edges.tolist(), table.tolist(), strict=True)]  # fmt: skip
    return positive, negative


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("decoder, norm", DECODERS)
@SLOW
@given(
    count=st.integers(1, 25), k=st.integers(1, 9), seed=st.integers(0, 1000), at_once=st.sampled_from([1, 3, 100]),
    heads=st.booleans(), reciprocal=st.booleans(), dtype=st.sampled_from([np.int32, np.int64]),
)  # fmt: skip
def test_ranks_are_those_of_the_documentation(device, decoder, norm, count, k, seed, at_once, heads, reciprocal, dtype):
    """Scores are small integers, so most ranks are ties."""
    reciprocal = reciprocal and decoder != "dot"
    scorer = make_scorer(decoder, norm, 12, seed, reciprocal=reciprocal, device=device)
    random = np.random.default_rng(seed)
    edges = make_edges(random, count, 12).astype(dtype)
    tables = {Side.TAIL: random.integers(0, 12, (count, k)).astype(dtype)}
    if heads:
        tables[Side.HEAD] = random.integers(0, 12, (count, k)).astype(dtype)
    negatives = GivenNegatives("mrr", tables, None, PATHS)
    with mock.patch.object(module, "_edges_at_once", return_value=at_once):
        found = evaluate_given(scorer, edges, negatives)
    naive = {side: naive_scores(scorer, edges, side, table) for side, table in tables.items()}
    by_side = {side: naive_given.mrr(*scores) for side, scores in naive.items()}
    assert found["mrr"] == pytest.approx(np.mean(list(by_side.values())), rel=1e-12) and found["edges"] == count
    assert ("heads.mrr" in found) == heads
    if heads:
        assert found["heads.mrr"] == pytest.approx(by_side[Side.HEAD], rel=1e-12)
        assert found["tails.mrr"] == pytest.approx(by_side[Side.TAIL], rel=1e-12)
    assert not any("filtered" in name for name in found)


@SLOW
@given(
    count=st.integers(1, 30), pairs=st.integers(1, 140), seed=st.integers(0, 1000), at_once=st.sampled_from([1, 7, 999])
)
def test_hits_are_those_of_the_documentation(count, pairs, seed, at_once):
    scorer, random = make_scorer("dot", 2, 12, seed), np.random.default_rng(seed)
    edges, table = make_edges(random, count, 12, columns=2), random.integers(0, 12, (pairs, 2))
    with mock.patch.object(module, "_edges_at_once", return_value=at_once):
        found = evaluate_given(scorer, edges, of_pairs(table))
    positive, negative = (
        [naive_ranking.edge_score(scorer, pair, Side.TAIL, pair[1]) for pair in each.tolist()]
        for each in (edges, table)
    )
    for k in (10, 20, 50, 100):
        assert found[f"hits@{k}"] == pytest.approx(naive_given.hits(k, positive, negative), rel=1e-12)
    assert set(found) == {"hits@10", "hits@20", "hits@50", "hits@100", "edges", "seconds"}


def test_a_tie_with_the_bound_is_no_hit_and_few_negatives_make_hits_of_all():
    scores = np.array([3, 2, 1, 0], np.float32)
    assert hits_at(2, scores, np.array([2, 3, 1], np.float32)) == 0.25  # the second best is 2
    assert hits_at(1, scores, np.array([2, 3, 1], np.float32)) == 0
    assert hits_at(3, scores, np.array([2, 3, 1], np.float32)) == 0.5
    assert hits_at(4, scores, np.array([2, 3, 1], np.float32)) == 1


@pytest.mark.parametrize("decoder, norm", DECODERS)
@pytest.mark.parametrize("dimension", [6, 50, 100])
def test_equal_embeddings_tie_whatever_their_place(decoder, norm, dimension):
    """In the kernel and in torch alike: also where scores are not exact."""
    scorer = make_scorer(decoder, norm, 40, 1, dimension=dimension, exact=False)
    values = scorer.entities.read(np.arange(40))
    values[:] = values[7]
    scorer = LinkScorer(scorer.model, EntityReader.of_array(values), scorer.relations)
    random = np.random.default_rng(0)
    edges, table = make_edges(random, 20, 40), random.integers(0, 40, (20, 37))
    ids = np.concatenate([edges[:, -1:], table], 1)
    queries = scorer.queries(edges[:, 0], edges[:, 1], Side.TAIL)[:20]
    in_torch = scorer._among_in_torch(queries, torch.from_numpy(values), ids)
    for scores in (scorer.among(edges[:, 0], edges[:, 1], Side.TAIL, ids), in_torch):
        assert (scores == scores[:, :1]).all()
    assert (given_ranks(scorer, edges, of_sides(tail=table))[Side.TAIL] == 37 + 2).all()


@pytest.mark.parametrize("decoder, norm", DECODERS)
def test_torch_and_the_kernel_agree(decoder, norm):
    scorer = make_scorer(decoder, norm, 30, 2, dimension=20, exact=False)
    edges, ids = make_edges(np.random.default_rng(1), 9, 30), np.random.default_rng(2).integers(0, 30, (9, 21))
    found = scorer.among(edges[:, 0], edges[:, 1], Side.HEAD, ids)
    queries = scorer.queries(edges[:, 0], edges[:, 1], Side.HEAD)[:9]
    values = torch.from_numpy(scorer.entities.read(np.arange(30)))
    assert found == pytest.approx(scorer._among_in_torch(queries, values, ids), rel=1e-4, abs=1e-4)


@pytest.mark.usefixtures("all_code_is_known")
def test_a_decoder_of_the_users_own_is_scored_as_ours():
    ours = make_scorer("distmult", 2, 30, 3)
    model = ModelConfig(decoder=f"{own_parts.__file__}:Bilinear", dimension=4)
    theirs = LinkScorer(model, ours.entities, ours.relations)
    random = np.random.default_rng(4)
    edges, table = make_edges(random, 20, 30), random.integers(0, 30, (20, 5))
    found = [evaluate_given(scorer, edges, of_sides(tail=table, head=table[::-1])) for scorer in (ours, theirs)]
    assert [{**each, "seconds": 0} for each in found][0] == {**found[1], "seconds": 0}


def test_a_sample_takes_the_negatives_of_its_edges():
    scorer, random = make_scorer("complex", 2, 30, 5), np.random.default_rng(5)
    edges, table = make_edges(random, 50, 30), random.integers(0, 30, (50, 6))
    places = np.array([3, 4, 17, 49])
    negatives = of_sides(head=table, tail=table[::-1])
    some, all_of_them = given_ranks(scorer, edges[places], negatives, places), given_ranks(scorer, edges, negatives)
    for side in Side:
        assert some[side].tolist() == all_of_them[side][places].tolist()


def test_metrics_of_the_users_own_get_all_ranks():
    scorer, random = make_scorer("complex", 2, 30, 6), np.random.default_rng(6)
    edges, table = make_edges(random, 10, 30), random.integers(0, 30, (10, 6))
    found = evaluate_given(scorer, edges, of_sides(head=table, tail=table), own={"worst": max, "ends": len})
    assert found["ends"] == 20 and found["heads.ends"] == 10 and found["worst"] <= 7


@pytest.mark.parametrize("negatives", ["tail", "pairs"])
def test_nan_and_ids_out_of_range_are_refused(negatives):
    scorer, random = make_scorer("dot", 2, 30, 7), np.random.default_rng(7)
    edges, table = make_edges(random, 10, 30, columns=2), random.integers(0, 30, (10, 2))
    make = (lambda: of_sides(tail=table)) if negatives == "tail" else (lambda: of_pairs(table))
    for wrong in (30, -1, 2**40):
        table[8, 1] = wrong
        name = "tails.npy" if negatives == "tail" else "pairs.npy"
        with pytest.raises(InputError, match=rf"^{name}: has the id {wrong}, but the graph has 30 nodes"):
            evaluate_given(scorer, edges, make())
    table[8, 1] = 29
    evaluate_given(scorer, edges, make())
    values = scorer.entities.read(np.arange(30)).copy()
    values[29] = np.nan
    with pytest.raises(MariusOacError, match="a score is NaN"):
        evaluate_given(LinkScorer(scorer.model, EntityReader.of_array(values)), edges, make())
    with pytest.raises(InputError, match="there are no edges to evaluate"):
        evaluate_given(scorer, edges[:0], make())


def test_memory_is_planned_as_it_is_used():
    scorer = make_scorer("dot", 2, 3000, 8, dimension=100)
    negatives = of_sides(tail=np.zeros((2000, 99), np.int32))
    assert module._edges_at_once(scorer, 100, 16) == (8 << 20) // (100 * (12 * 100 + 64))
    assert needed_bytes(100, negatives, 2000, 16) == (8 << 20) + 16 * 2000
    assert needed_bytes(100, negatives, 2, 16) == 2 * 100 * (12 * 100 + 64) + 32
    assert needed_bytes(100, of_pairs(np.zeros((500, 2), np.int32)), 20, 16) == 500 * (12 * 100 + 64) + 4 * 520
