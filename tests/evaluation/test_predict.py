"""Prediction against the oracle: names in, names and scores out, ties, filters, blocks and errors."""

from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from marius_oac.config.link_prediction import ModelConfig
from marius_oac.data.graphs.graph import Graph
from marius_oac.errors import InputError, MariusOacError
from marius_oac.evaluation.blocks import Blocks
from marius_oac.evaluation.predict import predict
from marius_oac.evaluation.scores import EntityReader, LinkScorer
from marius_oac.models.link_prediction.decoders import make_decoder
from marius_oac.prepare.prepare import PrepareRequest, prepare
from marius_oac.types import Side
from tests.evaluation import naive_ranking

TOWNS = [f"town-{i}" for i in range(40)]


@pytest.fixture(scope="module", params=["related", "plain"])
def graph(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    random = np.random.default_rng(0)
    lines = {split: [] for split in ("train", "valid", "test")}
    for i in range(200):
        head, tail = TOWNS[i % 40], TOWNS[random.integers(0, 40)]
        middle = [f"road-{random.integers(0, 2)}"] if request.param == "related" else []
        lines["train" if i < 150 else "valid" if i < 180 else "test"].append("\t".join([head, *middle, tail]))
    for split, of in lines.items():
        (folder / f"{split}.tsv").write_text("\n".join(dict.fromkeys(of)) + "\n")
    files = {split: folder / f"{split}.tsv" for split in lines}
    prepare(PrepareRequest(out=folder / "graph", **files))
    return Graph.open(folder / "graph")


def make_scorer(graph, decoder="distmult", reciprocal=False, seed=0):
    random = np.random.default_rng(seed)
    model = ModelConfig(decoder=decoder if graph.num_relations else "dot", dimension=4, reciprocal=reciprocal)
    width = make_decoder(model).relation_width(4)
    values = random.integers(-1, 2, (graph.num_nodes, 4)).astype(np.float32)
    table = random.integers(-1, 2, (graph.num_relations * (1 + reciprocal), width)).astype(np.float32)
    return LinkScorer(model, EntityReader.of_array(values), torch.from_numpy(table) if width else None)


def expected(scorer, graph, side, given_name, relation, top, filtered):
    """All entities, by score and then by id."""
    node = int(graph.node_ids([given_name])[0])
    middle = [int(graph.relation_ids([relation])[0])] if relation else []
    edge = (node, *middle, -1) if side is Side.TAIL else (-1, *middle, node)
    left_out = set()
    if filtered:
        for split in ("train", "valid", "test"):
            for known in map(tuple, graph.edges(split).tolist()):
                if naive_ranking.question(known, side) == naive_ranking.question(edge, side):
                    left_out.add(naive_ranking.answer(known, side))
    scores = {i: naive_ranking.edge_score(scorer, edge, side, i) for i in range(graph.num_nodes) if i not in left_out}
    best = sorted(scores, key=lambda i: (-scores[i], i))[:top]
    return list(zip(graph.node_names(best), [scores[i] for i in best], strict=True))


@settings(deadline=None, max_examples=40, suppress_health_check=list(HealthCheck))
@given(
    side=st.sampled_from(list(Side)),
    name=st.sampled_from(TOWNS),
    top=st.integers(1, 50),
    filtered=st.booleans(),
    reciprocal=st.booleans(),
    decoder=st.sampled_from(["distmult", "complex", "transe"]),
    blocks=st.sampled_from([(16, 16, 16), (16, 32, 16), (64, 64, 64)]),
)
def test_equals_the_oracle(graph, side, name, top, filtered, reciprocal, decoder, blocks):
    scorer = make_scorer(graph, decoder, reciprocal and graph.num_relations > 0)
    relation = "road-1" if graph.num_relations else None
    asked = {"head": name} if side is Side.TAIL else {"tail": name}
    with mock.patch.object(Blocks, "fit", return_value=Blocks(*blocks)):
        found = predict(scorer, graph, relation=relation, top=top, filtered=filtered, **asked)
    naive = expected(scorer, graph, side, name, relation, top, filtered)
    assert [each.name for each in found] == [name for name, _ in naive]
    assert [each.score for each in found] == pytest.approx([score for _, score in naive], rel=1e-6)


def test_dot_on_a_graph_with_relations(graph):
    scorer = LinkScorer(ModelConfig(decoder="dot", dimension=4), make_scorer(graph).entities)
    found = predict(scorer, graph, head="town-3", top=40, filtered=True)
    known = {
        edge[-1]
        for s in ("train", "valid", "test")
        for edge in graph.edges(s)
        if edge[0] == graph.node_ids(["town-3"])[0]
    }
    assert {each.name for each in found} == set(TOWNS) - set(graph.node_names(sorted(known)))


def test_user_errors(graph):
    scorer, relation = make_scorer(graph), "road-0" if graph.num_relations else None
    for asked in ({}, {"head": "town-1", "tail": "town-2"}):
        with pytest.raises(InputError, match="either a head or a tail"):
            predict(scorer, graph, relation=relation, **asked)
    with pytest.raises(InputError, match="top must be at least 1, not 0"):
        predict(scorer, graph, head="town-1", relation=relation, top=0)
    with pytest.raises(InputError, match="unknown node 'twon-1'; near: town-1"):
        predict(scorer, graph, head="twon-1", relation=relation)
    if graph.num_relations:
        with pytest.raises(InputError, match="unknown relation 'road-7'"):
            predict(scorer, graph, head="town-1", relation="road-7")
        with pytest.raises(InputError, match="needs a relation"):
            predict(scorer, graph, head="town-1")
    else:
        with pytest.raises(InputError, match="uses no relations"):
            predict(scorer, graph, head="town-1", relation="road-0")


def test_nan_is_an_error(graph):
    values = make_scorer(graph).entities.read(np.arange(graph.num_nodes)).copy()
    values[17] = np.nan
    broken = LinkScorer(make_scorer(graph).model, EntityReader.of_array(values), make_scorer(graph).relations)
    with pytest.raises(MariusOacError, match="NaN"):
        predict(broken, graph, head="town-1", relation="road-0" if graph.num_relations else None)
