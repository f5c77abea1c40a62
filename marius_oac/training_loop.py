"""Epochs, evaluations and checkpoints around the pipeline.

The road is cut into segments that end at epochs, at checkpoints and where the user stops; the pipeline is drained
there, so that a checkpoint and an evaluation see one moment. Where a segment ends changes no bits.

A checkpoint is saved before evaluating. A run that resumes at the end of an epoch evaluates that epoch again, to the
same numbers, so nothing that an evaluation finds is lost.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import psutil

from marius_oac.errors import Interrupted
from marius_oac.memory import peak_rss
from marius_oac.reporting import SegmentReport, TrainingProgress
from marius_oac.run import RunFolder
from marius_oac.session import Session
from marius_oac.signals import stop_on_interrupt


@dataclass(frozen=True)
class Position:
    """Where a run stands; saved with every checkpoint.

    Attributes:
        sequence: the next batch.
        seconds: time spent training; evaluations and checkpoints are not counted.
        examples, lost, refused, replaced: totals so far.
        cache_rows: the most rows that the device cache has held.
        best: the best validation MRR, -1 before the first; `best_epoch` when; `worse` evaluations since.
    """

    sequence: int = 0
    seconds: float = 0.0
    examples: int = 0
    lost: int = 0
    refused: int = 0
    replaced: int = 0
    cache_rows: int = 0
    best: float = -1.0
    best_epoch: int = 0
    worse: int = 0


class TrainingLoop:
    """Runs a session to its last epoch and leaves everything in the run's folder."""

    def __init__(self, session: Session, folder: RunFolder):
        self.session, self.folder, self.config = session, folder, session.config
        self.position = Position()
        self.per_epoch = session.planner.batches_per_epoch
        self.last = self.config.training.epochs * self.per_epoch
        self._evaluation_is_due = False

    def restore(self, name: str | None) -> None:
        """Puts tables, dense parameters and position back to the newest checkpoint, or the named one.

        A run that was stopped before its first checkpoint starts again: the initial values are the same.
        """
        if name is None and not self.folder.checkpoints.names():
            self.folder.rewind(0)
            return
        checkpoint = self.folder.checkpoints.open(name)
        checkpoint.restore(self.session.stores)
        self.session.step.load_dense_state(checkpoint.dense())
        self.position = Position(**checkpoint.extra)
        self.folder.rewind(self.position.sequence)
        self._evaluation_is_due = self._at_epoch() and self.position.sequence > 0

    def run(self) -> None:
        """Trains, evaluates and writes the summary.

        Raises:
            Interrupted: the user stopped the run; a checkpoint of that moment was written.
        """
        pipeline = self.session.pipeline
        with (
            stop_on_interrupt(pipeline.request_stop),
            TrainingProgress(self.position.sequence, self.last) as progress,
        ):
            if self._evaluation_is_due:
                self._evaluate(progress)
            while self.position.sequence < self.last and not self._out_of_patience():
                self._segment(progress)
                if pipeline.stop_requested and self.position.sequence < self.last:
                    raise Interrupted(
                        f"stopped at batch {self.position.sequence:,}; go on with: marius-oac resume {self.folder.path}"
                    )
                if self._at_epoch():
                    self._evaluate(progress)
            self._finish(progress)

    def _at_epoch(self) -> bool:
        return self.position.sequence % self.per_epoch == 0

    def _epochs_done(self) -> int:
        return self.position.sequence // self.per_epoch

    def _out_of_patience(self) -> bool:
        stopping = self.config.training.early_stopping
        return stopping is not None and self.position.worse >= stopping.patience

    def _segment(self, progress: TrainingProgress) -> None:
        """Runs up to the next epoch's end or checkpoint; saves where one is due."""
        first, every = self.position.sequence, self.config.checkpoint.every_batches
        epoch = self._epochs_done()
        last = (epoch + 1) * self.per_epoch
        if every:
            last = min(last, (first // every + 1) * every)
        report = SegmentReport(epoch, self.config.metrics.every_batches, self.folder.log, self._stages, progress)
        began = time.perf_counter()
        self.session.report_to(report.add)
        reached = self.session.pipeline.run(first, last)
        report.flush()
        self._advance(reached, time.perf_counter() - began, report)
        if self.config.pipeline.order == "arrival":
            self.folder.append_order(report.computation_order())
        if self._checkpoint_is_due(reached < last):
            self._save()
        if self._at_epoch():
            self._end_epoch(epoch, progress)

    def _stages(self) -> Mapping[str, Any]:
        return {"seconds": self.session.telemetry.take(), "channel_fill": self.session.pipeline.channel_fill()}

    def _advance(self, reached: int, seconds: float, report: SegmentReport) -> None:
        position, totals = self.position, report.totals
        self.position = replace(
            position,
            sequence=reached,
            seconds=position.seconds + seconds,
            examples=position.examples + totals.examples,
            lost=position.lost + totals.lost,
            refused=position.refused + totals.refused,
            replaced=position.replaced + totals.replaced,
            cache_rows=max(position.cache_rows, totals.peak_cached_rows),
        )

    def _checkpoint_is_due(self, stopped: bool) -> bool:
        sequence, config = self.position.sequence, self.config.checkpoint
        at_batches = config.every_batches and sequence % config.every_batches == 0
        at_epochs = self._at_epoch() and self._epochs_done() % config.every_epochs == 0
        before_evaluation = self._at_epoch() and self._evaluates_after(self._epochs_done())
        return bool(stopped or at_batches or at_epochs or before_evaluation or sequence == self.last)

    def _save(self) -> None:
        self.folder.checkpoints.save(
            self.position.sequence,
            self.session.stores,
            self.session.step.dense_state(),
            asdict(self.position),
            self.config.checkpoint.keep,
        )

    def _end_epoch(self, epoch: int, progress: TrainingProgress) -> None:
        position = self.position
        rate = position.examples / position.seconds
        self.folder.log(
            {"kind": "epoch", "epoch": epoch, "batch": position.sequence - 1, "training.seconds": position.seconds,
             "training.examples_per_second": rate, "training.lost_updates": position.lost,
             "training.replaced_rows": position.replaced, "memory.peak_rss_bytes": peak_rss()}
        )  # fmt: skip
        progress.say(f"epoch {epoch + 1} of {self.config.training.epochs}: {rate:,.0f} examples/s")

    def _evaluates_after(self, epochs: int) -> bool:
        every = self.config.evaluation.every
        has_edges = self.session.graph.num_edges["valid"] > 0
        return has_edges and every > 0 and (epochs % every == 0 or epochs == self.config.training.epochs)

    def _evaluate(self, progress: TrainingProgress) -> None:
        """Validation, best checkpoint and patience, at the end of an epoch."""
        epochs = self._epochs_done()
        if not self._evaluates_after(epochs):
            return
        metrics = self.session.evaluate("valid")
        mrr = metrics[self.session.evaluator.decisive_metric]
        stopping = self.config.training.early_stopping
        better = mrr > self.position.best + (stopping.min_delta if stopping else 0.0)
        line = {"kind": "evaluation", "split": "valid", "epoch": epochs - 1, "batch": self.position.sequence - 1}
        self.folder.log(line | {"training.seconds": self.position.seconds} | metrics)
        progress.say(f"  valid MRR {mrr:.4f}" + (" (best so far)" if better else ""))
        if better:
            self.position = replace(self.position, best=mrr, best_epoch=epochs, worse=0)
            self.folder.checkpoints.mark_best(self.folder.checkpoints.names()[-1])
        else:
            self.position = replace(self.position, worse=self.position.worse + 1)

    def _finish(self, progress: TrainingProgress) -> None:
        """The final numbers; with early stopping those of the best checkpoint."""
        position, checkpoints = self.position, self.folder.checkpoints
        summary: dict[str, Any] = {
            "training.epochs": self._epochs_done(),
            "training.seconds": position.seconds,
            "training.examples_per_second": position.examples / position.seconds,
            "training.lost_updates": position.lost,
            "training.refused_rows": position.refused,
            "training.replaced_rows": position.replaced,
            "training.peak_cache_rows": position.cache_rows,
        }
        if self.config.training.early_stopping and checkpoints.best():
            checkpoint = checkpoints.open("best")
            checkpoint.restore(self.session.stores)
            self.session.step.load_dense_state(checkpoint.dense())
            summary["training.best_epoch"] = position.best_epoch
        if position.best >= 0:
            summary[f"valid.{self.session.evaluator.decisive_metric}"] = position.best
        for store in self.session.stores:
            summary[f"tables.{store.name}.sha256"] = store.fingerprint()
        summary["tables.dense.sha256"] = self.session.dense_fingerprint()
        if self.session.graph.num_edges["test"]:
            progress.say("test")
            summary |= {f"test.{name}": value for name, value in self.session.evaluate("test").items()}
        summary["memory.peak_rss_bytes"] = peak_rss()
        summary["machine"] = f"{os.cpu_count()} cores, {psutil.virtual_memory().total >> 30} GiB, {self.session.device}"
        self.folder.write_summary(summary)
