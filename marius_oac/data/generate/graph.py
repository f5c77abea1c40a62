"""Generated graphs: any size, seeded, written in chunks, with skewed degrees and structure that a model can learn.

Ranks follow a bounded Zipf law. Every node belongs to one of `num_clusters` clusters, and a relation sends a head's
cluster to one tail cluster: even relations reflect it (c -> s - c, symmetric, within reach of DistMult), odd ones shift
it (c -> c + s, which takes ComplEx, TransE or RotatE). Without relations the tail stays in the head's cluster.
A share `noise` of the edges ignores all that. Edge i depends on the seed and on i // CHUNK_EDGES alone.
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
from marius_oac.runtime.files.atomic import mapped_npy

CHUNK_EDGES = 1 << 20
"""Edges drawn at a time (24 MiB); part of what the seed means, so never an option."""


@dataclass(frozen=True, kw_only=True)
class GeneratedGraph:
    """What to generate; see the module's text for the law.

    Raises:
        InputError: a size that isn't positive, more clusters than nodes, noise outside [0, 1], or exponent below 0.
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
        """Edges in order, int64 [n, 3] or [n, 2] at a time; n is `CHUNK_EDGES` but for the last."""
        law = _Law(self)
        for number, start in enumerate(range(0, self.num_edges, CHUNK_EDGES)):
            size = min(CHUNK_EDGES, self.num_edges - start)
            # A whole chunk is always drawn, so that a longer graph of the same seed begins with the shorter one.
            yield law.draw(np.random.Generator(np.random.Philox(key=self.seed, counter=[0, 0, 0, number])))[:size]

    def edges(self) -> np.ndarray:
        """All edges at once, int64 [num_edges, 3 or 2]: for graphs that fit."""
        return np.concatenate(list(self.chunks()))

    def clusters(self, nodes: np.ndarray) -> np.ndarray:
        """The cluster of each node, int64 [n] in [0, num_clusters); nodes are int64 [n], as edges have them."""
        return _Law(self).ranks(nodes) % self.num_clusters


class _Law:
    """The distribution that a `GeneratedGraph` describes, with what is drawn once per graph."""

    def __init__(self, spec: GeneratedGraph) -> None:
        self.spec = spec
        rng = np.random.Generator(np.random.Philox(key=spec.seed, counter=[0, 0, 1, 0]))
        self.shifts = rng.integers(0, spec.num_clusters, size=max(1, spec.num_relations))
        # An affine bijection scatters hubs over the id range: rows that are hot must not also be neighbours.
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
        """Ranks int64 in [0, size) from uniforms, by the inverse of the continuous law's distribution function."""
        power = 1.0 - self.spec.exponent
        edge = float(size + 1)
        value = edge**uniform if abs(power) < 1e-9 else ((edge**power - 1.0) * uniform + 1.0) ** (1.0 / power)
        return np.minimum(value.astype(np.int64) - 1, size - 1).clip(0)

    def _scatter(self, rank: np.ndarray) -> np.ndarray:
        if self.spec.num_nodes < 1 << 31:  # the product fits 63 bits
            return (rank * self.multiplier + self.offset) % self.spec.num_nodes
        return (rank + self.offset) % self.spec.num_nodes

    def ranks(self, nodes: np.ndarray) -> np.ndarray:
        """What `_scatter` made these nodes of."""
        ranks = (nodes - self.offset) % self.spec.num_nodes
        if self.spec.num_nodes < 1 << 31:
            return ranks * pow(self.multiplier, -1, self.spec.num_nodes) % self.spec.num_nodes
        return ranks


def write_graph(spec: GeneratedGraph, path: Path) -> None:
    """Write the graph's edges with names ("/m/0000042", "/r/7") as .tsv, .csv, .gz of both, or .parquet.

    Integer ids go to .npy (int64 [num_edges, 3 or 2]). Memory stays at some chunks, whatever the size.

    Raises:
        InputError: a suffix that isn't one of these.
    """
    suffix = "".join(Path(path).suffixes[-2:]) if path.suffix == ".gz" else path.suffix
    if suffix == ".npy":
        shape = (spec.num_edges, spec.num_columns)
        out = mapped_npy(path, shape, np.int64)
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
        with gzip.open(path, "wb", compresslevel=1) if suffix.endswith(".gz") else path.open("wb") as out:
            for chunk in spec.chunks():
                pa_csv.write_csv(_named(chunk), out, options)
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
