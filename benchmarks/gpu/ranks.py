"""Evaluation and prediction."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.generate.log import LogSpec, write_day
from benchmarks.gpu.graphs import generated_graph, skewed_edges
from benchmarks.gpu.part import Part, Table
from benchmarks.gpu.place import Place
from benchmarks.graphs.evaluation import bare_products, plain_known, plain_ranks
from marius_oac.config.ctr import CtrConfig
from marius_oac.config.link_prediction import ModelConfig
from marius_oac.data.graphs.graph import Graph
from marius_oac.evaluation.filters import KnownAnswers
from marius_oac.evaluation.link_prediction import evaluate
from marius_oac.evaluation.predict import predict
from marius_oac.evaluation.scores import EntityReader, LinkScorer
from marius_oac.models.link_prediction.decoders import make_decoder
from marius_oac.runs.session import Session
from marius_oac.tasks.ctr.task import start_ctr_task

SECONDS = 300
RELATIONS, DIMENSION = 237, 128
TABLES = [
    Table("evaluation", "Ranking test edges",
          f"Both sides are ranked against all entities, filtered, with {DIMENSION} floats per entity. Entities are "
          "in host memory for `ours`, and on the GPU for `plain` and `products` (as in "
          "`benchmarks/graphs/evaluation.py`).",
          {"decoder": "decoder", "entities": "entities", "edges": "edges", "who": "who", "seconds": "seconds",
           "scores_per_second": "scores/s", "mrr": "MRR"}),
    Table("prediction", "Predictions",
          "Predicts the ten best tails of one (head, relation, ?), and the click probabilities of a log's "
          "examples.",
          {"what": "what", "entities": "entities", "per_second": "a second"}),
]  # fmt: skip
DECODERS = {"complex": ("complex", 2), "transe L2": ("transe", 2), "transe L1": ("transe", 1), "rotate": ("rotate", 2)}


def run(part: Part) -> None:
    place = part.place
    entities, count = place.pick((14_541, 20_466), (300, 200))
    for name in place.pick(tuple(DECODERS), ("complex", "rotate")):
        _evaluation(part, name, entities, count, plain=True)
    _evaluation(part, "complex", *place.pick((2_000_000, 1_000), (500, 100)), plain=False)
    with tempfile.TemporaryDirectory() as folder:
        sizes = place.pick((200_000, 400_000, 50), (300, 2_000, 5))
        where = {"what": "tails, ComplEx", "entities": sizes[0]}
        part.measure("prediction", where, lambda: _tails(place, generated_graph(Path(folder), *sizes)))
        part.measure("prediction", {"what": "clicks, DeepFM", "entities": None}, lambda: _clicks(place, Path(folder)))


def _scorer(place: Place, name: str, entities: int, relations: int) -> tuple[LinkScorer, torch.Tensor]:
    decoder, norm = DECODERS[name]
    model, random = ModelConfig(decoder=decoder, norm=norm, dimension=DIMENSION), np.random.default_rng(0)
    values = random.standard_normal((entities, DIMENSION), np.float32)
    table = random.standard_normal((relations, make_decoder(model).relation_width(DIMENSION)), np.float32)
    on_device = torch.from_numpy(table).to(place.device)
    return LinkScorer(model, EntityReader.of_array(values), on_device, place.device), torch.from_numpy(values)


@dataclass(frozen=True)
class Asked:
    """Edges that are ranked, int32 [E, 3], and the known answers of all, as ours and as the plain way want them."""

    edges: np.ndarray
    known: KnownAnswers
    plain: dict | None

    @classmethod
    def of(cls, place: Place, entities: int, count: int, plain: bool) -> Asked:
        every = skewed_edges(entities, RELATIONS, 14 * count)
        edges = np.ascontiguousarray(every[:count])
        answers = plain_known(every.astype(np.int64), place.device) if plain else None
        return cls(edges, KnownAnswers.build([every], edges, RELATIONS), answers)


def _evaluation(part: Part, name: str, entities: int, count: int, plain: bool) -> None:
    place = part.place

    @functools.cache
    def contestants() -> dict[str, Callable[[], float | None]]:
        """What each returns is the MRR."""
        asked = Asked.of(place, entities, count, plain)
        scorer, values = _scorer(place, name, entities, RELATIONS)
        on_device, edges = values.to(place.device), torch.from_numpy(asked.edges.astype(np.int64)).to(place.device)

        def plainly() -> float:
            found = plain_ranks(scorer.decoder, on_device, scorer.relations, edges, asked.plain)
            return (1 / found.double()).mean().item()

        memory = place.pick(4096, 256)
        return {
            "ours": lambda: evaluate(scorer, asked.edges, asked.known, memory=memory).filtered.both.mrr,
            "plain": plainly,
            "products": lambda: bare_products(on_device, 2 * count, by_numpy=False),
        }

    for who in ["ours", *(["plain"] if plain else []), *(["products"] if plain and name == "complex" else [])]:

        def measured(who: str = who) -> dict[str, Any]:
            found = []
            seconds = place.times(lambda: found.append(contestants()[who]()), rounds=3, least=0)["median"]
            mrr = {"mrr": found[-1]} if who != "products" else {}
            return {"seconds": seconds, "scores_per_second": 2 * count * entities / seconds, **mrr}

        where = {"decoder": name, "entities": entities, "edges": count, "who": who}
        part.measure("evaluation", where, measured, needs=place.pick(10, 0))


def _tails(place: Place, graph: Graph) -> dict[str, float]:
    scorer, _ = _scorer(place, "complex", graph.num_nodes, graph.num_relations)
    (head,), (relation,) = graph.node_names([0]), graph.relation_names([0])
    seconds = place.times(lambda: predict(scorer, graph, head, relation))["median"]
    return {"per_second": 1 / seconds}


def _clicks(place: Place, folder: Path) -> dict[str, float]:
    """Of a network that was trained for some batches."""
    path, count = folder / "day.parquet", place.pick(400_000, 2_000)
    spec = LogSpec(categorical=26, numeric=13, keys=place.pick(1_000_000, 3_000))
    write_day(path, 0, count, spec)
    config = CtrConfig.build(
        {
            "task": "ctr",
            "device": str(place.device),
            "data": {"train": str(path), "test": str(path), **spec.schema()},
            "model": {"network": "deepfm", "dimension": 16},
        }
    )
    task = start_ctr_task(config)[0]
    with Session(task) as session:
        session.pipeline.run(0, min(20, task.schedule.last))
        predictor, files = task.predictor(session.parts), task.files_of("test")

        def every() -> None:
            for _ in predictor.files(files, labelled=False):
                pass

        return {"per_second": count / place.times(every, rounds=3, least=0)["median"]}
