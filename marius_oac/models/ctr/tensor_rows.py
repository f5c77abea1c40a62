"""`rows.ArrayRows` for tensors, on CUDA: the same in torch's own operations.

Guarantees:
- The same tensors give the same bits on the same device: what torch takes here adds up in one order (embedding bags
  forward; the gradient of an embedding, which sorts).
- Nothing waits for the device.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn.functional import embedding_bag

from marius_oac.batches import Jagged, TableIndices
from marius_oac.models.compute.row_optimizers import RowOptimizer
from marius_oac.models.ctr.rows import BagColumn, Fields, Gathered, TableColumns, values_of


class TensorRows:
    """Rows in tensors; see `ArrayRows`."""

    def __init__(self, layout: Sequence[TableColumns], weighted: bool, optimizer: RowOptimizer) -> None:
        self._layout, self._weighted, self._fields = tuple(layout), int(weighted), Fields.of(layout)
        self._optimizer = optimizer

    def gather(self, rows: Sequence[torch.Tensor], tables: Sequence[TableIndices[torch.Tensor]]) -> Gathered:
        """What the network sees of the batch."""
        parts: list = [None] * len(self._fields.columns)
        padded, lengths = [], []
        for table, table_rows, indices in zip(self._layout, rows, tables, strict=True):
            values = table_rows[:, : table.dimension + self._weighted]
            values = values.contiguous() if table.bags else values  # as embedding bags need it
            if table.singles:
                picked = values[indices.singles]
                for i, field in enumerate(table.singles):
                    parts[field] = picked[i]
            for column, bag in zip(table.bags, indices.bags, strict=True):
                pooled = embedding_bag(bag.values, values, bag.offsets, mode="sum", include_last_offset=True)
                parts[column.field] = _scaled(pooled, column, bag)
            for column, sequence in zip(table.sequences, indices.sequences, strict=True):
                lengths.append(sequence.offsets[1:] - sequence.offsets[:-1])
                sheet = values.new_zeros(len(lengths[-1]) * column.max_values, table.dimension)
                sheet[_places(sequence, column.max_values)] = values[sequence.values, : table.dimension]
                padded.append(sheet)
        nothing = rows[0].new_empty(tables[0].singles.shape[1], 0)  # where there are only sequences
        pairs = zip(parts, self._fields.dimensions, strict=True)
        embeddings = torch.cat([nothing, *(part[:, :dimension] for part, dimension in pairs)], 1)
        weights = torch.cat([nothing, *(part[:, -1:] for part in parts)], 1) if self._weighted else None
        return Gathered(embeddings, weights, tuple(padded), tuple(lengths))

    def update(
        self,
        rows: Sequence[torch.Tensor],
        tables: Sequence[TableIndices[torch.Tensor]],
        gradients: Gathered,
        timestamp: int,
        factor: float,
        weight: float,
    ) -> torch.Tensor:
        """Updates the rows that were gathered in place; see `ArrayRows.update`."""
        penalty, sheets = gradients.values.new_zeros(()), list(gradients.padded)
        for table, table_rows, indices in zip(self._layout, rows, tables, strict=True):
            picks, parts = self._occurrences(table, indices, gradients, sheets)
            total = torch.ops.aten.embedding_dense_backward(parts, picks, len(table_rows), -1, False)
            if weight:
                values = table_rows[:, : total.shape[1]]
                penalty += values.square().sum()
                total += values * weight
            self._optimizer.update(table_rows, total, timestamp, factor)
        return penalty

    def _occurrences(
        self,
        table: TableColumns,
        indices: TableIndices[torch.Tensor],
        gradients: Gathered,
        sheets: list[torch.Tensor],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Local rows [O] of a table's occurrences and the gradients by them, [O, D + weight]."""
        picks, parts = [], []
        if table.singles:
            picks.append(indices.singles.flatten())
            parts.append(self._of_fields(gradients, table.singles, table.dimension))
        for column, bag in zip(table.bags, indices.bags, strict=True):
            gradient = _scaled(self._of_fields(gradients, (column.field,), table.dimension), column, bag)
            picks.append(bag.values)
            parts.append(gradient[_bags(bag)])
        for column, sequence in zip(table.sequences, indices.sequences, strict=True):
            gradient = sheets.pop(0)[_places(sequence, column.max_values)]
            picks.append(sequence.values)
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


def _scaled(sums: torch.Tensor, column: BagColumn, bag: Jagged[torch.Tensor]) -> torch.Tensor:
    """Sums [B, .] by the examples of a bag, or gradients by them, divided by how many values each has for a mean."""
    return sums if column.pooling == "sum" else sums / values_of(bag).clamp(min=1)[:, None]


def _bags(jagged: Jagged[torch.Tensor]) -> torch.Tensor:
    """int64 [V]: the example that each value belongs to."""
    offsets = jagged.offsets
    examples = torch.arange(offsets.numel() - 1, device=offsets.device)
    return torch.repeat_interleave(examples, offsets[1:] - offsets[:-1], output_size=jagged.values.numel())


def _places(sequence: Jagged[torch.Tensor], length: int) -> torch.Tensor:
    """int64 [V]: where each value of the sequences lies in [B * length, D]."""
    bags, offsets = _bags(sequence), sequence.offsets
    return bags * length + torch.arange(bags.numel(), device=offsets.device) - offsets[bags]
