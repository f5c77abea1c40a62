"""Predicts clicks for the examples of log files with the rows and the network of a model, without changing it.

A key that was never trained has the initial row of its key; such ids are counted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any, Protocol

import numpy as np
import torch

from marius_oac.batches import ClickBatch
from marius_oac.config.ctr import CtrConfig
from marius_oac.data.logs.batches import table_indices, table_keys
from marius_oac.data.logs.columns import LogBlock
from marius_oac.data.logs.files import BlockReader, LogFile
from marius_oac.data.logs.tables import FeatureTable
from marius_oac.evaluation.binary_metrics import ClickMetrics
from marius_oac.models.ctr.step import CtrStep
from marius_oac.runtime.console import logger
from marius_oac.runtime.progress import Progress
from marius_oac.types import map_arrays, present

MILLION = 1_000_000


class KeyedRows(Protocol):
    """Looks up rows by key without changing them: a `KeyTable`, or one on other nodes."""

    def look_up(
        self, vocabularies: np.ndarray, keys: np.ndarray, checks: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, int]:
        """See `KeyTable.look_up`."""


class ClickPredictor:
    """Predicts probabilities of clicks with the present parameters of a model."""

    def __init__(
        self,
        config: CtrConfig,
        tables: Sequence[FeatureTable],
        key_tables: Sequence[KeyedRows],
        step: CtrStep,
        device: torch.device,
    ):
        self._config, self._tables, self._key_tables = config, tables, key_tables
        self._step, self._device = step, device
        self.unknown_ids = 0

    def files(self, files: Sequence[LogFile], labelled: bool) -> Iterator[tuple[LogBlock, np.ndarray]]:
        """Yields blocks of n examples of files, in order, with their probabilities, float32 [n]."""
        size = self._config.evaluation.batch_size
        with (
            BlockReader(files, self._config.data, with_labels=labelled) as reader,
            Progress("predicting", "examples", sum(file.rows for file in files)) as progress,
        ):
            for number, file in enumerate(files):
                for block in range(-(-file.rows // size)):
                    examples = reader.block(number, block, size)
                    yield examples, self.predict(examples)
                    progress.add(examples.size)

    def predict(self, examples: LogBlock) -> np.ndarray:
        """Returns the probabilities of n examples, float32 [n]."""
        rows, tables = [], []
        for table, key_table in zip(self._tables, self._key_tables, strict=True):
            keys = table_keys(table, examples)
            values, local, unknown = key_table.look_up(*keys.asked)
            self.unknown_ids += unknown
            rows.append(values)
            tables.append(table_indices(table, keys, local))
        data = ClickBatch(numbers=examples.numbers, tables=tuple(tables))
        if self._device.type == "cpu":
            return self._step.predict(rows, data)
        moved = map_arrays(data, lambda array: torch.from_numpy(np.ascontiguousarray(array)).to(self._device))
        tensors = [torch.from_numpy(values).to(self._device) for values in rows]
        return self._step.predict(tensors, moved).cpu().numpy()


def evaluate_files(predictor: ClickPredictor, files: Sequence[LogFile], by_million: bool = False) -> dict[str, Any]:
    """Returns metrics of the predictions for files with labels, over all their examples.

    `unknown_ids` counts ids whose key was never trained. With `by_million` the list `millions` has the AUC and log loss
    of every million examples in turn (whole blocks of `evaluation.batch_size`), the last one of what is left.
    """
    before, millions = predictor.unknown_ids, []
    with ExitStack() as stack:
        metrics, part = stack.enter_context(ClickMetrics()), stack.enter_context(ClickMetrics())
        waiting = 0
        for examples, probabilities in predictor.files(files, labelled=True):
            labels = present(examples.labels)
            metrics.add(labels, probabilities)
            if not by_million:
                continue
            part.add(labels, probabilities)
            waiting += examples.size
            if waiting >= MILLION:
                millions.append(part.result())
                part, waiting = stack.enter_context(ClickMetrics()), 0
        if waiting:
            millions.append(part.result())
        found: dict[str, Any] = {**metrics.result(), "unknown_ids": predictor.unknown_ids - before}
    if math.isnan(found["auc"]):
        click = "no click" if math.isnan(found["calibration"]) else "a click"
        logger.warning(f"all {found['examples']:,} examples are {click}: no AUC without both classes (null in files)")
    if by_million:
        found["millions"] = [{name: each[name] for name in ("examples", "auc", "log_loss")} for each in millions]
    return found
