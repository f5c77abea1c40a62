"""Means of the features of sampled neighbours, formed where batches are planned.

What is given, not trained, has no gradient, so that its mean over a node's neighbours can be part of the batch. The
step looks at two rows of each output node then, its own and the mean, instead of one of each input node, of which there
are several times as many unless outputs share them; and these are what goes to a GPU.
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
    """The mean of each output node's neighbours, float32 [O, F], added up in their order; without any, zeros.

    Its memory is aligned, as that of `features_of`: products of the step need no copy.

    Args:
        features: float32 [N, F].
        nodes: int64 [n], the id of each input node, of which the output nodes are the first.
        offsets, sources: of a `sampling.Block`.
        with_own: a node is one of its neighbours, the last.
    """
    count = len(offsets) - 1
    means = aligned_empty((count, features.shape[1]), np.float32)
    plain = features.view(np.ndarray)
    plain.flags.writeable = False  # so that there is one type to compile for
    _add_up(plain, nodes[:count], offsets, nodes[sources], with_own, means)
    return means


def features_of(features: np.ndarray, nodes: np.ndarray) -> np.ndarray:
    """The features of some nodes, float32 [n, F], copied."""
    found = aligned_empty((len(nodes), features.shape[1]), np.float32)
    # `take` needs a third of the time of brackets; by default it would write to a buffer first, lest an id be wrong.
    return np.take(features.view(np.ndarray), nodes, axis=0, out=found, mode="clip")


@compiled
def _add_up(features, own, offsets, neighbors, with_own, means):
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
