"""Generated graphs of any size: seeded, written in chunks, with skewed degrees and structure that a model can learn.

Ranks follow a bounded Zipf law. Every node belongs to one of `num_clusters` clusters, and a relation maps a head's
cluster to one tail cluster. Even relations reflect it (c -> s - c, symmetric, which DistMult can represent), odd ones
shift it (c -> c + s, which needs ComplEx, TransE or RotatE). Without relations the tail is in the head's cluster. A
fraction `noise` of the edges has random tail clusters. Edge i depends only on the seed and on i // CHUNK_EDGES.
"""

from __future__ import annotations

import gzip
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from marius_oac.errors import InputError
from marius_oac.runtime.files.npy import mapped_npy

CHUNK_EDGES = 1 << 20
"""Edges drawn at a time (24 MiB). The draw for a seed depends on it, so it is not an option."""


@dataclass(frozen=True, kw_only=True)
class GeneratedGraph:
    """A graph to generate; see the module's docstring for its distribution.

    Raises:
        InputError: a size is not positive, there are more clusters than nodes, noise is outside [0, 1], or the exponent
            is below 0.
    """

    num_nodes: int
    num_edges: int
    num_relations: int = 0  # 0: edges have two columns
    seed: int = 0
    exponent: float = 0.8  # P(rank k) ~ k ** -exponent
    num_clusters: int = 32
    noise: float = 0.1

    def __post_init__(self) -> None:
        for name, least in (("num_nodes", 1), ("num_edges", 1), ("num_relations", 0), ("num_clusters", 1)):
            if getattr(self, name) < least:
                raise InputError(f"{name} must be at least {least}, not {getattr(self, name)}")
        if self.num_clusters > self.num_nodes:
            raise InputError(f"num_clusters ({self.num_clusters}) must not exceed num_nodes ({self.num_nodes})")
        if not 0 <= self.noise <= 1:
            raise InputError(f"noise must lie in [0, 1], not {self.noise}")
        if not self.exponent >= 0:
            raise InputError(f"exponent must be at least 0, not {self.exponent}")

    @property
    def num_columns(self) -> int:
        """3 (head, relation, tail) with relations, else 2 (source, destination)."""
        return 3 if self.num_relations else 2

    def chunks(self) -> Iterator[np.ndarray]:
        """Yields the edges in order, int64 [n, 3] or [n, 2]. n is `CHUNK_EDGES` except for the last chunk."""
        law = _Law(self)
        for number, start in enumerate(range(0, self.num_edges, CHUNK_EDGES)):
            size = min(CHUNK_EDGES, self.num_edges - start)
            # A whole chunk is always drawn, so that a longer graph of the same seed begins with the same edges.
            yield law.draw(np.random.Generator(np.random.Philox(key=self.seed, counter=[0, 0, 0, number])))[:size]

    def edges(self) -> np.ndarray:
        """All edges, int64 [num_edges, 3 or 2], in memory."""
        return np.concatenate(list(self.chunks()))

    def clusters(self, nodes: np.ndarray) -> np.ndarray:
        """The cluster of each node, int64 [n] in [0, num_clusters), of ids int64 [n] as edges have them."""
        return _Law(self).ranks(nodes) % self.num_clusters


class _Law:
    """The distribution of a `GeneratedGraph`, with the parameters that are drawn once per graph."""

    def __init__(self, spec: GeneratedGraph) -> None:
        self.spec = spec
        rng = np.random.Generator(np.random.Philox(key=spec.seed, counter=[0, 0, 1, 0]))
        self.shifts = rng.integers(0, spec.num_clusters, size=max(1, spec.num_relations))
        # An affine bijection scatters hubs over the id range, so that frequent rows are not adjacent.
        self.multiplier = int(rng.integers(1, spec.num_nodes + 1))
        while math.gcd(self.multiplier, spec.num_nodes) != 1:
            self.multiplier = self.multiplier % spec.num_nodes + 1
        self.offset = int(rng.integers(0, spec.num_nodes))

    def draw(self, rng: np.random.Generator) -> np.ndarray:
        spec, size = self.spec, CHUNK_EDGES
        head_rank = self._zipf(rng.random(size), spec.num_nodes)
        relation = self._zipf(rng.random(size), spec.num_relations) if spec.num_relations else None
        cluster = head_rank % spec.num_clusters
        if relation is not None:
            shift = self.shifts[relation]
            cluster = np.where(relation % 2 == 0, shift - cluster, cluster + shift) % spec.num_clusters
        cluster = np.where(rng.random(size) < spec.noise, rng.integers(0, spec.num_clusters, size), cluster)
        members = -(-spec.num_nodes // spec.num_clusters)
        tail_rank = (self._zipf(rng.random(size), members) * spec.num_clusters + cluster) % spec.num_nodes
        columns = [self._scatter(head_rank), self._scatter(tail_rank)]
        if relation is not None:
            columns.insert(1, relation)
        return np.stack(columns, axis=1)

    def _zipf(self, uniform: np.ndarray, size: int) -> np.ndarray:
        """Ranks int64 in [0, size) of uniform numbers, by the inverse of the continuous distribution function."""
        power = 1.0 - self.spec.exponent
        edge = float(size + 1)
        value = edge**uniform if abs(power) < 1e-9 else ((edge**power - 1.0) * uniform + 1.0) ** (1.0 / power)
        return np.minimum(value.astype(np.int64) - 1, size - 1).clip(0)

    def _scatter(self, rank: np.ndarray) -> np.ndarray:
        if self.spec.num_nodes < 1 << 31:  # the product fits 63 bits
            return (rank * self.multiplier + self.offset) % self.spec.num_nodes
        return (rank + self.offset) % self.spec.num_nodes

    def ranks(self, nodes: np.ndarray) -> np.ndarray:
        """The ranks of nodes, the inverse of `_scatter`."""
        ranks = (nodes - self.offset) % self.spec.num_nodes
        if self.spec.num_nodes < 1 << 31:
            return ranks * pow(self.multiplier, -1, self.spec.num_nodes) % self.spec.num_nodes
        return ranks


def write_graph(spec: GeneratedGraph, path: Path) -> None:
    """Writes the graph's edges with names ("/m/0000042", "/r/7") as .tsv, .csv, .gz of both, or .parquet.

    A .npy file gets integer ids, int64 [num_edges, 3 or 2]. Memory holds a few chunks, for a graph of any size.

    Raises:
        InputError: the suffix is none of these.
    """
    suffix = "".join(Path(path).suffixes[-2:]) if path.suffix == ".gz" else path.suffix
    if suffix == ".npy":
        out = mapped_npy(path, (spec.num_edges, spec.num_columns), np.int64)
        for number, chunk in enumerate(spec.chunks()):
            out[number * CHUNK_EDGES : number * CHUNK_EDGES + len(chunk)] = chunk
        out.flush()
    elif suffix == ".parquet":
        with pq.ParquetWriter(path, _named(next(spec.chunks())[:1]).schema, compression="zstd") as writer:
            for chunk in spec.chunks():
                writer.write_table(_named(chunk))
    elif suffix in (".tsv", ".csv", ".tsv.gz", ".csv.gz"):
        options = pa_csv.WriteOptions(
            include_header=False, delimiter="\t" if ".tsv" in suffix else ",", quoting_style="none"
        )
        with gzip.open(path, "wb", compresslevel=1) if suffix.endswith(".gz") else path.open("wb") as file:
            for chunk in spec.chunks():
                pa_csv.write_csv(_named(chunk), file, options)
    else:
        raise InputError(f"a graph is written as .tsv, .csv, .gz of both, .parquet or .npy, not {suffix!r}", path)


def _named(edges: np.ndarray) -> pa.Table:
    columns = ["head", "relation", "tail"] if edges.shape[1] == 3 else ["source", "destination"]
    names = {}
    for column, ids in zip(columns, edges.T, strict=True):
        text = pc.cast(pa.array(np.ascontiguousarray(ids)), pa.string())
        text = text if column == "relation" else pc.utf8_lpad(text, width=7, padding="0")
        names[column] = pc.binary_join_element_wise("/r/" if column == "relation" else "/m/", text, "")
    return pa.table(names)
