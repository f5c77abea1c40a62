"""Many tensors in one buffer, so that they travel in one call."""

from __future__ import annotations

from collections.abc import Sequence

import torch


class Flat:
    """A buffer as long as some tensors together.

    Args:
        tensors: give shapes, type and device; all must have one type and device. They are not kept.
        extra: numbers behind them in the buffer, for other purposes.
    Raises:
        ValueError: types or devices differ, or there is no tensor.
    """

    def __init__(self, tensors: Sequence[torch.Tensor], extra: int = 0) -> None:
        kinds = {(tensor.dtype, tensor.device) for tensor in tensors}
        if len(kinds) != 1:
            raise ValueError(f"dense parameters must have one type and device, not {sorted(map(str, kinds))}")
        self.shapes = [tuple(tensor.shape) for tensor in tensors]
        self._sizes = [tensor.numel() for tensor in tensors]
        self.buffer = torch.zeros(sum(self._sizes) + extra, dtype=tensors[0].dtype, device=tensors[0].device)
        self.parts = self.views(self.buffer)

    def views(self, buffer: torch.Tensor) -> list[torch.Tensor]:
        """The parts of a buffer like this one, or of one without the extra numbers, in the tensors' shapes."""
        parts = buffer[: sum(self._sizes)].split(self._sizes)
        return [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]

    def fill(self, tensors: Sequence[torch.Tensor]) -> None:
        """Copies the tensors into the buffer.

        Raises:
            ValueError: they have other shapes.
        """
        self._check(tensors)
        for part, tensor in zip(self.parts, tensors, strict=True):
            part.copy_(tensor)

    def give(self, tensors: Sequence[torch.Tensor]) -> None:
        """Copies the buffer into the tensors.

        Raises:
            ValueError: they have other shapes.
        """
        self._check(tensors)
        for part, tensor in zip(self.parts, tensors, strict=True):
            tensor.copy_(part)

    def _check(self, tensors: Sequence[torch.Tensor]) -> None:
        shapes = [tuple(tensor.shape) for tensor in tensors]
        if shapes != self.shapes:
            raise ValueError(f"tensors {shapes}, but they were {self.shapes}")
