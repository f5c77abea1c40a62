"""Our evaluation against PyKEEN's rank-based evaluator, on the same tables. Run by hand, where both are installed:

    python -m venv check && check/bin/pip install . pykeen  # an environment of its own: PyKEEN brings a lot
    check/bin/python -m benchmarks.graphs.pykeen_check      # random tables, with ties and without, CoDEx-S
    check/bin/python -m benchmarks.graphs.pykeen_check --graph data/g --entities entities.npy \\
        --relations relations.npy --decoder complex         # a graph and its tables

PyKEEN scores with interactions of its own, loaded with our tables; the ranks are realistic ones on both sides. Where
all scores are small integers both must agree but for PyKEEN's reciprocals in single precision, some 1e-7; other scores
are rounded differently here and there, so that near ties may fall either way: the metrics then differ by some 1e-5.
RotatE is left out (PyKEEN takes the 2-norm over all dimensions), and so are reciprocal relations (numbered otherwise).
"""

import argparse
import sys
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from pykeen.evaluation import RankBasedEvaluator, RankBasedMetricResults
from pykeen.models import ERModel
from pykeen.nn.init import PretrainedInitializer
from pykeen.nn.modules import ComplExInteraction, DistMultInteraction, TransEInteraction
from pykeen.triples import CoreTriplesFactory

from marius_oac.config.link_prediction import ModelConfig
from marius_oac.data.graphs.graph import Graph, open_graph
from marius_oac.evaluation.filters import KnownAnswers
from marius_oac.evaluation.link_prediction import Evaluation, evaluate
from marius_oac.evaluation.scores import EntityReader, LinkScorer

TOLERANCE = {True: 1e-6, False: 1e-3}  # relative, where scores are exact and where they are not


@dataclass(frozen=True)
class Case:
    name: str
    model: ModelConfig
    splits: dict[str, np.ndarray]
    entities: np.ndarray
    relations: np.ndarray
    exact: bool


def ours(case: Case) -> Evaluation:
    known = KnownAnswers.build(case.splits.values(), case.splits["test"], len(case.relations))
    scorer = LinkScorer(case.model, EntityReader.of_array(case.entities), torch.from_numpy(case.relations))
    return evaluate(scorer, case.splits["test"], known)


def pykeens(case: Case) -> dict[str, float]:
    train, valid, test = (torch.from_numpy(np.array(case.splits[s], np.int64)) for s in ("train", "valid", "test"))
    factory = CoreTriplesFactory(train, num_entities=len(case.entities), num_relations=len(case.relations))
    interaction = {
        "distmult": DistMultInteraction,
        "complex": ComplExInteraction,
        "transe": lambda: TransEInteraction(p=case.model.norm, power_norm=False),
    }[case.model.decoder]()

    def representation(table: np.ndarray) -> dict:
        values = torch.from_numpy(table)
        if case.model.decoder != "complex":
            return {"shape": values.shape[1:], "initializer": PretrainedInitializer(values)}
        pairs = torch.stack(values.chunk(2, -1), -1)
        return {"shape": pairs.shape[1:2], "initializer": PretrainedInitializer(pairs), "dtype": torch.cfloat}

    model = ERModel(
        triples_factory=factory,
        random_seed=0,
        interaction=interaction,
        entity_representations_kwargs=representation(case.entities),
        relation_representations_kwargs=representation(case.relations),
    )
    found = {}
    for filtered in (True, False):
        evaluator = RankBasedEvaluator(filtered=filtered)
        if filtered:
            results = evaluator.evaluate(
                model, test, batch_size=256, additional_filter_triples=[train, valid], use_tqdm=False
            )
        else:
            results = unfiltered(evaluator, model, test)
        for part, pykeens_part in (("", "both"), ("heads.", "head"), ("tails.", "tail")):
            prefix = ("filtered." if filtered else "unfiltered.") + part
            for ours_name, name in (("mrr", "inverse_harmonic_mean_rank"), ("mean_rank", "arithmetic_mean_rank")):
                found[prefix + ours_name] = results.get_metric(f"{pykeens_part}.realistic.{name}")
            for k in (1, 3, 10):
                found[f"{prefix}hits@{k}"] = results.get_metric(f"{pykeens_part}.realistic.hits_at_{k}")
    return found


def unfiltered(evaluator: RankBasedEvaluator, model: ERModel, test: torch.Tensor) -> RankBasedMetricResults:
    """What `evaluator.evaluate` refuses to do as of PyKEEN 1.11.1: without a filter it passes no true scores on."""
    model.eval()
    with torch.inference_mode():
        for target, column in (("head", 0), ("tail", 2)):
            for batch in test.split(256):
                scores = model.predict(batch, target=target)
                true = scores.gather(1, batch[:, column, None])
                evaluator.process_scores_(hrt_batch=batch, target=target, scores=scores, true_scores=true)
    return evaluator.finalize()


def random_cases(graph: Graph) -> list[Case]:
    random = np.random.default_rng(0)
    small = {s: np.stack([random.integers(0, n, 300) for n in (60, 3, 60)], 1) for s in ("train", "valid", "test")}
    small = {split: np.unique(edges, axis=0) for split, edges in small.items()}
    large = {split: np.array(graph.edges(split)) for split in ("train", "valid", "test")}
    cases = []
    for decoder, norm in (("distmult", 2), ("complex", 2), ("transe", 1), ("transe", 2)):
        for name, splits, entities, relations in (
            ("random", small, 60, 3),
            ("CoDEx-S", large, graph.num_nodes, graph.num_relations),
        ):
            for exact in (True, False):
                model = ModelConfig(decoder=decoder, norm=norm, dimension=4 if exact else 64)
                shapes = [(count, model.dimension) for count in (entities, relations)]
                tables = (random.integers(-1, 2, shape) if exact else random.normal(size=shape) for shape in shapes)
                tables = (table.astype(np.float32) for table in tables)
                title = f"{name}, {decoder}{norm if decoder == 'transe' else ''}, {'ties' if exact else 'normal'}"
                cases.append(Case(title, model, splits, *tables, exact))
    return cases


def saved_case(args: argparse.Namespace) -> Case:
    graph = Graph.open(args.graph)
    tables = [np.load(path, allow_pickle=False).astype(np.float32) for path in (args.entities, args.relations)]
    model = ModelConfig(decoder=args.decoder, norm=args.norm, dimension=tables[0].shape[1])
    splits = {split: np.array(graph.edges(split)) for split in ("train", "valid", "test")}
    return Case(f"{args.graph}, {args.decoder}", model, splits, *tables, False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("graph", "entities", "relations"):
        parser.add_argument(f"--{name}", type=Path)
    parser.add_argument("--decoder", choices=("distmult", "complex", "transe"), default="complex")
    parser.add_argument("--norm", type=int, choices=(1, 2), default=2)
    args = parser.parse_args()
    cases = [saved_case(args)] if args.graph else random_cases(open_graph("codex-s"))
    print(f"PyKEEN {version('pykeen')}, torch {torch.__version__}")
    print(f"{'':<34}{'filtered MRR':>14}{'PyKEEN':>14}{'largest difference':>20}{'seconds':>9}{'PyKEEN':>8}")
    agree = True
    for case in cases:
        found = ours(case).as_dict()
        start = time.perf_counter()
        expected = pykeens(case)
        seconds = time.perf_counter() - start
        difference = max(abs(found[key] / value - 1) if value else abs(found[key]) for key, value in expected.items())
        agree &= difference <= TOLERANCE[case.exact]
        print(
            f"{case.name:<34}{found['filtered.mrr']:>14.9f}{expected['filtered.mrr']:>14.9f}{difference:>20.2e}"
            f"{found['seconds']:>9.2f}{seconds:>8.2f}",
            flush=True,
        )
    if not agree:
        sys.exit("they differ")


if __name__ == "__main__":
    main()
