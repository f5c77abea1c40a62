"""Scores of each query with candidates of its own; see `evaluation.given`."""

from marius_oac.kernels.cpu.decoders import similarity
from marius_oac.kernels.cpu.jit import float_compiled


@float_compiled
def score_own(kind, queries, vectors, columns, scores):
    """Writes `scores` [n, m]: of query i, `queries[i]` [D], with `vectors[columns[i, j]]` [D].

    A score depends on these two rows alone, so equal rows tie exactly.
    """
    for i in range(scores.shape[0]):
        for j in range(scores.shape[1]):
            scores[i, j] = similarity(kind, queries[i], vectors[columns[i, j]])
