"""Means of the features of sampled neighbours, computed where batches are planned.

Features are not trained and need no gradient, so the means over neighbours can be part of the batch. The step then
reads two rows per output node, its own and the mean, instead of one per input node. There are usually several times as
many input nodes, and all of them would be copied to a GPU.
"""

from __future__ import annotations

import numpy as np

from marius_oac.kernels.cpu.jit import compiled
from marius_oac.kernels.cpu.prefetch import prefetch_row
from marius_oac.runtime.aligned import aligned_empty

_ZERO = np.float32(0)
_AHEAD = 16  # messages


def feature_means(
    features: np.ndarray, nodes: np.ndarray, offsets: np.ndarray, sources: np.ndarray, with_own: bool
) -> np.ndarray:
    """The mean of each output node's neighbours, float32 [O, F], added up in their order; zeros without neighbours.

    The result is aligned, as that of `features_of`, so that the step's matrix products need no copy.

    Args:
        features: float32 [N, F].
        nodes: int64 [n], the id of each input node. The output nodes come first.
        offsets, sources: of a `sampling.Block`, int64 [O + 1] and [messages].
        with_own: count the node itself as its last neighbour.
    """
    count = len(offsets) - 1
    means = aligned_empty((count, features.shape[1]), np.float32)
    plain = features.view(np.ndarray)
    plain.flags.writeable = False  # so that the kernel is compiled for one type
    _add_up(plain, nodes[:count], offsets, nodes[sources], with_own, means)
    return means


def features_of(features: np.ndarray, nodes: np.ndarray) -> np.ndarray:
    """A copy of the features, float32 [N, F], of the nodes with ids int64 [n]: float32 [n, F]."""
    found = aligned_empty((len(nodes), features.shape[1]), np.float32)
    # `take` needs a third of the time of indexing. Its default mode "raise" would write to a buffer first.
    return np.take(features.view(np.ndarray), nodes, axis=0, out=found, mode="clip")


@compiled
def _add_up(
    features: np.ndarray,
    own: np.ndarray,
    offsets: np.ndarray,
    neighbors: np.ndarray,
    with_own: bool,
    means: np.ndarray,
) -> None:
    width = features.shape[1]
    for i in range(own.size):
        for j in range(width):
            means[i, j] = _ZERO
        if with_own:
            prefetch_row(features, own[i], width)
        for at in range(offsets[i], offsets[i + 1]):
            prefetch_row(features, neighbors[min(at + _AHEAD, neighbors.size - 1)], width)
            node = neighbors[at]
            for j in range(width):
                means[i, j] += features[node, j]
        count = offsets[i + 1] - offsets[i]
        if with_own:
            count += 1
            for j in range(width):
                means[i, j] += features[own[i], j]
        if count > 1:
            divisor = np.float32(count)
            for j in range(width):
                means[i, j] /= divisor
