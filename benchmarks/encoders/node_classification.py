"""Training node classification, in nodes/s over whole epochs: ours, plain dgl with torch, the bare matrix products.

    python -m benchmarks.encoders.node_classification  # a generated graph with communities
    python -m benchmarks.encoders.node_classification --labels-from /usr/share/wordnet --data FOLDER-WITH-wordnet

Two GraphSAGE layers (mean) tell the classes of nodes from ten neighbours each, in batches of 1,000; all contestants
have the same graph, layers, fan-outs, initial distributions, learning rates and number of epochs, and seeds in common.

- communities: a generated graph, 200,000 nodes, 2 million edges, both ways; 24 classes, 60 % of the nodes are trained
  on; 64 features a node, noisy views of its class. Adam.
- wordnet: links between WordNet's synsets (117,000 nodes, 362,000 edges); their classes are the 45 files of its
  lexicographers, 60 % are trained on. No features: 64 floats a node are trained, by Adam on the rows of a batch alone
  (ours: `training.optimizer`; theirs: `torch.optim.SparseAdam`), the layers by Adam. The triples are those of
  MARIUS_OAC_DATA; the files `data.noun` to `data.adv` are in Debian's package wordnet-base.

"dgl" is what its guide says: int64 graph, `NeighborSampler`, `DataLoader`, `SAGEConv`, `torch.optim`; its data come
without workers, or, "dgl, worker", from one worker process that stays, with cores of its own by `enable_cpu_affinity`
where there are two. "products" are the model's matrix products alone, forward and backward, on blocks as large, by
torch and by NumPy, whose BLAS ours uses: a limit of the machine. Every contestant has a process of its own and trains
as many batches as an epoch has in turn (`turns`), one epoch more than is timed. Then all nodes of the test split are
classified with all their neighbours; dgl's on the whole graph at once. Processor time of dgl's worker is not counted.

dgl is no part of this project: `pip install dgl==1.1.3 packaging`, Python up to 3.11.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice, repeat
from operator import truediv
from pathlib import Path

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from benchmarks.generate.graph import GeneratedGraph, write_graph
from benchmarks.generate.nodes import write_features, write_labels
from benchmarks.machine import machine
from benchmarks.turns import Contestant, Times, take_turns
from marius_oac.config.link_prediction import Config
from marius_oac.data.graphs.graph import Graph
from marius_oac.data.graphs.labels import Labels, read_labels
from marius_oac.data.reading.edge_file import ReadOptions
from marius_oac.prepare.prepare import PrepareRequest, prepare
from marius_oac.runs.session import Session
from marius_oac.tasks.node_classification.task import NodeClassificationTask

BATCH, WIDTH, FAN_OUTS = 1_000, 64, (10, 10)
RATE, ROWS_RATE, INITIAL_SCALE = 0.003, 0.01, 0.1
SHARES = (0.6, 0.2, 0.2)


@dataclass(frozen=True)
class Case:
    """What all contestants train: a prepared graph and its labels in `folder`."""

    name: str
    folder: str
    direction: str  # in | both
    embedded: bool  # rows are trained; else there are features
    cores: int
    seed: int = 0

    @property
    def graph(self) -> Graph:
        return Graph.open(Path(self.folder) / "graph", verify=False)

    @property
    def labels(self) -> Labels:
        return read_labels(Path(self.folder) / "labels.tsv", self.graph)

    @property
    def features(self) -> np.ndarray:
        """Float32 [N, WIDTH]."""
        return np.array(NodeClassificationTask(self.config(), self.graph).encoder.features)

    def config(self) -> Config:
        folder = Path(self.folder)
        features = {} if self.embedded else {"features": str(folder / "features.parquet")}
        return Config.build(
            {
                "task": "node_classification",
                "seed": self.seed,
                "device": "cpu",
                "threads": self.cores,
                "data": {"path": str(folder / "graph"), "labels": str(folder / "labels.tsv")},
                "model": {"dimension": WIDTH, "init": "normal", "init_scale": INITIAL_SCALE},
                "encoder": {
                    "direction": self.direction,
                    "layers": [{"kind": "sage", "neighbors": fan_out} for fan_out in FAN_OUTS],
                    "optimizer": {"kind": "adam", "learning_rate": RATE},
                    **features,
                },
                "training": {"batch_size": BATCH, "optimizer": {"kind": "adam", "learning_rate": ROWS_RATE}},
            }
        )


class Ours(Contestant):
    """Its report: test accuracy, and busy milliseconds of each stage per batch."""

    def __init__(self, case: Case) -> None:
        self._session = Session(NodeClassificationTask(case.config(), case.graph))
        self._next = 0

    def run(self, batches: int) -> None:
        self._next = self._session.pipeline.run(self._next, self._next + batches)

    def report(self) -> tuple[float, str]:
        stages = self._session.telemetry.total()
        spent = ", ".join(f"{stage} {seconds / self._next * 1e3:.2f}" for stage, seconds in stages.items())
        return self._session.evaluate("test")["accuracy"], spent

    def close(self) -> None:
        self._session.__exit__(None, None, None)


class Dgl(Contestant):
    """Its report: test accuracy."""

    def __init__(self, case: Case, workers: int) -> None:
        import dgl  # after the process is bound, for it counts the cores

        torch.manual_seed(case.seed)
        dgl.seed(case.seed)
        torch.sparse.check_sparse_tensor_invariants.disable()
        graph, labels = case.graph, case.labels
        sources, destinations = (torch.from_numpy(column.astype(np.int64)) for column in graph.edges("train")[:, :2].T)
        self._graph = dgl.graph((sources, destinations), num_nodes=graph.num_nodes)
        if case.direction == "both":
            self._graph = dgl.add_reverse_edges(self._graph)
        self._labels, self._test = torch.empty(graph.num_nodes, dtype=torch.int64), torch.tensor(labels.nodes["test"])
        for split, nodes in labels.nodes.items():
            self._labels[torch.tensor(nodes)] = torch.tensor(labels.classes[split])
        self._layers = torch.nn.ModuleList(
            dgl.nn.SAGEConv(WIDTH, width, "mean") for width in (WIDTH, len(labels.names))
        )
        self._optimizers = [torch.optim.Adam(self._layers.parameters(), lr=RATE)]
        self._rows = self._features = None
        if case.embedded:
            self._rows = torch.nn.Embedding(graph.num_nodes, WIDTH, sparse=True)
            torch.nn.init.normal_(self._rows.weight, std=INITIAL_SCALE)
            self._optimizers.append(torch.optim.SparseAdam(self._rows.parameters(), lr=ROWS_RATE))
        else:
            self._features = torch.from_numpy(case.features)
        sampler = dgl.dataloading.NeighborSampler(list(FAN_OUTS))
        self._loader = dgl.dataloading.DataLoader(
            self._graph, torch.tensor(labels.nodes["train"]), sampler, batch_size=BATCH, shuffle=True, drop_last=False,
            num_workers=workers, persistent_workers=workers > 0, multiprocessing_context="fork" if workers else None,
        )  # fmt: skip
        self._batches = chain.from_iterable(repeat(self._loader))
        self._stack, cores = ExitStack(), sorted(os.sched_getaffinity(0))
        if 0 < workers < len(cores):
            places = {"loader_cores": cores[:workers], "compute_cores": cores[workers:]}
            self._stack.enter_context(self._loader.enable_cpu_affinity(**places, verbose=False))

    def _encode(self, blocks, values: torch.Tensor) -> torch.Tensor:
        values = torch.relu(self._layers[0](blocks[0], values))
        return self._layers[1](blocks[1], values)

    def run(self, batches: int) -> None:
        for inputs, outputs, blocks in islice(self._batches, batches):
            values = self._rows(inputs) if self._features is None else self._features[inputs]
            loss = torch.nn.functional.cross_entropy(self._encode(blocks, values), self._labels[outputs])
            for optimizer in self._optimizers:
                optimizer.zero_grad()
            loss.backward()
            for optimizer in self._optimizers:
                optimizer.step()
            loss.item()

    @torch.no_grad()
    def report(self) -> float:
        values = self._rows.weight if self._features is None else self._features
        found = self._encode([self._graph, self._graph], values)[self._test].argmax(1)
        return (found == self._labels[self._test]).double().mean().item()

    def close(self) -> None:
        self._stack.close()


class Products(Contestant):
    """The products of every layer's two matrices, by values, parameters and inputs, as large as those of ours."""

    def __init__(self, case: Case, library: str) -> None:
        threadpool_limits(limits=case.cores, user_api="blas")
        task = NodeClassificationTask(case.config(), case.graph)
        planner, self._products = task.planner, []
        data = planner.plan(0).data
        first = [] if data.means is None else [len(data.means)]
        outputs = first + [len(block.offsets) - 1 for block in data.blocks]
        widths = (WIDTH, len(task.labels.names))
        for number, (rows, width) in enumerate(zip(outputs, widths, strict=True)):
            values, weights, gradients = torch.randn(rows, WIDTH), torch.randn(width, WIDTH), torch.randn(rows, width)
            self._products += 2 * [(values, weights.t()), (gradients.t(), values)]
            if number or case.embedded:
                self._products += 2 * [(gradients, weights)]
        self._places = [torch.empty(len(left), right.shape[1]) for left, right in self._products]
        self._multiply = torch.mm
        if library == "NumPy":
            self._products = [(left.numpy(), right.numpy()) for left, right in self._products]
            self._places, self._multiply = [place.numpy() for place in self._places], np.matmul

    def run(self, batches: int) -> None:
        for _ in range(batches):
            for (left, right), place in zip(self._products, self._places, strict=True):
                self._multiply(left, right, out=place)


def generated(folder: Path) -> Case:
    """A generated graph whose communities are the classes."""
    spec = GeneratedGraph(num_nodes=200_000, num_edges=2_000_000, num_clusters=24, noise=0.5)
    write_graph(spec, folder / "edges.npy")
    graph = _prepared(folder / "edges.npy", folder)
    write_labels(spec, graph, folder / "labels.tsv", SHARES)
    write_features(spec, graph, folder / "features.parquet", WIDTH, noise=1.0)
    return Case("communities", str(folder), "both", False, 0)


def wordnet(folder: Path, data: Path, labels_from: Path) -> Case:
    """WordNet; a synset's name is its offset and its part of speech, where adjectives' satellites are adjectives."""
    graph, files = _prepared(data / "wordnet" / "triples.tsv.gz", folder), {}
    for part in ("noun", "verb", "adj", "adv"):
        for line in (labels_from / f"data.{part}").read_text().splitlines():
            if not line.startswith("  "):  # the licence
                offset, file, kind = line.split(" ", 3)[:3]
                files[offset + ("a" if kind == "s" else kind)] = file
    names = graph.node_names(np.arange(graph.num_nodes))
    drawn = np.random.default_rng(0).choice(["train", "valid", "test"], len(names), p=SHARES)
    rows = [f"{name}\t{files[name]}\t{split}\n" for name, split in zip(names, drawn, strict=True)]
    (folder / "labels.tsv").write_text("name\tlabel\tsplit\n" + "".join(rows))
    return Case("wordnet", str(folder), "in", True, 0)


def _prepared(source: Path, folder: Path) -> Graph:
    out, read = folder / "graph", ReadOptions(relations=False)
    prepare(PrepareRequest(train=source, out=out, read=read, duplicates="drop"))
    return Graph.open(out)


def report(case: Case, seeds: int, rounds: int) -> None:
    """Trains with every seed; a table with a line per contestant."""
    planner = NodeClassificationTask(case.config(), case.graph).planner  # makes what lies beside the graph
    contestants = {"ours": Ours, "dgl": partial(Dgl, workers=0), "dgl, worker": partial(Dgl, workers=1)}
    limits = {f"products, {library}": partial(Products, library=library) for library in ("torch", "NumPy")}
    times = {name: Times() for name in (*contestants, *limits)}
    accuracies: dict[str, list[float]] = {name: [] for name in contestants}
    for seed in range(seeds):
        makers = {**contestants, **limits}
        factories = {name: partial(make, replace(case, seed=seed)) for name, make in makers.items()}
        for name, found in take_turns(factories, case.cores, planner.batches_per_epoch, rounds).items():
            times[name].seconds += found.seconds
            times[name].cpu_seconds += found.cpu_seconds
            if name == "ours":
                accuracy, spent = found.report
                accuracies[name].append(accuracy)
            elif name in contestants:
                accuracies[name].append(found.report)
    batches, nodes, ours = planner.batches_per_epoch, len(case.labels.nodes["train"]), times["ours"]
    print(
        f"\n{case.name}, {case.cores} cores, {nodes:,} nodes an epoch, {rounds + 1} epochs, load "
        f"{os.getloadavg()[0]:.1f}; ours, ms a batch in each stage: {spent}\n\n"
        "| contestant | nodes/s | epoch, s | processor, s | time / ours | processor / ours | test accuracy |\n"
        f"|{'---|' * 7}"
    )
    for name, mine in times.items():
        work = statistics.median(map(truediv, mine.cpu_seconds, ours.cpu_seconds))
        found = ", ".join(f"{accuracy:.4f}" for accuracy in accuracies.get(name, []))
        print(
            f"| {name} | {nodes / (batches * mine.middle):,.0f} | {batches * mine.middle:.2f} "
            f"| {batches * statistics.median(mine.cpu_seconds):.2f} "
            f"| {ours.times_faster(mine):.2f} | {work:.2f} | {found} |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cores", type=int, nargs="+", default=[2])
    parser.add_argument("--data", type=Path, default=os.environ.get("MARIUS_OAC_DATA"), help="default: MARIUS_OAC_DATA")
    parser.add_argument("--labels-from", type=Path, help="folder with WordNet's files data.noun to data.adv")
    parser.add_argument("--seeds", type=int, default=3, help="each trains once")
    parser.add_argument("--rounds", type=int, default=4, help="timed epochs per seed; medians are reported")
    options = parser.parse_args()
    print(machine())
    with tempfile.TemporaryDirectory() as folder:
        for name in ("communities", "wordnet"):
            place = Path(folder) / name
            place.mkdir()
            if name == "communities":
                case = generated(place)
            elif options.data and options.labels_from:
                case = wordnet(place, Path(options.data), options.labels_from)
            else:
                print("\nwordnet: skipped, for it needs --data or MARIUS_OAC_DATA, and --labels-from")
                continue
            for cores in options.cores:
                report(replace(case, cores=cores), options.seeds, options.rounds)


if __name__ == "__main__":
    main()
