"""A small batch of made-up clicks, with a step of the run's own: see `runs.arithmetic`."""

from __future__ import annotations

import numpy as np
import torch

from marius_oac.batches import ClickBatch, Jagged, TableIndices
from marius_oac.config.ctr import CtrConfig
from marius_oac.data.logs.tables import FeatureTable
from marius_oac.models.compute.update import Update
from marius_oac.runs.arithmetic import Sample, numbers, picked
from marius_oac.tasks.ctr import build

_ROWS, _CLICKS = 500, 256


def clicks(config: CtrConfig, tables: list[FeatureTable], device: torch.device, threads: int) -> Sample:
    """For a click log."""
    count = min(config.training.batch_size, _CLICKS)
    network = build.make_ctr_network(config)
    update = Update.here(config.training.optimizer, config.training.embedding_l2)
    layouts = [build.row_layout(config, table, network) for table in tables]

    def bag(number: int) -> Jagged[np.ndarray]:
        lengths = picked(count, 3, number + 1)
        offsets = np.concatenate(([0], np.cumsum(lengths)))
        return Jagged(picked(int(offsets[-1]), _ROWS, 11 + number), offsets)

    data = ClickBatch(
        numbers=numbers(count, config.data.num_numbers), labels=picked(count, 2, 1).astype(np.float32),
        tables=tuple(
            TableIndices(
                singles=picked(len(table.singles) * count, _ROWS, 7).reshape(len(table.singles), count),
                bags=tuple(bag(number) for number in range(len(table.bags))),
                sequences=tuple(bag(number) for number in range(len(table.sequences))),
            )
            for table in tables
        ),
        weights=None if config.data.weight is None else np.abs(numbers(count)),
    )  # fmt: skip
    step = build.make_ctr_step(config, tables, network, device, threads, update)
    return Sample(step, data, [(_ROWS, each.dimension, each.state_width) for each in layouts])
