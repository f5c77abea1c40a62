"""The head of node classification, and its metrics."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from marius_oac.batches import NodeBatch
from marius_oac.models.compute.torch_state import compute_threads


class ClassesHead:
    """A `gnn.step.Head`: the mean cross-entropy of the softmax of each node's scores, float32 [B, classes].

    Until `close`, which the thread that made the head calls, `compute_threads` is in effect.
    """

    def __init__(self, device: torch.device, threads: int) -> None:
        self._stack = ExitStack()
        self.thread_pool = self._stack.enter_context(compute_threads(device, threads))

    def compute(self, rows: Sequence[Any], data: NodeBatch[Any], timestamp: int) -> Any:
        """See `gnn.step.Head`."""
        (scores,) = rows
        if isinstance(scores, Tensor):
            loss, gradient = _differentiate(scores, data.labels)
            scores.copy_(gradient)
            return loss
        loss, gradient = _differentiate(torch.from_numpy(scores), torch.from_numpy(data.labels))
        scores[:] = gradient.numpy()
        return loss.item()

    def close(self) -> None:
        """Ends the threads."""
        self._stack.close()


def _differentiate(scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    leaf = scores.detach().clone().requires_grad_()
    with torch.enable_grad():
        loss = cross_entropy(leaf, labels)
    (gradient,) = torch.autograd.grad(loss, leaf)
    return loss.detach(), gradient


def class_metrics(scores: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Accuracy, mean cross-entropy, and the F1 score averaged over the classes that occur or are predicted.

    Args:
        scores: float32 [n, classes], n >= 1. The first of the classes with the highest score is predicted.
        labels: int64 [n].
    """
    predicted, classes = scores.argmax(1), scores.shape[1]
    hits = np.bincount(labels[predicted == labels], minlength=classes)
    both = np.bincount(labels, minlength=classes) + np.bincount(predicted, minlength=classes)
    loss = cross_entropy(torch.from_numpy(np.array(scores, np.float64)), torch.from_numpy(np.array(labels))).item()
    f1 = float(np.mean(2 * hits[both > 0] / both[both > 0]))
    return {"accuracy": float(hits.sum() / len(labels)), "log_loss": loss, "macro_f1": f1}
