"""Classes of encoded nodes: the head of a classification, and its metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from marius_oac.batches import NodeBatch
from marius_oac.models.compute.thread_pool import ThreadPool
from marius_oac.runtime import blas


class ClassesHead:
    """An `encoded.Head`: the mean cross-entropy of the softmax of each node's scores, [B, classes].

    On the CPU NumPy's products run on one thread each, in the whole process, until
    `close`.
    """

    served = None

    def __init__(self, device: torch.device, threads: int) -> None:
        with ExitStack() as stack:
            self.thread_pool = ThreadPool(threads if device.type == "cpu" else 1)
            stack.callback(self.thread_pool.close)
            if device.type == "cpu":
                stack.enter_context(blas.one_thread_per_product())
            self._stack = stack.pop_all()

    def compute(self, rows: Sequence[Any], data: NodeBatch[Any], timestamp: int) -> Any:
        """See `encoded.Head`."""
        (scores,) = rows
        if isinstance(scores, Tensor):
            loss, gradient = _differentiate(scores, data.labels)
            scores.copy_(gradient)
            return loss
        loss, gradient = _differentiate(torch.from_numpy(scores), torch.from_numpy(data.labels))
        scores[:] = gradient.numpy()
        return loss.item()

    def dense_state(self) -> Mapping[str, Tensor]:
        """It has no parameters."""
        return {}

    def load_dense_state(self, state: Mapping[str, Tensor]) -> None:
        """Raises ValueError where there is any."""
        if state:
            raise ValueError(f"dense state {sorted(state)}, but this model has none of these")

    def close(self) -> None:
        self._stack.close()


def _differentiate(scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    leaf = scores.detach().clone().requires_grad_()
    with torch.enable_grad():
        loss = cross_entropy(leaf, labels)
    (gradient,) = torch.autograd.grad(loss, leaf)
    return loss.detach(), gradient


def class_metrics(scores: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Accuracy, mean cross-entropy, and the F1 measure averaged over the classes that occur or are predicted.

    Args:
        scores: float32 [n, classes], n >= 1; of equal ones the first class counts.
        labels: int64 [n].
    """
    predicted, classes = scores.argmax(1), scores.shape[1]
    hits = np.bincount(labels[predicted == labels], minlength=classes)
    both = np.bincount(labels, minlength=classes) + np.bincount(predicted, minlength=classes)
    loss = cross_entropy(torch.from_numpy(np.array(scores, np.float64)), torch.from_numpy(np.array(labels))).item()
    f1 = float(np.mean(2 * hits[both > 0] / both[both > 0]))
    return {"accuracy": float(hits.sum() / len(labels)), "log_loss": loss, "macro_f1": f1}
