"""Filtered link prediction on FB15k-237's test set, both sides: ours, the plain PyTorch way and the bare products.

    MARIUS_OAC_DATA=... python -m benchmarks.graphs.evaluation  # ComplEx, 128 floats an entity
    MARIUS_OAC_DATA=... python -m benchmarks.graphs.evaluation --decoder rotate --edges 1000
    python -m benchmarks.graphs.evaluation --entities 100000 --edges 2000       # a random graph, five edges an entity

The plain way is what is mostly written: a batch of scores against all entities, each query's known answers looked up in
a dictionary and set to -inf one query at a time, and one comparison with the true score (which has no ties to care
about). The bare products are the same multiplications into one buffer, by torch and by NumPy; distances have none. The
contestants take turns, `--repeats` times after a turn that does not count; times are medians, ratios are medians of the
ratios within a turn, so a busy machine slows all alike. Processor seconds are shown apart: the program's own, and the
system's. Preparing (the known answers) is shown apart, and counted for nobody. To compare with another checkout, run
this file with PYTHONPATH set to that one.
"""

import argparse
import os
import resource
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
from marius_oac.data.splits import SPLITS
from marius_oac.evaluation.filters import KnownAnswers
from marius_oac.evaluation.link_prediction import evaluate
from marius_oac.evaluation.scores import EntityReader, LinkScorer
from marius_oac.models.link_prediction.decoders import make_decoder
from marius_oac.prepare.prepare import PrepareRequest, prepare
from marius_oac.runs.memory.plan import return_freed_memory
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


def bare_products(values: torch.Tensor, count: int, by_numpy: bool) -> None:
    rows = min(PLAIN_BATCH, len(values))
    query, into = values[:rows].clone(), values.new_empty(rows, len(values))
    for first in range(0, count, rows):
        size = min(rows, count - first)
        if by_numpy:
            np.matmul(query[:size].numpy(), values.T.numpy(), out=into[:size].numpy())
        else:
            torch.mm(query[:size], values.T, out=into[:size])


class RandomGraph:
    """Edges between entities that are drawn evenly; five of training for each entity."""

    num_relations = 50

    def __init__(self, num_nodes: int, count: int) -> None:
        random, self.num_nodes = np.random.default_rng(0), num_nodes
        sizes = {"train": 5 * num_nodes, "valid": 1, "test": count}
        limits = (num_nodes, self.num_relations, num_nodes)
        self._edges = {
            split: np.stack([random.integers(0, limit, size) for limit in limits], axis=1)
            for split, size in sizes.items()
        }

    def edges(self, split: str) -> np.ndarray:
        """The edges, int64 [E, 3], of "train", "valid" or "test"."""
        return self._edges[split]


def peak() -> int:
    """MiB that this process has held at most."""
    status = Path("/proc/self/status").read_text("ascii")
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:"))) >> 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--decoder", choices=("distmult", "complex", "transe", "rotate"), default="complex")
    parser.add_argument("--norm", type=int, choices=(1, 2), default=2)
    parser.add_argument("--dimension", type=int, default=128)
    parser.add_argument("--edges", type=int, help="only so many test edges (default: all; of a random graph 1,000)")
    parser.add_argument("--entities", type=int, help="a random graph of so many in place of FB15k-237")
    parser.add_argument("--ours", action="store_true", help="no other contestant")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    return_freed_memory()  # as a run does
    if args.entities:
        run(RandomGraph(args.entities, args.edges or 1000), args)
        return
    folder = os.environ.get("MARIUS_OAC_DATA")
    if folder is None:
        sys.exit("set MARIUS_OAC_DATA to the folder that holds fb15k-237/")
    with tempfile.TemporaryDirectory() as temporary:
        graph_folder = Path(temporary) / "graph"
        files = {split: Path(folder) / "fb15k-237" / f"{split}.txt.gz" for split in SPLITS}
        prepare(PrepareRequest(out=graph_folder, **files))
        run(Graph.open(graph_folder), args)


def run(graph: Graph | RandomGraph, args: argparse.Namespace) -> None:
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
    plain = {} if args.ours else plain_known(np.concatenate(every_edge))
    plain_prepared, held = time.perf_counter(), peak()
    scorer = LinkScorer(model, EntityReader.of_array(values.numpy()), relations)
    tensor = torch.from_numpy(edges.astype(np.int64))
    contestants = {
        "ours": lambda: evaluate(scorer, edges, known),
        "plain PyTorch": lambda: plain_ranks(decoder, values, relations, tensor, plain),
    }
    if args.decoder in ("distmult", "complex"):
        contestants["products, torch"] = lambda: bare_products(values, 2 * len(edges), False)
        contestants["products, NumPy"] = lambda: bare_products(values, 2 * len(edges), True)
    contestants = {"ours": contestants["ours"]} if args.ours else contestants
    print(
        f"{machine()}\n{args.threads} threads, {args.decoder}, {args.dimension} floats, "
        f"{len(edges):,} edges x 2 sides x {graph.num_nodes:,} entities"
    )
    seconds, spent = ({name: [] for name in contestants} for _ in range(2))
    results = {}
    for turn in range(args.repeats + 1):
        for name, contestant in contestants.items():
            start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
            results[name] = contestant()
            if turn:
                seconds[name].append(time.perf_counter() - start)
                after = resource.getrusage(resource.RUSAGE_SELF)
                spent[name].append((after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime))
            if name == "ours" and not turn:
                print(f"ours took {peak() - held} MiB more than was held before")
    print(
        f"  {'':<16}{'seconds':>9}{'lowest':>8}{'highest':>9}{'x ours':>8}{'processors, own':>17}{'system':>8}"
        f"{'x ours':>8}{'known answers':>15}"
    )
    preparing = {"ours": ours_prepared - started, "plain PyTorch": plain_prepared - ours_prepared}
    for name, times in seconds.items():
        ratio = statistics.median(other / ours for other, ours in zip(times, seconds["ours"], strict=True))
        own, system = (statistics.median(each) for each in zip(*spent[name], strict=True))
        pairs = zip(spent[name], spent["ours"], strict=True)
        both = statistics.median(sum(other) / sum(ours) for other, ours in pairs)
        prepared = f"{preparing[name]:>13.2f} s" if name in preparing else ""
        print(
            f"  {name:<16}{statistics.median(times):>9.2f}{min(times):>8.2f}{max(times):>9.2f}{ratio:>8.2f}"
            f"{own:>17.2f}{system:>8.2f}{both:>8.2f}{prepared}"
        )
    print(f"filtered MRR: ours {results['ours'].filtered.both.mrr:.10f}")
    if not args.ours:
        print(f"             plain {(1 / results['plain PyTorch'].double()).mean().item():.10f}")


if __name__ == "__main__":
    main()
