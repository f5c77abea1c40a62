"""Generated graphs and edges to train on."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.generate.graph import GeneratedGraph, write_graph
from marius_oac.data.graphs.graph import Graph
from marius_oac.data.reading.edge_file import ReadOptions
from marius_oac.prepare.prepare import PrepareRequest, prepare


def generated_graph(folder: Path, nodes: int, edges: int, relations: int) -> Graph:
    """A graph, prepared in the folder unless it is there already."""
    source, out = folder / f"edges-{nodes}.npy", folder / f"graph-{nodes}"
    if out.exists():
        return Graph.open(out)
    write_graph(GeneratedGraph(num_nodes=nodes, num_edges=edges, num_relations=relations), source)
    prepare(PrepareRequest(source=str(source), out=out, read=ReadOptions(relations=relations > 0)))
    source.unlink()
    return Graph.open(out)


def skewed_edges(nodes: int, relations: int, count: int, seed: int = 0) -> np.ndarray:
    """int32 [count, 3]: ends by a law between a uniform one and Zipf's (the square of a uniform number)."""
    generator, edges = np.random.default_rng(seed), np.empty((count, 3), np.int32)
    for column in (0, 2):
        # Neighbouring ranks lie in neighbouring rows, as they would in a graph that is numbered by degree.
        edges[:, column] = generator.random(count, np.float32).astype(np.float64) ** 2 * nodes
    edges[:, 1] = generator.integers(relations, size=count)
    return edges
