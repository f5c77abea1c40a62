"""Filtered link prediction on FB15k-237's test set, both sides: ours, the plain PyTorch way and the bare products.

    MARIUS_OAC_DATA=... python -m benchmarks.graphs.evaluation  # ComplEx, 128 floats an entity
    MARIUS_OAC_DATA=... python -m benchmarks.graphs.evaluation --decoder rotate --edges 1000

The plain way is what is mostly written: a batch of scores against all entities, each query's known answers looked up in
a dictionary and set to -inf one query at a time, and one comparison with the true score (which has no ties to care
about). The bare products are the same multiplications into one buffer; distances have none. The contestants take turns,
`--repeats` times after a turn that does not count; times are medians, ratios are medians of the ratios within a turn,
so a busy machine slows all alike. Preparing (the known answers) is shown apart, and counted for nobody.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import numpy as np
import torch

from benchmarks.machine import machine
from marius_oac.config.link_prediction import ModelConfig
from marius_oac.data.graphs.graph import Graph
from marius_oac.data.prepare.prepare import PrepareRequest, prepare
from marius_oac.data.prepare.splits import SPLITS
from marius_oac.evaluation.filters import KnownAnswers
from marius_oac.evaluation.link_prediction import evaluate
from marius_oac.evaluation.scores import EntityReader, LinkScorer
from marius_oac.models.link_prediction.decoders import make_decoder
from marius_oac.types import Side

PLAIN_BATCH = 500


def plain_known(edges: np.ndarray, device: str | torch.device = "cpu") -> dict:
    """Known answers as index tensors by (side, given end, relation)."""
    lists = defaultdict(list)
    for head, relation, tail in edges.tolist():
        lists[Side.TAIL, head, relation].append(tail)
        lists[Side.HEAD, tail, relation].append(head)
    return {key: torch.tensor(ids, device=device) for key, ids in lists.items()}


@torch.inference_mode()
def plain_ranks(
    decoder, values: torch.Tensor, relations: torch.Tensor, edges: torch.Tensor, known: dict
) -> torch.Tensor:
    ranks = []
    for side, given, asked in ((Side.TAIL, 0, 2), (Side.HEAD, 2, 0)):
        for batch in edges.split(PLAIN_BATCH):
            query = decoder.query(values[batch[:, given]], relations[batch[:, 1]], side)
            scores = decoder.score(query, values)
            true = scores.gather(1, batch[:, asked : asked + 1])
            for row, (node, relation) in enumerate(batch[:, [given, 1]].tolist()):
                scores[row, known[side, node, relation]] = -torch.inf
            ranks.append((scores > true).sum(1) + 1)
    return torch.cat(ranks)


def bare_products(values: torch.Tensor, count: int) -> None:
    rows = min(PLAIN_BATCH, len(values))
    query, into = values[:rows].clone(), values.new_empty(rows, len(values))
    for first in range(0, count, rows):
        size = min(rows, count - first)
        torch.mm(query[:size], values.T, out=into[:size])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--decoder", choices=("distmult", "complex", "transe", "rotate"), default="complex")
    parser.add_argument("--norm", type=int, choices=(1, 2), default=2)
    parser.add_argument("--dimension", type=int, default=128)
    parser.add_argument("--edges", type=int, help="only so many test edges (default: all)")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    args = parser.parse_args()
    folder = os.environ.get("MARIUS_OAC_DATA")
    if folder is None:
        sys.exit("set MARIUS_OAC_DATA to the folder that holds fb15k-237/")
    torch.set_num_threads(args.threads)
    with tempfile.TemporaryDirectory() as temporary:
        graph_folder = Path(temporary) / "graph"
        files = {split: Path(folder) / "fb15k-237" / f"{split}.txt.gz" for split in SPLITS}
        prepare(PrepareRequest(out=graph_folder, **files))
        run(Graph.open(graph_folder), args)


def run(graph: Graph, args: argparse.Namespace) -> None:
    model = ModelConfig(decoder=args.decoder, norm=args.norm, dimension=args.dimension)
    decoder = make_decoder(model)
    random = torch.Generator().manual_seed(0)
    values = torch.randn(graph.num_nodes, args.dimension, generator=random)
    relations = torch.randn(graph.num_relations, decoder.relation_width(args.dimension), generator=random)
    edges = graph.edges("test")[: args.edges]
    every_edge = [graph.edges(split) for split in SPLITS]
    started = time.perf_counter()
    known = KnownAnswers.build(every_edge, edges, graph.num_relations)
    ours_prepared = time.perf_counter()
    plain = plain_known(np.concatenate(every_edge))
    plain_prepared = time.perf_counter()
    scorer = LinkScorer(model, EntityReader.of_array(values.numpy()), relations)
    tensor = torch.from_numpy(edges.astype(np.int64))
    contestants = {
        "ours": lambda: evaluate(scorer, edges, known),
        "plain PyTorch": lambda: plain_ranks(decoder, values, relations, tensor, plain),
    }
    if args.decoder in ("distmult", "complex"):
        contestants["bare products"] = lambda: bare_products(values, 2 * len(edges))
    print(
        f"{machine()}\n{args.threads} threads, {args.decoder}, {args.dimension} floats, "
        f"{len(edges):,} edges x 2 sides x {graph.num_nodes:,} entities"
    )
    seconds = {name: [] for name in contestants}
    results = {}
    for turn in range(args.repeats + 1):
        for name, contestant in contestants.items():
            start = time.perf_counter()
            results[name] = contestant()
            if turn:
                seconds[name].append(time.perf_counter() - start)
    print(f"  {'':<16}{'seconds':>9}{'lowest':>8}{'highest':>9}{'x ours':>8}{'known answers':>15}")
    preparing = {"ours": ours_prepared - started, "plain PyTorch": plain_prepared - ours_prepared}
    for name, times in seconds.items():
        ratio = statistics.median(other / ours for other, ours in zip(times, seconds["ours"], strict=True))
        prepared = f"{preparing[name]:>13.2f} s" if name in preparing else ""
        print(
            f"  {name:<16}{statistics.median(times):>9.2f}{min(times):>8.2f}{max(times):>9.2f}{ratio:>8.2f}{prepared}"
        )
    mean = results["plain PyTorch"].double()
    print(f"filtered MRR: ours {results['ours'].filtered.both.mrr:.8f}, plain {(1 / mean).mean().item():.8f}")


if __name__ == "__main__":
    main()
