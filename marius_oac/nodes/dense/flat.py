"""Packs many tensors into one buffer, so that one call transfers them all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch


class Flat:
    """A flat buffer for tensors of given shapes.

    Args:
        tensors: give the shapes, and one dtype and device; they are not kept.
        extra: elements after them in the buffer, for other purposes.

    Attributes:
        buffer: [elements of all tensors + extra], zeros at first.
        shapes: of the tensors.
        parts: views of the buffer in these shapes.

    Raises:
        ValueError: dtypes or devices differ, or there is no tensor.
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
        """Returns views in the tensors' shapes of a buffer as long as this one; it may lack the extra elements."""
        parts = buffer[: sum(self._sizes)].split(self._sizes)
        return [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]

    def fill(self, tensors: Sequence[torch.Tensor]) -> None:
        """Copies the tensors into the buffer.

        Raises:
            ValueError: they have other shapes.
        """
        for part, tensor in self._pairs(tensors):
            part.copy_(tensor)

    def give(self, tensors: Sequence[torch.Tensor]) -> None:
        """Copies the buffer into the tensors.

        Raises:
            ValueError: they have other shapes.
        """
        for part, tensor in self._pairs(tensors):
            tensor.copy_(part)

    def _pairs(self, tensors: Sequence[torch.Tensor]) -> Iterable[tuple[torch.Tensor, torch.Tensor]]:
        shapes = [tuple(tensor.shape) for tensor in tensors]
        if shapes != self.shapes:
            raise ValueError(f"tensors have the shapes {shapes}, not {self.shapes}")
        return zip(self.parts, tensors, strict=True)
