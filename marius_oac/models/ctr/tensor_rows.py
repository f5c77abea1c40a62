"""The counterpart of `rows.ArrayRows` for tensors, on CUDA, with torch's operations; gradients are summed up and rows
updated by the kernels of `kernels.gpu` where they are used.

Guarantees:
- The same tensors give the same bits on the same device, since the operations sum in a fixed order (the forward pass of
  embedding bags; the gradient of an embedding, which sorts).
- Nothing waits for the device.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn.functional import embedding_bag

from marius_oac.batches import Jagged, TableIndices
from marius_oac.kernels.gpu import choice
from marius_oac.models.compute.row_optimizers import RowOptimizer
from marius_oac.models.compute.summed import Parts, sorted_there
from marius_oac.models.ctr.rows import BagColumn, Fields, Gathered, TableColumns, values_of


class TensorRows:
    """Rows in tensors; see `ArrayRows`. `optimizer` updates the rows."""

    def __init__(self, layout: Sequence[TableColumns], weighted: bool, optimizer: RowOptimizer) -> None:
        self._layout, self._weighted, self._fields = tuple(layout), int(weighted), Fields.of(layout)
        self._optimizer = optimizer

    def gather(self, rows: Sequence[torch.Tensor], tables: Sequence[TableIndices[torch.Tensor]]) -> Gathered:
        """The network's inputs from the rows [n, D + weight + state] of each table; see `ArrayRows.gather`."""
        parts: dict[int, torch.Tensor] = {}
        padded, lengths = [], []
        for table, table_rows, indices in zip(self._layout, rows, tables, strict=True):
            values = table_rows[:, : table.dimension + self._weighted]
            values = values.contiguous() if table.bags else values  # for embedding bags
            if table.singles:
                picked = values[indices.singles]
                for i, field in enumerate(table.singles):
                    parts[field] = picked[i]
            for column, bag in zip(table.bags, indices.bags, strict=True):
                pooled = embedding_bag(bag.values, values, bag.offsets, mode="sum", include_last_offset=True)
                parts[column.field] = _scaled(pooled, column, bag)
            for each, sequence in zip(table.sequences, indices.sequences, strict=True):
                lengths.append(sequence.offsets[1:] - sequence.offsets[:-1])
                sheet = values.new_zeros(len(lengths[-1]) * each.max_values, table.dimension)
                sheet[_places(sequence, each.max_values)] = values[sequence.values, : table.dimension]
                padded.append(sheet)
        nothing = rows[0].new_empty(tables[0].singles.shape[1], 0)  # if there are only sequences
        dimensions = self._fields.dimensions
        embeddings = torch.cat([nothing, *(parts[field][:, :size] for field, size in enumerate(dimensions))], 1)
        last = [parts[field][:, -1:] for field in range(len(dimensions))]
        weights = torch.cat([nothing, *last], 1) if self._weighted else None
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
            if choice.chosen(parts.device) and parts.dtype == torch.float32:
                if weight:
                    penalty += table_rows[:, : parts.shape[1]].square().sum()
                found = Parts(parts, indices.order or sorted_there(picks, len(table_rows)))
                self._optimizer.update_parts(table_rows, found, timestamp, factor, decay=weight)
                continue
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
        """The local row of each occurrence in a table, int64 [O], and its gradient, float32 [O, D + weight]."""
        picks, parts = [], []
        if table.singles:
            picks.append(indices.singles.flatten())
            parts.append(self._of_fields(gradients, table.singles, table.dimension))
        for column, bag in zip(table.bags, indices.bags, strict=True):
            gradient = _scaled(self._of_fields(gradients, (column.field,), table.dimension), column, bag)
            picks.append(bag.values)
            parts.append(gradient[_bags(bag)])
        for each, sequence in zip(table.sequences, indices.sequences, strict=True):
            gradient = sheets.pop(0)[_places(sequence, each.max_values)]
            picks.append(sequence.values)
            parts.append(torch.nn.functional.pad(gradient, (0, self._weighted)))
        if len(parts) == 1:
            return picks[0], parts[0]
        return torch.cat(picks), torch.cat(parts)

    def _of_fields(self, gradients: Gathered, fields: Sequence[int], dimension: int) -> torch.Tensor:
        """The gradients of fields of one width, field after field, float32 [F * B, D + weight]."""
        columns = [self._fields.columns[field] for field in fields]
        parts = torch.cat([gradients.values[:, column : column + dimension] for column in columns])
        if not self._weighted:
            return parts
        return torch.cat((parts, torch.cat([gradients.weights[:, field : field + 1] for field in fields])), 1)


def _scaled(sums: torch.Tensor, column: BagColumn, bag: Jagged[torch.Tensor]) -> torch.Tensor:
    """Sums [B, .] over bags, or their gradients, divided by the number of values if the pooling is mean."""
    return sums if column.pooling == "sum" else sums / values_of(bag).clamp(min=1)[:, None]


def _bags(jagged: Jagged[torch.Tensor]) -> torch.Tensor:
    """The example of each value, int64 [V]."""
    offsets = jagged.offsets
    examples = torch.arange(offsets.numel() - 1, device=offsets.device)
    return torch.repeat_interleave(examples, offsets[1:] - offsets[:-1], output_size=jagged.values.numel())


def _places(sequence: Jagged[torch.Tensor], length: int) -> torch.Tensor:
    """The index of each value of the sequences in the padded [B * length, D], int64 [V]."""
    bags, offsets = _bags(sequence), sequence.offsets
    return bags * length + torch.arange(bags.numel(), device=offsets.device) - offsets[bags]
