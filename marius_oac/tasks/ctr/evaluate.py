"""Metrics of a model of clicks on log files. Processes that evaluate together predict consecutive blocks each; the
leading one computes the metrics from all labels and probabilities, in the order of the examples."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np

from marius_oac.data.logs.files import LogFile
from marius_oac.evaluation.binary_metrics import ClickMetrics
from marius_oac.evaluation.sharing import UNSHARED, Sharing
from marius_oac.runtime.console import logger
from marius_oac.runtime.files.atomic import disk_errors
from marius_oac.tasks.ctr.predict import ClickPredictor, FileBlock
from marius_oac.types import present

MILLION = 1_000_000
_EXAMPLE_BYTES = 8  # of a label and a probability


def evaluate_files(
    predictor: ClickPredictor, files: Sequence[LogFile], by_million: bool = False, among: Sharing = UNSHARED
) -> dict[str, Any]:
    """Returns metrics of the predictions for files with labels, over all their examples; of several processes the
    leading one does, and others return nothing.

    `unknown_ids` counts ids whose key was never trained. With `by_million` the list `millions` has the AUC and log loss
    of every million examples in turn (whole blocks of `evaluation.batch_size`), the last one of what is left.
    """
    blocks, before, millions = predictor.cut(files), predictor.unknown_ids, []
    if among.rank:
        _give(predictor, files, blocks, among)
        _sum(predictor.unknown_ids - before, among)
        return {}
    with ExitStack() as stack:
        metrics = stack.enter_context(ClickMetrics())
        part, waiting = metrics, 0
        for labels, probabilities in _all(predictor, files, blocks, among):
            metrics.add(labels, probabilities)
            if not by_million:
                continue
            if not waiting:
                part = stack.enter_context(ClickMetrics())
            part.add(labels, probabilities)
            waiting += labels.size
            if waiting >= MILLION:
                millions.append(part.result())
                waiting = 0
        unknown = _sum(predictor.unknown_ids - before, among)
        if waiting:
            millions.append(part.result())
        found: dict[str, Any] = {**metrics.result(), "unknown_ids": unknown}
    if math.isnan(found["auc"]):
        click = "no click" if math.isnan(found["calibration"]) else "a click"
        logger.warning(f"all {found['examples']:,} examples are {click}: no AUC without both classes (null in files)")
    if by_million:
        found["millions"] = [{name: each[name] for name in ("examples", "auc", "log_loss")} for each in millions]
    return found


def _own(
    predictor: ClickPredictor, files: Sequence[LogFile], blocks: Sequence[FileBlock], among: Sharing
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields labels and probabilities, float32 [n], of each block that this process predicts."""
    share = among.share(len(blocks))
    shown = among.rank == 0
    for examples, probabilities in predictor.blocks(files, blocks[share.start : share.stop], True, shown):
        yield present(examples.labels), probabilities
        among.turn()


def _all(
    predictor: ClickPredictor, files: Sequence[LogFile], blocks: Sequence[FileBlock], among: Sharing
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields labels and probabilities of all blocks, in order, on the leading process, which has the first share."""
    yield from _own(predictor, files, blocks, among)
    others = blocks[among.of_others(len(blocks)).start :]
    if not others:
        return
    with disk_errors(_folder()), tempfile.TemporaryFile() as kept:
        among.collected(cast(BinaryIO, kept), _num_bytes(others))
        for each in others:
            numbers = np.frombuffer(kept.read(_num_bytes([each])), np.float32)
            yield numbers[: each.examples], numbers[each.examples :]


def _give(predictor: ClickPredictor, files: Sequence[LogFile], blocks: Sequence[FileBlock], among: Sharing) -> None:
    """Predicts this process's share for the leading one."""
    with disk_errors(_folder()), tempfile.TemporaryFile() as kept:
        for labels, probabilities in _own(predictor, files, blocks, among):
            kept.write(labels.tobytes() + probabilities.tobytes())
        others = blocks[among.of_others(len(blocks)).start :]
        if others:
            among.collected(cast(BinaryIO, kept), _num_bytes(others))


def _sum(count: int, among: Sharing) -> int:
    """The sum over all processes, on the leading one."""
    found = among.collected(BytesIO(np.int64(count).tobytes()), 8 * among.count)
    return int(np.frombuffer(found.read(), np.int64).sum())


def _num_bytes(blocks: Sequence[FileBlock]) -> int:
    return _EXAMPLE_BYTES * sum(each.examples for each in blocks)


def _folder() -> Path:
    return Path(tempfile.gettempdir())
