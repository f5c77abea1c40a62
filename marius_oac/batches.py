"""The records of batches, `types.BatchData` of each task: what its planner makes and its step reads.

On the host `Array` is np.ndarray; where rows are tensors it is torch.Tensor (`types.map_arrays`). Integers are int64.
Shapes: B examples in a batch; docs/batches.md has pictures.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from marius_oac.types import BatchData, present

Array = TypeVar("Array")


@dataclass(frozen=True, eq=False)
class SumOrder(Generic[Array]):
    """Where rows occur, in the order of the sums over these places, for the kernels of a GPU.

    Attributes:
        places: [P]; those of row k are places[first[k]:first[k + 1]], ascending.
        first: [n + 1].
    """

    places: Array
    first: Array


@dataclass(frozen=True, eq=False)
class EdgeOrder(Generic[Array]):
    """The sums over a batch of edges.

    Attributes:
        rows: places are numbered: heads [B], tails [B], negatives [S, C, K], or each row if all are negatives.
        relations: the edges of each of the batch's relations; None as `EdgeBatch.relations`.
        chunk_bounds: [C + 1], `EdgeBatch.chunk_offsets`; None if all rows are negatives.
    """

    rows: SumOrder[Array]
    relations: SumOrder[Array] | None
    chunk_bounds: Array | None


@dataclass(frozen=True, eq=False, kw_only=True)
class EdgeBatch(BatchData, Generic[Array]):
    """Edges with shared negatives, for link prediction; nodes are indices into the batch's rows, or its seeds.

    Attributes:
        heads, tails: [B].
        relations: [B], indices into `relation_rows`; None if the decoder has no relations.
        relation_rows: [m], sorted unique ids of the batch's relations; None as `relations`.
        chunk_offsets: edges of chunk c are [chunk_offsets[c], chunk_offsets[c + 1]).
        negatives: [S, C, K] of S sides, C chunks; S = 2: axis 0 is `types.Side`; S = 1: tails are replaced. None: every
            row is a negative.
        order: of the sums; a batch gets it on its way to a device whose kernels need it.
    """

    heads: Array
    tails: Array
    relations: Array | None = None
    relation_rows: Array | None = None
    chunk_offsets: tuple[int, ...] = ()
    negatives: Array | None = None
    order: EdgeOrder[Array] | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class NodeBatch(BatchData, Generic[Array]):
    """Labelled nodes, for node classification.

    Attributes:
        labels: [B], the class of each seed.
    """

    labels: Array


@dataclass(frozen=True, eq=False)
class BlockData(Generic[Array]):
    """The edges of one layer of an encoder, grouped by destination.

    Attributes:
        offsets: [O + 1]; the edges of output d are [offsets[d], offsets[d + 1]).
        sources: [E], the input that each edge comes from.
    """

    offsets: Array
    sources: Array


@dataclass(frozen=True, eq=False, kw_only=True)
class EncodedBatch(BatchData, Generic[Array]):
    """The inputs of an encoder, and the data of its head, whose nodes are the encoded seeds.

    Attributes:
        head: whose nodes are indices into the seeds, the outputs of the last block.
        blocks: from the outermost to the seeds'; the first layer's is left out where there are `means`.
        inputs: [n], the row of each input node of the first block; None if there are `means`.
        features: float32 [n, F] of these input nodes. Beside `means`: of the first layer's outputs, [O, F]. None: nodes
            have none, or the means are with them.
        means: float32 [O, F] of the features of the neighbours of each output of the first layer, which begins with
            them; None: it forms them itself.
    """

    head: EdgeBatch[Array] | NodeBatch[Array]
    blocks: tuple[BlockData[Array], ...]
    inputs: Array | None = None
    features: Array | None = None
    means: Array | None = None

    @property
    def first(self) -> Array:
        """`means`, or else `inputs`: an entry for each input of the first block in `blocks`."""
        found = self.inputs if self.means is None else self.means
        return present(found)


def edges_of(data: BatchData) -> EdgeBatch[Any]:
    """Returns the edges of a batch of link prediction, with or without an encoder."""
    head = data.head if isinstance(data, EncodedBatch) else data
    if not isinstance(head, EdgeBatch):
        raise TypeError(f"{type(head).__name__} holds no edges")
    return head


@dataclass(frozen=True, eq=False)
class Jagged(Generic[Array]):
    """Local rows of a feature with any number of values for an example.

    Attributes:
        values: [V].
        offsets: [B + 1]; those of example i are values[offsets[i]:offsets[i + 1]].
        counts: [B], values of each example, where `values` are sums of some of them (`pool_at: shard`); else None.
    """

    values: Array
    offsets: Array
    counts: Array | None = None


@dataclass(frozen=True, eq=False)
class TableIndices(Generic[Array]):
    """Local rows of one table: of its features by kind, in the order of the config.

    Attributes:
        singles: [F, B] of the F single-valued features.
        bags, sequences: of the other features.
        order: of the sums over singles, then bags, then sequences; a batch gets it on its way to a device whose
            kernels need it.
    """

    singles: Array
    bags: tuple[Jagged[Array], ...] = ()
    sequences: tuple[Jagged[Array], ...] = ()
    order: SumOrder[Array] | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class ClickBatch(BatchData, Generic[Array]):
    """Examples of a click log.

    Attributes:
        numbers: float32 [B, N], the numeric columns.
        labels: float32 [B], 1 for a click; None where clicks are predicted.
        tables: of each table, in the order of the rows; empty until the rows of all keys are known.
        weights: float32 [B], what each example's loss is multiplied by; None: 1.
    """

    numbers: Array
    labels: Array | None = None
    tables: tuple[TableIndices[Array], ...] = ()
    weights: Array | None = None
