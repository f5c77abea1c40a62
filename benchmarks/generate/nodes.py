"""Labels of the nodes of a generated graph, and features that predict them.

A node's label is the number of its cluster. In a graph without relations the clusters are communities: a fraction
`noise` of the edges leaves them. A node's features are a point on the unit sphere, drawn per cluster, plus Gaussian
noise in each direction. One node's features predict its label poorly; the mean over its neighbours predicts it better.

    python -m benchmarks.generate.nodes --out data/communities --nodes 200000 --edges 2000000 --communities 24

makes a graph with both. Files name the nodes as the prepared graph does. A node's label and features depend only on the
seed and its number in the generated graph.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from benchmarks.generate.graph import GeneratedGraph, write_graph
from marius_oac.data.folders import new_folder
from marius_oac.data.graphs.graph import Graph
from marius_oac.data.reading.edge_file import ReadOptions
from marius_oac.data.splits import SPLITS
from marius_oac.errors import InputError
from marius_oac.prepare.prepare import PrepareRequest, prepare
from marius_oac.runtime.command import Parser, run_command
from marius_oac.runtime.console import logger

_PROGRAM = "python -m benchmarks.generate.nodes"
CHUNK_NODES = 1 << 14
"""Nodes whose random numbers are drawn together. The draw for a seed depends on it, so it is not an option."""
_BATCH_NODES = 1 << 16
_SPLITS, _NOISE, _CENTERS = 2, 3, 4  # streams of the seed; `generate.graph` uses 0 and 1


def write_labels(
    spec: GeneratedGraph, graph: Graph, path: Path, shares: tuple[float, float, float] = (0.6, 0.2, 0.2)
) -> None:
    """Writes a file of labels for `read_labels` (.tsv or .csv).

    Args:
        graph: prepared from the output of `write_graph`, in any format.
        shares: probabilities that a node is in train, valid and test. The other nodes have no label.

    Raises:
        InputError: shares are below 0 or sum to more than 1; another suffix; the graph isn't the spec's.
    """
    if len(shares) != len(SPLITS) or not min(shares) >= 0 or not sum(shares) <= 1 + 1e-9:
        raise InputError(f"three numbers of 0 and more that sum to at most 1 are needed, not {shares}", "shares")
    if path.suffix not in (".tsv", ".csv"):
        raise InputError(f"labels are written as .tsv or .csv, not {path.suffix!r}", path)
    options = pa_csv.WriteOptions(
        include_header=False, delimiter="\t" if path.suffix == ".tsv" else ",", quoting_style="none"
    )
    splits, ends = pa.array([*SPLITS, None]), np.cumsum(shares)
    with path.open("wb") as out:
        out.write((options.delimiter.join(("name", "label", "split")) + "\n").encode())
        for names, nodes in _nodes(spec, graph):
            uniform = np.empty(len(nodes))
            for at, rng in _chunks(spec, nodes, _SPLITS):
                uniform[at] = rng.random(CHUNK_NODES)[nodes[at] % CHUNK_NODES]
            split = splits.take(pa.array(np.searchsorted(ends, uniform, side="right")))
            table = pa.table({"name": names, "label": pa.array(spec.clusters(nodes)), "split": split})
            pa_csv.write_csv(table.drop_null(), out, options)


def write_features(spec: GeneratedGraph, graph: Graph, path: Path, width: int, noise: float = 0.5) -> None:
    """Writes a file of features for `open_features` (.parquet), float32 [`width`] for each node of the graph.

    Args:
        graph: prepared from the output of `write_graph`, in any format.
        noise: standard deviation of each feature around the cluster's vector, whose norm is 1.

    Raises:
        InputError: width is below 1 or noise below 0; another suffix; the graph isn't the spec's.
    """
    if width < 1:
        raise InputError(f"must be at least 1, not {width}", "width")
    if not 0 <= noise < np.inf:
        raise InputError(f"must be at least 0, not {noise}", "noise")
    if path.suffix != ".parquet":
        raise InputError(f"features are written as .parquet, not {path.suffix!r}", path)
    centers = _rng(spec, _CENTERS, 0).standard_normal((spec.num_clusters, width))
    centers = (centers / np.linalg.norm(centers, axis=1, keepdims=True)).astype(np.float32)
    schema = pa.schema([("name", pa.string()), ("features", pa.list_(pa.float32(), width))])
    with pq.ParquetWriter(path, schema) as writer:
        for names, nodes in _nodes(spec, graph):
            features = centers[spec.clusters(nodes)]
            for at, rng in _chunks(spec, nodes, _NOISE):
                drawn = rng.standard_normal((CHUNK_NODES, width), np.float32)[nodes[at] % CHUNK_NODES]
                features[at] += np.float32(noise) * drawn
            column = pa.FixedSizeListArray.from_arrays(pa.array(features.reshape(-1)), width)
            writer.write_table(pa.table([names, column], schema=schema))


def _nodes(spec: GeneratedGraph, graph: Graph) -> Iterator[tuple[pa.Array, np.ndarray]]:
    """Yields names of the prepared graph's nodes, in the order of their ids, and their numbers in the generated one."""
    with pq.ParquetFile(graph.path / "nodes.parquet", pre_buffer=False) as file:
        for batch in file.iter_batches(batch_size=_BATCH_NODES, columns=["name"]):
            names = batch.column("name")
            try:
                nodes = pc.replace_substring_regex(names, r"^/m/", "").cast(pa.int64()).to_numpy()
            except pa.ArrowInvalid:
                raise InputError("has other nodes than the generated graph", graph.path) from None
            if nodes.min() < 0 or nodes.max() >= spec.num_nodes:
                raise InputError("has other nodes than the generated graph", graph.path)
            yield names, nodes


def _chunks(spec: GeneratedGraph, nodes: np.ndarray, stream: int) -> Iterator[tuple[np.ndarray, np.random.Generator]]:
    """Yields (indices of the nodes of one chunk, the chunk's random generator)."""
    chunks = nodes // CHUNK_NODES
    for chunk in np.unique(chunks):
        yield np.flatnonzero(chunks == chunk), _rng(spec, stream, int(chunk))


def _rng(spec: GeneratedGraph, stream: int, chunk: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=spec.seed, counter=[0, 0, stream, chunk]))


def _parser() -> Parser:
    parser = Parser(prog=_PROGRAM, description="A graph of communities, labelled.")
    parser.add_argument("--out", type=Path, required=True, help="new folder: graph/, labels.tsv, features.parquet")
    parser.add_argument("--nodes", type=int, default=200_000)
    parser.add_argument("--edges", type=int, default=2_000_000)
    parser.add_argument("--communities", type=int, default=24)
    parser.add_argument("--noise", type=float, default=0.5, help="share of edges that leave their community")
    parser.add_argument("--features", type=int, default=64, help="floats of a node")
    parser.add_argument("--seed", type=int, default=0)
    return parser


def _generate(args: argparse.Namespace) -> None:
    if args.out.exists():
        raise InputError("exists already", args.out)
    spec = GeneratedGraph(
        num_nodes=args.nodes, num_edges=args.edges, num_clusters=args.communities, noise=args.noise, seed=args.seed
    )
    with new_folder(args.out) as folder:
        edges = folder / "edges.npy"
        write_graph(spec, edges)
        made = prepare(PrepareRequest(source=str(edges), out=folder / "graph", read=ReadOptions(relations=False)))
        edges.unlink()
        graph = Graph.open(folder / "graph", verify=False)
        write_labels(spec, graph, folder / "labels.tsv")
        write_features(spec, graph, folder / "features.parquet", args.features, noise=1.0)
    logger.info(f"{args.out}: {made.num_nodes:,} nodes, {sum(made.edges.values()):,} edges")


def main(argv: Sequence[str] | None = None) -> int:
    """Writes graph, labels and features, either all of them or nothing. Returns the exit code."""
    return run_command(_PROGRAM, lambda: _generate(_parser().parse_args(argv)))


if __name__ == "__main__":
    sys.exit(main())
