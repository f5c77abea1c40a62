"""Epochs, evaluations and checkpoints around the pipeline.

Training is cut into segments that end at epochs, at checkpoints and where the user stops. The pipeline is drained
there, so that checkpoints and evaluations see a consistent state. Where a segment ends does not change results.

A checkpoint is saved before an evaluation, and holds none of its results. A run that resumes at the end of an epoch
evaluates it again, with the same results. So a signal stops an evaluation, and whatever else follows the last batch, at
once; of processes that evaluate together the one that hears it tells the others.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from functools import partial, reduce
from typing import Any

import psutil

from marius_oac.errors import CheckpointError, ConfigError, DivergedError, Interrupted
from marius_oac.models.compute.multiply import kernels_of
from marius_oac.pipeline.bound import bound
from marius_oac.runs.callbacks import NO_CALLBACKS, Callbacks
from marius_oac.runs.checkpoints.checkpoint import Checkpoint, fitting, name_of
from marius_oac.runs.checkpoints.retention import START, read_saved
from marius_oac.runs.folder.folder import RunFolder
from marius_oac.runs.folder.metrics import progressive_means
from marius_oac.runs.folder.position import Position
from marius_oac.runs.reporting import SegmentReport, Totals, TrainingProgress, first_loss, grown_loss
from marius_oac.runs.session import Session, name_of_device
from marius_oac.runtime.console import BOLD, GREEN, Painted, logger
from marius_oac.runtime.resuming import resume_command
from marius_oac.runtime.signals import Requests, StopSignal, stop_on_interrupt, stopped_at_once
from marius_oac.runtime.standstill import waits_for


class TrainingLoop:
    """Runs a session to its last epoch and leaves everything in the run's folder."""

    def __init__(self, session: Session, folder: RunFolder, callbacks: Callbacks = NO_CALLBACKS):
        self.session, self.folder, self.config, self.peers = session, folder, session.config, session.home.peers
        self._callbacks = callbacks
        folder.metrics.listeners.append(callbacks.line)
        self.position = Position(device=name_of_device(session.device))
        self._alone = self.peers.share(folder.checkpoints) == 1
        self._stops = Requests()
        self.schedule = session.task.schedule
        self._evaluation_is_due = False

    def restore(self, name: str | None) -> None:
        """Restores tables, dense parameters and position from the newest checkpoint, or the named one.

        A run that was stopped before its first checkpoint starts again, and so does one where `START` is named: the
        initial values are the same. Raises CheckpointError, and removes nothing, if its checkpoints are lost.
        """
        names = self.peers.common(self.folder.checkpoints.names())
        if name == START or (name is None and not names):
            if name is None and self.peers.any(self.folder.has_saved()):
                raise CheckpointError(
                    "the run has saved checkpoints, and they are gone: bring them back, or train it again from the "
                    f"beginning: --checkpoint {START}",
                    self.folder.checkpoints.folder,
                )
            self.session.task.check_data_from(0)
            self.folder.rewind(0, wait=self.peers.wait)
            return
        checkpoint = self.peers.opened(self.folder.checkpoints, name or names[-1])
        saved = read_saved(self.folder.rows) or ""
        if name is None and saved > checkpoint.name:
            logger.warning(f"checkpoint {saved} is gone: the run goes on from {checkpoint.name}")
        position = self._position_of(checkpoint)
        self._load(checkpoint)
        self.position = position
        if saved < checkpoint.name:  # the run crashed before `saved.json` was written
            self.folder.note_saved(position.batch_index)
        self.folder.rewind(self.position.batch_index, checkpoint.extra, self.peers.wait)
        self._restore_best()
        self._evaluation_is_due = self._at_epoch()

    def take_over(self, before: Checkpoint) -> None:
        """Continues from a checkpoint of other nodes, of which all parts are at hand."""
        position = self._position_of(before)
        self.folder.checkpoints.keep_for(self.session.stores)
        with fitting(before):
            self.session.home.take_over(before, self.session.parts)
        self.position = replace(position, best=-1.0, best_epoch=0, worse=0)
        self.folder.rewind(self.position.batch_index, wait=self.peers.wait)
        self._evaluation_is_due = self._at_epoch()

    def _position_of(self, checkpoint: Checkpoint) -> Position:
        """The position of a checkpoint. Raises InputError if this run can't continue from it."""
        position = Position.load(checkpoint)
        if position.batch_index > self.schedule.last:
            raise ConfigError(
                f"{self.config.training.epochs} epochs are less than this run has trained already; start again with "
                "--checkpoint and an earlier one, or ask for more",
                "training.epochs",
            )
        here = self.session.check_device(position.device)
        self.session.task.check_data_from(position.batch_index)
        return replace(position, device=here)

    def _load(self, checkpoint: Checkpoint) -> None:
        self.folder.checkpoints.keep_for(self.session.stores)
        self.peers.agreed(lambda: self.session.load_rows(checkpoint, self.folder.checkpoints))
        with fitting(checkpoint):
            self.session.home.load_dense(self.session.parts, checkpoint)

    def _restore_best(self) -> None:
        """Marks the checkpoint that was the best at this position, unless it has been removed since."""
        checkpoints = self.folder.checkpoints
        best: str | None = name_of(self.schedule.begin(min(self.position.best_epoch, len(self.schedule.ends))))
        if self.position.best < 0 or best not in self.peers.common(checkpoints.names()):
            best = None
            self.position = replace(self.position, best=-1.0, best_epoch=0, worse=0)
        checkpoints.mark_best(best)

    def run(self) -> None:
        """Trains, evaluates and writes the summary.

        Raises:
            Interrupted: the user stopped the run; a checkpoint of that moment was written.
            DivergedError: a number became NaN or infinite.
        """
        self.peers.wait()  # else a process could read rows that another one is still loading
        with (
            stop_on_interrupt(self.session.pipeline.request_stop, partial(waits_for, 1.0)) as self._stops,
            TrainingProgress(self.position.batch_index, self.schedule.last, self.peers.leads) as progress,
        ):
            if self._evaluation_is_due:
                self._evaluate(progress)
            while self.position.batch_index < self.schedule.last and not self._out_of_patience():
                self._stop_if_asked()
                if self._at_epoch():
                    self._before_epoch(progress)
                self._segment(progress)
                if self._at_epoch():
                    self._stop_if_asked()
                    self._evaluate(progress)
            with self._stopped_at_once():
                self._finish(progress)

    def _before_epoch(self, progress: TrainingProgress) -> None:
        """Measures what must be measured before an epoch is trained."""
        try:
            with self._stopped_at_once():
                metrics = self.session.before_epoch(self._epochs_done())
        except Interrupted:
            self._save_where_it_stands()
            raise
        self._add_progressive(metrics, self._epochs_done(), progress)

    def _add_progressive(self, metrics: dict[str, float] | None, epoch: int, progress: TrainingProgress) -> None:
        if metrics:
            about = {"kind": "evaluation", "split": "progressive", "epoch": epoch}
            self.folder.metrics.add({**about, "batch": self.position.batch_index - 1, **metrics})
            value = f"{self.config.decisive_metric} {metrics[self.config.decisive_metric]:.4f}"
            progress.say(f"  epoch {epoch + 1}, predicted before it is trained on: {value}")

    def _stop_if_asked(self) -> None:
        stop = self.peers.any(self.session.pipeline.stop_requested or self.session.parts.segments.stop_requested)
        if stop and self.position.batch_index < self.schedule.last:
            self._save_where_it_stands()
            raise self._interrupted()

    def _save_where_it_stands(self) -> None:
        """Saves a checkpoint of this moment, unless there is one: a segment may end where none is due."""
        if self.position.batch_index and name_of(self.position.batch_index) not in self.folder.checkpoints.names():
            self._save()

    def _interrupted(self, number: int | None = None) -> Interrupted:
        number = number or self._stops.first
        self._stops.stopping(number)
        where = f"stopped at batch {self.position.batch_index:,}"
        return Interrupted(f"{where}; go on with: {resume_command(self.folder.path)}", number)

    @contextmanager
    def _stopped_at_once(self) -> Iterator[None]:
        """Within the block a signal, also an earlier one, stops the run at once: a resumed run does the work again. Of
        several processes see `nodes.sharded.evaluation`."""
        try:
            with stopped_at_once() if self._alone else nullcontext():
                if self._alone and self.session.pipeline.stop_requested:
                    raise self._interrupted()
                yield
        except StopSignal as error:
            raise self._interrupted(error.number) from None
        except BaseException as error:
            # A library may have turned the interrupt into another error.
            if isinstance(error, KeyboardInterrupt) or self._stops.raised:
                raise self._interrupted() from None
            raise

    def _at_epoch(self) -> bool:
        return self.schedule.is_end(self.position.batch_index)

    def _epochs_done(self) -> int:
        return self.schedule.epochs_done(self.position.batch_index)

    def _out_of_patience(self) -> bool:
        stopping = self.config.training.early_stopping
        return stopping is not None and self.position.worse >= stopping.patience

    def _segment(self, progress: TrainingProgress) -> None:
        """Runs up to the next epoch's end or checkpoint; saves where one is due."""
        first, every = self.position.batch_index, self.config.checkpoint.every_batches
        epoch = self._epochs_done()
        last = self.schedule.ends[epoch]
        if every:
            last = min(last, (first // every + 1) * every)
        segments = self.session.parts.segments
        last = min(last, segments.next_pause(first) or last)
        pipeline, telemetry = self.session.pipeline, self.session.telemetry
        about = first, epoch, self.config.metrics.every_batches, self.folder.metrics.add
        report = SegmentReport(*about, telemetry.take, pipeline.channel_fill, progress, pipeline.position)
        telemetry.take()
        self.session.report_to(self._callbacks.beside(report.add))
        try:
            segments.begin(first)
            reached = segments.reached(pipeline.run(first, last))
            segments.end(reached == self.schedule.last)
            self.peers.wait()  # rows are consistent once every process has written its batches
        except DivergedError as error:
            raise self._diverged(error) from error
        report.flush()
        self._decide(reached, epoch, progress)
        if reached == first:
            return  # stopped before the first batch
        self._check_loss(reached, report)
        examples, loss = segments.trained_outside()
        self._advance(reached, report.totals + Totals(examples=examples, loss=loss))
        self._add_progressive(self.session.predicted(first), epoch, progress)  # the segment's checkpoint has the line
        if self.config.pipeline.order == "arrival":
            self.folder.order.append(report.computation_order())
        if self._at_epoch():
            self._end_epoch(epoch, progress)
        if self._checkpoint_is_due(reached < last):
            self._save()

    def _check_loss(self, reached: int, report: SegmentReport) -> None:
        """Raises DivergedError if the loss has grown out of proportion since the first batches."""
        heard = self.peers.gather([report.first_loss(), report.last_loss()])
        first = first_loss(self.position.first_loss, heard)
        if wrong := grown_loss(first, heard):
            raise self._diverged(DivergedError(reached - 1, wrong))
        self.position = replace(self.position, first_loss=first)

    def _decide(self, reached: int, epoch: int, progress: TrainingProgress) -> None:
        for line in self.session.parts.segments.mode_changes(reached):
            self.folder.metrics.add({"kind": "mode", "epoch": epoch, "batch": reached - 1, **line})
            if line["switches"]:
                progress.say(f"  {line['mode']} from batch {reached:,} on: {line['reason']}")

    def _diverged(self, error: DivergedError) -> DivergedError:
        """The error, with the checkpoint that is left."""
        names = self.folder.checkpoints.names()
        return DivergedError(
            error.batch_index, error.found, self.folder.checkpoints.folder / names[-1] if names else None
        )

    def _advance(self, reached: int, totals: Totals) -> None:
        epoch = totals if self._at_epoch() else self.position.epoch + totals
        self.position = replace(self.position, batch_index=reached, total=self.position.total + totals, epoch=epoch)

    def _checkpoint_is_due(self, stopped: bool) -> bool:
        batch_index, config = self.position.batch_index, self.config.checkpoint
        at_batches = config.every_batches and batch_index % config.every_batches == 0
        at_epochs = self._at_epoch() and self._epochs_done() % config.every_epochs == 0
        before_evaluation = self._at_epoch() and self._evaluation_follows()
        return bool(stopped or at_batches or at_epochs or before_evaluation or batch_index == self.schedule.last)

    def _save(self) -> None:
        self.session.task.check_unchanged()
        self.folder.write_learned(self.session.task.learned_files())
        try:
            self.folder.checkpoints.save(
                self.position.batch_index,
                self.session.stores,
                self.session.step.dense_state(),
                self.position.dump() | self.folder.flushed_records(self.position.batch_index),
                self.config.checkpoint.keep,
                self.session.home.state_arrays(),
                self._all_have_saved,
                alike=not self._alone and self.session.dense_is_alike(),
            )
        except DivergedError as error:
            raise self._diverged(error) from error
        self._callbacks.checkpoint(self.folder.checkpoints.folder / name_of(self.position.batch_index))

    def _all_have_saved(self) -> None:
        self.peers.wait()  # else a crash could leave some processes with only the old one, and some with the new one
        self.folder.note_saved(self.position.batch_index)

    def _end_epoch(self, epoch: int, progress: TrainingProgress) -> None:
        """Logs the epoch before its checkpoint is saved, so that a resumed run has the line."""
        totals = self._of_all(self.position.epoch)
        line = {"kind": "epoch", "epoch": epoch, "batch": self.position.batch_index - 1}
        run = {"training.seconds": self.position.total.seconds} | self.session.of_process()
        line |= totals.metrics() | run | self.session.source.metrics() | self.session.home.summary()
        self.folder.metrics.add(line)
        name = Painted(f"epoch {epoch + 1} of {len(self.schedule.ends)}:", BOLD)
        progress.say(name, f" loss {totals.mean_loss():.4f}, {totals.rate():,.0f} examples/s")

    def _of_all(self, totals: Totals) -> Totals:
        """The totals of all processes."""
        return reduce(Totals.beside, [Totals(**each) for each in self.peers.gather(asdict(totals))])

    def _evaluation_follows(self) -> bool:
        every, epochs = self.config.evaluation.every, self._epochs_done()
        due = every > 0 and (epochs % every == 0 or self.position.batch_index == self.schedule.last)
        return due and self.session.task.has("valid")

    def _evaluate(self, progress: TrainingProgress) -> None:
        """Validates at the end of an epoch, marks the best checkpoint and counts patience."""
        if not self._evaluation_follows():
            return
        epochs, metric = self._epochs_done(), self.config.decisive_metric
        with self._stopped_at_once():
            metrics = self.session.evaluate("valid", whole=False)
        value, stopping = metrics[metric], self.config.training.early_stopping
        better = value > self.position.best + (stopping.min_delta if stopping else 0.0)
        line = {"kind": "evaluation", "split": "valid", "epoch": epochs - 1, "batch": self.position.batch_index - 1}
        self.folder.metrics.add(line | {"training.seconds": self.position.total.seconds} | metrics)
        progress.say(f"  valid {metric} {value:.4f} after epoch {epochs}", Painted(" (best so far)" * better, GREEN))
        if better:
            self.position = replace(self.position, best=value, best_epoch=epochs, worse=0)
            self.folder.checkpoints.mark_best(name_of(self.position.batch_index))
        else:
            self.position = replace(self.position, worse=self.position.worse + 1)

    def _say_what_bound_it(self, progress: TrainingProgress) -> None:
        """Of this process, and the numbers of threads with which it ends."""
        total, pipeline = self.position.total, self.session.pipeline
        found = bound(
            total.stage_seconds, total.seconds, pipeline.setting, self.config.data_grows, self.position.batch_index,
            self.session.home.peers.over_nodes,
        )  # fmt: skip
        if found:
            progress.say(found.line)

    def _finish(self, progress: TrainingProgress) -> None:
        """Writes the summary; with early stopping that of the best checkpoint."""
        position, total, checkpoints = self.position, self._of_all(self.position.total), self.folder.checkpoints
        self._say_what_bound_it(progress)
        chosen, best = name_of(position.batch_index), checkpoints.best()
        if self.config.training.early_stopping and best:
            chosen = best
            self._load(checkpoints.open(chosen))
        summary: dict[str, Any] = {
            "checkpoint": chosen,
            "training.epochs": self._epochs_done(),
            "training.batches": position.batch_index,
            "training.stopped_early": position.batch_index < self.schedule.last,
            "training.seconds": total.seconds,
            "training.examples_per_second": total.rate(),
            "training.lost_updates": total.lost,
            "training.refused_rows": total.refused,
            "training.replaced_rows": total.replaced,
            "training.peak_cache_rows": total.peak_cache_rows,
        }
        if position.best >= 0:
            summary["training.best_epoch"] = position.best_epoch
            summary[f"valid.{self.config.decisive_metric}"] = position.best
        for name, digest in self.session.home.fingerprints(self.session.stores).items():
            summary[f"tables.{name}.sha256"] = digest
        summary["tables.dense.sha256"] = self.session.dense_fingerprint()
        if self.session.task.validates_on_a_sample and self.config.evaluation.every:
            progress.say("all of valid")
            summary |= {f"valid.{name}": value for name, value in self.session.evaluate("valid").items()}
        if self.session.task.has("test"):
            progress.say("test")
            summary |= {f"test.{name}": value for name, value in self.session.evaluate("test").items()}
        self.session.home.finish(self.folder.path)
        summary |= self.session.home.summary() | self.session.source.metrics()
        summary |= self.session.of_process() | progressive_means(self.folder.metrics.lines())
        if self.session.home.memory_plan:
            summary["machine.memory_plan"] = self.session.home.memory_plan.by_place()
        machine = f"{os.cpu_count()} cores, {psutil.virtual_memory().total >> 30} GiB"
        summary["machine"] = f"{machine}, {self.session.device}, {kernels_of(self.config.compute)} kernels"
        self.folder.write_summary(summary)
