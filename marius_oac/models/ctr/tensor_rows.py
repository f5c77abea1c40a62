"""`rows.ArrayRows` for tensors, on CUDA: the same in torch's own operations.

Guarantees:
- The same tensors give the same bits on the same device: what torch takes here adds up in one order (embedding bags
  forward; the gradient of an embedding, which sorts).
- Nothing waits for the device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch.nn.functional import embedding_bag

from marius_oac.models.compute.row_optimizers import RowOptimizer
from marius_oac.models.ctr.rows import BagColumn, Fields, Gathered, TableColumns, values_of


class TensorRows:
    """Rows in tensors; see `ArrayRows`."""

    def __init__(self, layout: Sequence[TableColumns], weighted: bool, optimizer: RowOptimizer) -> None:
        self._layout, self._weighted, self._fields = tuple(layout), int(weighted), Fields.of(layout)
        self._optimizer = optimizer

    def gather(self, rows: Sequence[torch.Tensor], arrays: Mapping[str, torch.Tensor]) -> Gathered:
        """What the network sees of the batch."""
        parts: list = [None] * len(self._fields.columns)
        padded, lengths = [], []
        for table, table_rows in zip(self._layout, rows, strict=True):
            values = table_rows[:, : table.dimension + self._weighted]
            values = values.contiguous() if table.bags else values  # as embedding bags need it
            if table.singles:
                picked = values[arrays[f"{table.name}.single"]]
                for i, field in enumerate(table.singles):
                    parts[field] = picked[i]
            for bag in table.bags:
                picks, offsets = arrays[f"{bag.name}.values"], arrays[f"{bag.name}.offsets"]
                pooled = embedding_bag(picks, values, offsets, mode="sum", include_last_offset=True)
                parts[bag.field] = _scaled(pooled, bag, arrays)
            for sequence in table.sequences:
                picks, offsets = arrays[f"{sequence.name}.values"], arrays[f"{sequence.name}.offsets"]
                lengths.append(offsets[1:] - offsets[:-1])
                sheet = values.new_zeros((offsets.numel() - 1) * sequence.max_values, table.dimension)
                sheet[_places(offsets, picks.numel(), sequence.max_values)] = values[picks, : table.dimension]
                padded.append(sheet)
        nothing = rows[0].new_empty(arrays["numbers"].shape[0], 0)  # where there are only sequences
        pairs = zip(parts, self._fields.dimensions, strict=True)
        embeddings = torch.cat([nothing, *(part[:, :dimension] for part, dimension in pairs)], 1)
        weights = torch.cat([nothing, *(part[:, -1:] for part in parts)], 1) if self._weighted else None
        return Gathered(embeddings, weights, tuple(padded), tuple(lengths))

    def update(
        self,
        rows: Sequence[torch.Tensor],
        arrays: Mapping[str, torch.Tensor],
        gradients: Gathered,
        timestamp: int,
        factor: float,
        weight: float,
    ) -> torch.Tensor:
        """Updates the rows that were gathered from `arrays` in place; see `ArrayRows.update`."""
        penalty, sheets = gradients.values.new_zeros(()), list(gradients.padded)
        for table, table_rows in zip(self._layout, rows, strict=True):
            picks, parts = self._occurrences(table, arrays, gradients, sheets)
            total = torch.ops.aten.embedding_dense_backward(parts, picks, len(table_rows), -1, False)
            if weight:
                values = table_rows[:, : total.shape[1]]
                penalty += values.square().sum()
                total += values * weight
            self._optimizer.update(table_rows, total, timestamp, factor)
        return penalty

    def _occurrences(self, table, arrays, gradients, sheets):
        """Local rows [O] of a table's occurrences and the gradients by them, [O, D + weight]."""
        picks, parts = [], []
        if table.singles:
            picks.append(arrays[f"{table.name}.single"].flatten())
            parts.append(self._of_fields(gradients, table.singles, table.dimension))
        for bag in table.bags:
            values, offsets = arrays[f"{bag.name}.values"], arrays[f"{bag.name}.offsets"]
            gradient = _scaled(self._of_fields(gradients, (bag.field,), table.dimension), bag, arrays)
            picks.append(values)
            parts.append(gradient[_bags(offsets, values.numel())])
        for sequence in table.sequences:
            values, offsets = arrays[f"{sequence.name}.values"], arrays[f"{sequence.name}.offsets"]
            gradient = sheets.pop(0)[_places(offsets, values.numel(), sequence.max_values)]
            picks.append(values)
            parts.append(torch.nn.functional.pad(gradient, (0, self._weighted)))
        if len(parts) == 1:
            return picks[0], parts[0]
        return torch.cat(picks), torch.cat(parts)

    def _of_fields(self, gradients: Gathered, fields: Sequence[int], dimension: int) -> torch.Tensor:
        """The gradients [F * B, D + weight] by what fields of one width got, field after field."""
        columns = [self._fields.columns[field] for field in fields]
        parts = torch.cat([gradients.values[:, column : column + dimension] for column in columns])
        if not self._weighted:
            return parts
        return torch.cat((parts, torch.cat([gradients.weights[:, field : field + 1] for field in fields])), 1)


def _scaled(sums: torch.Tensor, bag: BagColumn, arrays: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Sums [B, .] by the examples of a bag, or gradients by them, divided by how many values each has for a mean."""
    return sums if bag.pooling == "sum" else sums / values_of(bag, arrays).clamp(min=1)[:, None]


def _bags(offsets: torch.Tensor, count: int) -> torch.Tensor:
    """int64 [count]: the bag that each value lies in."""
    bags = torch.arange(offsets.numel() - 1, device=offsets.device)
    return torch.repeat_interleave(bags, offsets[1:] - offsets[:-1], output_size=count)


def _places(offsets: torch.Tensor, count: int, length: int) -> torch.Tensor:
    """int64 [count]: where each value of the sequences lies in [B * length, D]."""
    bags = _bags(offsets, count)
    return bags * length + torch.arange(count, device=offsets.device) - offsets[bags]
