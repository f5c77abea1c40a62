"""Evaluation against the oracle, for every decoder, side and kind of candidates; bounds, ties and errors."""

import math
from unittest import mock

import numba
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from threadpoolctl import threadpool_info

from marius_oac.config.link_prediction import ModelConfig
from marius_oac.errors import InputError, MariusOacError
from marius_oac.evaluation.blocks import SCORE_BYTES, Blocks
from marius_oac.evaluation.filters import KnownAnswers
from marius_oac.evaluation.link_prediction import DRAW_EDGES, DrawnCandidates, evaluate
from marius_oac.evaluation.metrics import Metrics
from marius_oac.evaluation.ranks import count_on_device, known_columns, own_columns
from marius_oac.evaluation.scores import EntityReader, LinkScorer
from marius_oac.kernels.cpu.ranks import Columns, count_scores
from marius_oac.models.link_prediction.decoders import make_decoder
from marius_oac.storage.contract import RowLayout
from marius_oac.storage.initial import RowInitial
from marius_oac.storage.memory import MemoryStore
from marius_oac.types import Side
from tests.device import DEVICE
from tests.evaluation import naive_ranking
from tests.models import own_parts

DEVICES = [pytest.param(str(each), marks=pytest.mark.device) for each in dict.fromkeys((torch.device("cpu"), DEVICE))]
DECODERS = [("dot", 2), ("distmult", 2), ("complex", 2), ("transe", 1), ("transe", 2), ("rotate", 2)]
SLOW = settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.too_slow])
WITHOUT_JIT = numba.config.DISABLE_JIT


def make_scorer(decoder, norm, entities, seed, *, reciprocal=False, relations=3, dimension=4, device="cpu", exact=True):
    """Small integers, so that every score is exact and many tie, or normal numbers. RotatE's phases are quarter turns
    of 0 only: others are not exact."""
    random = np.random.default_rng(seed)
    model = ModelConfig(decoder=decoder, norm=norm, dimension=dimension, reciprocal=reciprocal)
    width = make_decoder(model).relation_width(dimension)
    shape = (relations * (1 + reciprocal), width)
    values, table = random.integers(-2, 3, (entities, dimension)), random.integers(-2, 3, shape)
    if decoder == "rotate":
        values[:, dimension // 2 :] = 0
        table = np.zeros(shape)
    if not exact:
        values, table = random.normal(size=(entities, dimension)), random.normal(size=shape)
    relation = torch.from_numpy(table.astype(np.float32)).to(device) if width else None
    return LinkScorer(model, EntityReader.of_array(values.astype(np.float32)), relation, torch.device(device))


def make_edges(random, count, entities, relations=3, columns=3):
    ends = random.integers(0, entities, (count, 2))
    middle = [random.integers(0, relations, (count, 1))] if columns == 3 else []
    return np.concatenate([ends[:, :1], *middle, ends[:, 1:]], axis=1)


def assert_same(found, expected):
    assert {key: value for key, value in found.items() if key in expected} == pytest.approx(expected, rel=1e-12)
    assert len(expected) == 15


def in_blocks(tile, block, queries):
    return mock.patch.object(Blocks, "fit", return_value=Blocks(tile, block, queries))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("decoder, norm", DECODERS)
@SLOW
@given(
    entities=st.integers(1, 50),
    count=st.integers(1, 40),
    seed=st.integers(0, 1000),
    reciprocal=st.booleans(),
    dtype=st.sampled_from([np.int32, np.int64]),
    blocks=st.sampled_from([(64, 64, 1000), (16, 16, 16), (16, 32, 1000), (32, 16, 32)]),
)
def test_equals_the_oracle(device, decoder, norm, entities, count, seed, reciprocal, dtype, blocks):
    reciprocal = reciprocal and decoder != "dot"
    scorer = make_scorer(decoder, norm, entities, seed, reciprocal=reciprocal, device=device)
    random = np.random.default_rng(seed)
    columns = 2 if decoder == "dot" and seed % 2 else 3
    edges = make_edges(random, count, entities, columns=columns).astype(dtype)
    rest = make_edges(random, 100, entities, columns=columns).astype(dtype)
    known = KnownAnswers.build([rest, edges], edges, 0 if decoder == "dot" else 3)
    with in_blocks(*blocks):
        found = evaluate(scorer, edges, known)
    everyone = lambda number, side: range(entities)  # noqa: E731
    on_cpu = LinkScorer(scorer.model, scorer.entities, None if scorer.relations is None else scorer.relations.cpu())
    for filtered in (False, True):
        expected = naive_ranking.metrics(on_cpu, edges, np.concatenate((rest, edges)), everyone, filtered)
        assert_same(found.as_dict(), expected)
    assert found.as_dict()["edges"] == found.filtered.heads.count == count
    assert found.filtered.both.count == 2 * count and found.filtered.both.candidates == entities


@pytest.mark.parametrize("decoder, norm", DECODERS)
def test_real_numbers_rank_as_in_double_precision(decoder, norm):
    scorer = make_scorer(decoder, norm, 60, 5, dimension=10, exact=False)
    edges = make_edges(np.random.default_rng(5), 20, 60)
    expected = naive_ranking.metrics(scorer, edges, edges, lambda number, side: range(60), False)
    assert_same(evaluate(scorer, edges).as_dict(), expected)


@pytest.mark.usefixtures("all_code_is_known")
@pytest.mark.parametrize("exact", [True, False])
def test_a_decoder_of_a_users_ranks_as_that_of_the_package(exact):
    edges, found = make_edges(np.random.default_rng(5), 20, 60), []
    for decoder in ("distmult", f"{own_parts.__file__}:Bilinear"):
        scorer = make_scorer(decoder, 2, 60, 5, dimension=10, exact=exact)
        for blocks in ((64, 64, 1000), (16, 16, 16), (16, 32, 1000)):
            with in_blocks(*blocks):
                found.append(evaluate(scorer, edges, KnownAnswers.build([edges], edges, 3)).as_dict())
    for each in found:
        assert each | {"seconds": 0} == pytest.approx(found[0] | {"seconds": 0}, rel=1e-12)


@SLOW
@given(
    entities=st.integers(1, 40),
    drawn=st.integers(1, 60),
    fraction=st.sampled_from([0.0, 0.3, 1.0]),
    blocks=st.sampled_from([(64, 64, 1000), (16, 16, 16)]),
    seed=st.integers(0, 1000),
)
def test_drawn_candidates_equal_the_oracle(entities, drawn, fraction, blocks, seed):
    scorer = make_scorer("distmult", 2, entities, seed)
    random = np.random.default_rng(seed)
    train, edges = make_edges(random, 50, entities), make_edges(random, 20, entities)
    draw = DrawnCandidates(drawn, train, seed, fraction)
    with in_blocks(*blocks), mock.patch("marius_oac.evaluation.link_prediction.DRAW_EDGES", 7):
        found = evaluate(scorer, edges, KnownAnswers.build([train, edges], edges, 3), draw)
    for filtered in (False, True):
        expected = naive_ranking.metrics(
            scorer,
            edges,
            np.concatenate((train, edges)),
            lambda number, side: draw.draw(entities, side, number // 7).tolist(),
            filtered,
        )
        assert_same(found.as_dict(), expected)
    assert found.unfiltered.both.candidates == drawn


def test_draws_follow_seed_side_and_group():
    train = np.array([[0, 0, 1], [0, 0, 2], [0, 0, 3]])
    draw = DrawnCandidates(500, train, 1)
    first = draw.draw(100, Side.TAIL, 0)
    assert (first == DrawnCandidates(500, train, 1).draw(100, Side.TAIL, 0)).all()
    others = [
        draw.draw(100, Side.HEAD, 0),
        draw.draw(100, Side.TAIL, 1),
        DrawnCandidates(500, train, 2).draw(100, 1, 0),
    ]
    assert all((first != other).any() for other in others)
    assert first.min() >= 0 and 90 < first.max() < 100 and (np.diff(first) >= 0).all()
    by_degree = DrawnCandidates(500, train, 1, 1.0).draw(100, Side.TAIL, 0)
    assert by_degree.max() == 3 and 200 < np.sum(by_degree == 0) < 300


def test_drawn_candidates_change_with_the_group_of_edges():
    scorer = make_scorer("distmult", 2, 1000, 0, exact=False)
    edges = np.repeat([[1, 0, 2]], 2 * DRAW_EDGES, axis=0)
    halves = [evaluate(scorer, edges[:n], drawn=DrawnCandidates(50, edges, 0)) for n in (DRAW_EDGES, 2 * DRAW_EDGES)]
    assert halves[0].unfiltered.tails.mean_rank != halves[1].unfiltered.tails.mean_rank


@pytest.mark.skipif(WITHOUT_JIT, reason="takes minutes without the JIT")
@pytest.mark.parametrize("decoder, norm", DECODERS)
def test_blocks_and_threads_change_nothing(decoder, norm):
    scorer = make_scorer(decoder, norm, 601, 3, dimension=14, exact=False)
    random = np.random.default_rng(3)
    edges = make_edges(random, 70, 601)
    known = KnownAnswers.build([make_edges(random, 10000, 601)], edges, 0 if decoder == "dot" else 3)
    threads = torch.get_num_threads()
    found = []
    try:
        for blocks in (None, (16, 48, 16), (48, 208, 96), (80, 608, 1000), (32, 560, 64), (70, 257, 70)):
            for count in (1, 2):
                torch.set_num_threads(count)
                with mock.patch.object(Blocks, "fit", return_value=Blocks(*blocks)) if blocks else mock.MagicMock():
                    found.append((evaluate(scorer, edges, known).filtered, evaluate(scorer, edges).unfiltered))
    finally:
        torch.set_num_threads(threads)
    assert all(each == found[0] for each in found)


@pytest.mark.parametrize("decoder, norm", DECODERS)
@pytest.mark.parametrize("entities, dimension", [(1, 2), (37, 8), (101, 10)])
def test_equal_embeddings_tie_exactly(decoder, norm, entities, dimension):
    one = make_scorer(decoder, norm, 1, 7, dimension=dimension, exact=False)
    values = np.repeat(one.entities.read(np.arange(1)), entities, axis=0)
    scorer = LinkScorer(one.model, EntityReader.of_array(values), one.relations)
    edges = make_edges(np.random.default_rng(0), 21, entities)
    for memory, drawn in ((1, None), (256, None), (1, DrawnCandidates(33, edges, 0))):
        found = evaluate(scorer, edges, drawn=drawn, memory=memory).unfiltered.both
        if drawn is None:
            assert found.mean_rank == (entities + 1) / 2
            assert found.mrr == pytest.approx(2 / (entities + 1))
        else:
            # Half a rank for each candidate that is not the answer itself.
            assert found.mean_rank <= 1 + 33 / 2
            assert (2 * 42 * found.mean_rank) % 1 == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("decoder, norm", DECODERS)
def test_a_score_does_not_depend_on_its_place(decoder, norm):
    for dimension in (2, 4, 14, 16, 50):
        scorer = make_scorer(decoder, norm, 1, dimension, relations=1, dimension=dimension, exact=False)
        one = scorer.entities.read(np.zeros(1, np.int64))
        found = set()
        for entities in (1, 2, 5, 31, 100, 257):
            scorer = LinkScorer(scorer.model, EntityReader.of_array(one.repeat(entities, axis=0)), scorer.relations)
            for count in (1, 2, 3, 17, 40):
                queries = scorer.queries(np.zeros(count, np.int64), np.zeros(count, np.int64), Side.TAIL)
                scores = scorer.scores(queries, scorer.vectors(range(entities)))
                found.update(scores[:count, :entities].unique().tolist())
        assert len(found) == 1


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_reads_a_store(dtype):
    layout = RowLayout(6, 6, dtype)
    edges = make_edges(np.random.default_rng(0), 30, 70)
    with MemoryStore("entities", 70, layout, RowInitial("normal", 1.0, 0, "entities", 5.0)) as store:
        values = np.concatenate([block.rows[:, :6] for block in store.blocks()])
        model, relations = ModelConfig(decoder="distmult", dimension=6), torch.ones(3, 6)
        found, expected = (
            evaluate(LinkScorer(model, entities, relations), edges)
            for entities in (EntityReader.of_store(store), EntityReader.of_array(values))
        )
    assert found.unfiltered == expected.unfiltered
    assert 10 < found.unfiltered.both.mean_rank < 60


def test_reads_a_large_table_in_blocks_only(tmp_path, monkeypatch):
    monkeypatch.setattr("marius_oac.evaluation.blocks.CPU_BLOCK_BYTES", 1 << 20)
    values = np.lib.format.open_memmap(tmp_path / "table.npy", "w+", np.float32, (20_000, 16))
    values[:] = np.random.default_rng(0).normal(size=values.shape)
    asked = []

    def read(rows):
        asked.append(len(rows))
        return values[rows]

    scorer = LinkScorer(ModelConfig(decoder="dot", dimension=16), EntityReader(20_000, 16, read))
    edges = make_edges(np.random.default_rng(0), 100, 20_000, columns=2)
    small, large = evaluate(scorer, edges, memory=1), evaluate(scorer, edges, memory=512)
    assert small.unfiltered == large.unfiltered
    assert max(asked) == 1 << 14 and Blocks.fit(scorer, 20_000, 1).block < 1500


def test_known_answers_of_drawn_candidates_are_listed_for_few_at_once(monkeypatch):
    listed = []

    def columns(answers, queries, candidates):
        listed.append(len(candidates))
        return known_columns(answers, queries, candidates)

    monkeypatch.setattr("marius_oac.evaluation.link_prediction.known_columns", columns)
    edges = make_edges(np.random.default_rng(0), 10, 30)
    with mock.patch.object(Blocks, "fit", return_value=Blocks(64, 64, 64, listed=16)):
        evaluate(make_scorer("distmult", 2, 30, 0), edges, drawn=DrawnCandidates(40, edges, 0))
    assert listed == [16, 16, 8] * 2


def test_each_thread_computes_its_own_products():
    with make_scorer("dot", 2, 30, 0).threads() as threads:
        assert {each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"} == {1}
        assert threads.count == torch.get_num_threads()


@pytest.mark.parametrize("memory", [1, 7, 256, 4096])
@pytest.mark.parametrize("dimension", [2, 100, 1024])
@pytest.mark.parametrize("entities", [1, 1000, 86_000_000])
@pytest.mark.parametrize("decoder", ["complex", "rotate"])
def test_blocks_fit_into_the_memory(memory, dimension, entities, decoder):
    model = ModelConfig(decoder=decoder, dimension=dimension)
    for device in ("cpu", "cuda"):
        scorer = LinkScorer(model, EntityReader(entities, dimension, None), None, torch.device(device))
        blocks, (rows, columns) = Blocks.fit(scorer, entities, memory), scorer.piece
        assert blocks.tile % rows == blocks.block % columns == 0 and blocks.queries >= blocks.tile
        budget = memory << 20
        if scorer.on_cores:
            known = 8 * torch.get_num_threads() * blocks.tile * blocks.listed
            assert known <= max(budget // 2, 8 * torch.get_num_threads() * blocks.tile * columns)
        else:
            assert blocks.tile * blocks.block * SCORE_BYTES <= max(budget // 2, rows * columns * SCORE_BYTES)
        assert 12 * dimension * blocks.block <= max(budget // 4, columns * 12 * dimension)
        assert blocks.queries * (8 * dimension + 128) <= max(budget // 4, rows * (8 * dimension + 128))
        assert blocks.block < entities + columns


@pytest.mark.parametrize("decoder, piece", [("complex", (2048, 2048)), ("rotate", (64, 1024)), ("transe", (64, 1024))])
@pytest.mark.parametrize("drawn", [None, 700])
def test_a_device_scores_in_pieces_of_one_shape_whatever_is_asked(monkeypatch, decoder, piece, drawn):
    """There a library chooses the kernel, and so how a sum is rounded, by the shapes: a score in a last, short block
    would differ from its equal in another. Tensors of the meta device have shapes alone."""
    found = set()

    def against(query, candidates):
        found.add((tuple(query.shape), tuple(candidates.shape), query.is_contiguous(), candidates.is_contiguous()))
        return query.new_empty(len(query), len(candidates))

    scorer = make_scorer(decoder, 1, 9001, 3, dimension=8, device="meta")
    monkeypatch.setattr(scorer.decoder, "score", against)
    for count in (1, 17, 600):
        queries = scorer.queries(np.arange(count), np.zeros(count, np.int64), Side.TAIL)
        for candidates in (range(9001), range(8192, 9001), np.arange(0, 9001, 7)[:drawn]):
            scores = scorer.scores(queries, scorer.vectors(candidates))
            assert len(scores) >= count and scores.shape[1] >= len(candidates)
    assert found == {((piece[0], 8), (piece[1], 8), True, True)}


@pytest.mark.parametrize("decoder, norm", DECODERS)
def test_pieces_are_put_where_they_belong(monkeypatch, decoder, norm):
    scorer = make_scorer(decoder, norm, 100, 3)
    queries = scorer.queries(np.arange(40), np.zeros(40, np.int64), Side.HEAD)
    candidates = torch.from_numpy(scorer.entities.take(np.arange(112) % 100))
    expected = scorer.decoder.score(queries, candidates)
    monkeypatch.setattr(LinkScorer, "piece", (16, 16))
    torch.testing.assert_close(scorer._by_pieces(queries, candidates), expected)
    assert expected.shape == (64, 112)


@pytest.mark.parametrize("drawn", [False, True])
@pytest.mark.parametrize("where", ["answer", "candidate", "relation"])
def test_nan_is_an_error(where, drawn):
    scorer = make_scorer("distmult", 2, 30, 0)
    edges = make_edges(np.random.default_rng(0), 20, 30)
    values = scorer.entities.read(np.arange(30)).copy()
    values[edges[3, 0] if where == "answer" else 0] = 1.0 if where == "relation" else np.nan
    if where == "candidate":
        edges[:, [0, 2]] = np.maximum(edges[:, [0, 2]], 1)
    if where == "relation":
        scorer.relations[edges[7, 1], 2] = np.nan
    broken = LinkScorer(scorer.model, EntityReader.of_array(values), scorer.relations)
    with pytest.raises(MariusOacError, match=r"NaN, for the (head|tail) of edge \d+") as error:
        evaluate(broken, edges, drawn=DrawnCandidates(200, edges, 0) if drawn else None)
    assert "\n" not in str(error.value)


def test_infinite_scores_rank():
    values = np.full((5, 2), 3e38, np.float32)
    values[3:] = 0.1
    scorer = LinkScorer(ModelConfig(decoder="dot", dimension=2), EntityReader.of_array(values))
    found = evaluate(scorer, np.array([[0, 0], [0, 4]]))
    assert found.unfiltered.tails.mean_rank == (2 + 4.5) / 2


def test_no_edges_is_an_error():
    with pytest.raises(InputError, match="no edges"):
        evaluate(make_scorer("dot", 2, 3, 0), np.empty((0, 2), np.int64))


def test_foreign_known_answers_are_an_error():
    edges = np.array([[0, 1], [1, 2]])
    with pytest.raises(ValueError, match="known answers of 1 edges"):
        evaluate(make_scorer("dot", 2, 3, 0), edges, KnownAnswers.build([edges], edges[:1], 0))


def test_other_hits():
    scorer = make_scorer("dot", 2, 30, 0, exact=False)
    found = evaluate(scorer, make_edges(np.random.default_rng(0), 20, 30), hits=(5, 30))
    assert list(found.unfiltered.both.hits) == [5, 30] and found.unfiltered.both.hits[30] == 1.0
    assert found.filtered is None and "unfiltered.heads.hits@5" in found.as_dict()


def test_says_its_progress(capsys):
    scorer = make_scorer("dot", 2, 30, 0)
    with mock.patch("marius_oac.runtime.progress.FIRST_SECONDS", 0.0):
        evaluate(scorer, make_edges(np.random.default_rng(0), 20, 30))
    assert "ranking: 1,200 of 1,200 scores, done" in capsys.readouterr().err


@SLOW
@given(rows=st.integers(1, 20), width=st.integers(1, 30), seed=st.integers(0, 1000))
def test_torch_counts_as_the_kernel_does(rows, width, seed):
    random = np.random.default_rng(seed)
    scores = random.choice(np.array([-np.inf, -1, 0, 1, 2, np.inf, np.nan], np.float32), (rows + 2, width + 3))
    true = random.choice(np.array([0, 1, np.inf, np.nan], np.float32), rows)
    flags = random.integers(0, 3, (rows, width))
    own, known = (_columns(flags == value) for value in (1, 2))
    counts = np.zeros((2, 5, rows), np.int64)
    for _ in range(2):
        tensors = torch.from_numpy(scores), torch.from_numpy(true), torch.from_numpy(counts[1])
        count_on_device(*tensors, own, known, width)
        count_scores(scores, true, *(each._replace(first=each.first.copy()) for each in (own, known)), width, counts[0])
    assert (counts[0] == counts[1]).all() or np.isnan(scores[:rows, :width]).any() or np.isnan(true).any()
    assert ((counts[0, 4] > 0) == (counts[1, 4] > 0)).all()


def _columns(flags):
    rows, columns = np.nonzero(flags)
    offsets = np.searchsorted(rows, np.arange(len(flags) + 1))
    left_out = columns[offsets[:-1].clip(max=max(columns.size - 1, 0))] if columns.size else offsets[:-1] - 1
    left_out[::2] = -1
    return Columns(offsets[:-1], offsets[1:], columns + 5, 5, left_out + 5)


@SLOW
@given(seed=st.integers(0, 10_000), low=st.integers(0, 30), size=st.integers(1, 30))
def test_columns(seed, low, size):
    random = np.random.default_rng(seed)
    edges = make_edges(random, 12, 40)
    known = KnownAnswers.build([make_edges(random, 300, 40), edges], edges, 3)
    queries = random.permutation(12)[:7]
    for candidates in (range(low, low + size), np.sort(random.integers(low, low + size, 50))):
        for side, asked in ((Side.HEAD, 0), (Side.TAIL, 2)):
            offsets, ids = known.others(side)
            found = known_columns(known.sides[side], queries, candidates)
            own = own_columns(edges[queries, asked], candidates)
            for i, query in enumerate(queries):
                answers = ids[offsets[query] : offsets[query + 1]]
                for columns, expected in ((found, answers), (own, edges[[query], asked])):
                    values = columns.values[columns.first[i] : columns.last[i]]
                    places = values[values != columns.but[i]] - columns.shift
                    assert places.tolist() == [j for j, c in enumerate(candidates) if c in expected]


def test_counts_are_printed_as_counts():
    values = {"filtered.mrr": 0.25, "filtered.heads.mrr": 0.5, "filtered.mean_rank": 1234.567, "edges": 1828}
    found = Metrics("of 12", values | {"auc": math.nan, "training.examples_per_second": 45275.3314, "hits": 1.0})
    expected = [["of", "12"], ["filtered.mrr", "0.2500"], ["filtered.mean_rank", "1,234.6"], ["edges", "1,828"],
                ["auc", "none"], ["training.examples_per_second", "45,275"], ["hits", "1.0000"]]  # fmt: skip
    assert [line.split() for line in str(found).splitlines()] == expected
