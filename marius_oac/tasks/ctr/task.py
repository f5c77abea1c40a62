"""Training and evaluating a click-through-rate model, as a task of the training loop."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from marius_oac.config.ctr import CtrConfig
from marius_oac.data.batches.rank_slice import WHOLE, RankSlice
from marius_oac.data.logs.batches import LogPlanner
from marius_oac.data.logs.doubts import doubts
from marius_oac.data.logs.files import BlockReader, LogFile, check_rows, scan_files
from marius_oac.data.logs.guess import offered
from marius_oac.data.logs.pieces import Pieces
from marius_oac.data.logs.run_log import LOG, RunLog
from marius_oac.data.logs.settle import EXAMPLES, settle
from marius_oac.data.logs.tables import FeatureTable
from marius_oac.data.splits import Split
from marius_oac.errors import ConfigError
from marius_oac.evaluation.progressive import merged
from marius_oac.evaluation.sharing import UNSHARED, Sharing
from marius_oac.models.compute.update import Update
from marius_oac.models.compute.user_code import named_code, own_files
from marius_oac.models.ctr.network import Network
from marius_oac.models.ctr.step import CtrStep
from marius_oac.runs.arithmetic import Sample
from marius_oac.runs.memory.plan import MemoryPlan
from marius_oac.runs.peers import Peers
from marius_oac.runs.rows import KeyedTables
from marius_oac.runs.segments import LocalSegments
from marius_oac.runs.stores import Tables
from marius_oac.runs.task import Components, Schedule, Task
from marius_oac.runtime.machine.binding import UNBOUND, Binding
from marius_oac.runtime.thread_pool import ALONE, ThreadPool
from marius_oac.storage.contract import ParameterStore, RowLayout
from marius_oac.storage.key_tables import key_arrays, key_counts, load_key_arrays, shared_by_shard
from marius_oac.storage.keys.table import KeyTable, SharedKeys, shared_by_all
from marius_oac.tasks.ctr import build, sample
from marius_oac.tasks.ctr.distinct import DistinctIds
from marius_oac.tasks.ctr.evaluate import evaluate_files
from marius_oac.tasks.ctr.memory import plan_ctr_memory
from marius_oac.tasks.ctr.names import keep_names
from marius_oac.tasks.ctr.predict import ClickPredictor
from marius_oac.tasks.ctr.progressive import PredictingStep
from marius_oac.types import Step, present

_MOST_FILES, _FEW = 32, 1 << 10  # files to train on, and examples of each, that are read before a run begins


def start_ctr_task(config: CtrConfig) -> tuple[CtrTask, list[str]]:
    """Returns the task of a new run, with the transforms of its numeric columns chosen, and remarks for the user.

    Raises:
        InputError: a file is missing or can't be trained on, or the schema has nothing that could have rows.
    """
    if not config.data.numeric and not any(config.data.keyed()):
        raise ConfigError(f"the schema names no feature; {offered(config.data)}", "data.categorical")
    log = RunLog.start(config)
    data, notes = settle(config.data, log.files)
    notes = [*doubts(config.data, log.files[0].path), *notes]
    if not any(data.features()):
        raise ConfigError("the schema names no feature that has rows: all its numbers are constant", "data.numeric")
    return CtrTask(config.model_copy(update={"data": data}), log), notes


def resume_ctr_task(config: CtrConfig, log: RunLog | None, data: Sequence[str]) -> CtrTask:
    """Returns the task of a run that continues, on its log and then on the files of `data`."""
    log = present(log)
    return CtrTask(config, log.extended(config, data) if data else log.with_epochs(config.training.epochs))


class CtrTask(Task):
    """Training and evaluating a model of clicks on the segments of a click log."""

    config: CtrConfig

    def __init__(self, config: CtrConfig, log: RunLog, writable: bool = True):
        """`config` is settled; `writable` is False to use a trained model without changing it."""
        if not config.data.settled:
            raise ConfigError(
                "the transforms of its columns are missing; the configuration of a run has them", "data.numeric"
            )
        self.config, self.log, self._writable = config, log, writable
        self._schedule = log.schedule(config.training.batch_size)
        self.pieces = [Pieces(file.path, file.pieces) for file in log.files]
        self._splits: dict[str, tuple[LogFile, ...]] = {}
        self._tables: list[KeyTable] = []

    @cached_property
    def _network(self) -> Network:
        """The network, to ask what it needs; each step trains one of its own."""
        return build.make_ctr_network(self.config)

    @cached_property
    def features(self) -> list[FeatureTable]:
        """The tables, with the features that have rows in them."""
        return build.tables_of(self.config, self._network)

    @cached_property
    def _layouts(self) -> dict[str, RowLayout]:
        return {table.name: build.row_layout(self.config, table, self._network) for table in self.features}

    @property
    def fingerprint(self) -> str:
        """Digest of the schema; `RunLog` checks the files."""
        schema = self.config.data.model_dump(mode="json", exclude={"train", "valid", "test"})
        return hashlib.sha256(json.dumps(schema, sort_keys=True).encode()).hexdigest()

    @property
    def validates_on_a_sample(self) -> bool:
        """False: a split is evaluated whole."""
        return False

    def row_bytes(self) -> int:
        """See `Task.row_bytes`."""
        return 0

    @property
    def schedule(self) -> Schedule:
        """The batches of the log's segments."""
        return Schedule(self._schedule.ends)

    def run_files(self) -> Mapping[str, str]:
        """The log with the known checksums of its files, and the user's own code."""
        return {**self.learned_files(), **own_files(named_code(self.config))}

    def learned_files(self) -> Mapping[str, str]:
        """The log with the checksums of what was read so far."""
        return {LOG: self.log.with_pieces([each.known() for each in self.pieces]).dump()}

    def check(self) -> None:
        """Raises InputError if the network can't take the features, or the first examples of other files than the first
        can't be read as those of that one."""
        _ = self._network
        data = self.config.data
        looked_at = [(file, _FEW, data) for file in self.log.files[1:_MOST_FILES]]
        looked_at += [
            (file, EXAMPLES, data.unweighted)
            for split in (self.files_of("valid"), self.files_of("test"))
            for file in split[:1]
        ]
        for file, rows, schema in looked_at:
            with BlockReader([file], schema) as reader:
                reader.lazy_block(0, 0, min(rows, file.rows)).check()

    def check_data_from(self, batch_index: int) -> None:
        """Raises CheckpointError if files that are still needed are gone or changed."""
        self.log.check_files(self.config, batch_index)

    def check_new_data(self, first: int, share: RankSlice = WHOLE) -> None:
        """See `Task.check_new_data` and `data.logs.files`."""
        check_rows(self.log.files[first:], self.config.data, self.pieces[first:], share.rank, share.count)

    def files_of(self, split: Split) -> tuple[LogFile, ...]:
        """The files that a split is evaluated on."""
        if split not in self._splits:
            patterns = getattr(self.config.data, split)
            self._splits[split] = scan_files(patterns, self.config.data.unweighted) if patterns else ()
        return self._splits[split]

    def plan_memory(self, folder: Path, held: int | None = None) -> MemoryPlan:
        """See `Task.plan_memory`; the rows are unknown before training."""
        return plan_ctr_memory(self.config, folder, over_nodes=held is not None)

    def build(self, stack: ExitStack, device: torch.device, threads: int, binding: Binding = UNBOUND) -> Components:
        """See `Task.build`; a table for each width of rows."""
        # A model that was trained over nodes is read here, too.
        pool = stack.enter_context(closing(ThreadPool(threads)))
        self._tables = self._make_tables(stack, self.folder, binding, (shared_by_all, shared_by_shard), pool)
        planner = self._make_planner(stack, self._tables, pool)
        training = self.config.training
        step = self.make_step(device, threads, Update.here(training.optimizer, training.embedding_l2))
        stack.callback(step.close)
        stores = [table.store for table in self._tables]
        return Components(planner, stores, step, device, self._tables, LocalSegments())

    def make_step(self, device: torch.device, threads: int, update: Update) -> CtrStep:
        """See `Task.make_step`."""
        network = build.make_ctr_network(self.config)
        return build.make_ctr_step(self.config, self.features, network, device, threads, update)

    def sample(self, device: torch.device, threads: int) -> Sample:
        """See `Task.sample`."""
        return sample.clicks(self.config, self.features, device, threads)

    def tables(self) -> KeyedTables:
        """See `Task.tables`; rows belong to keys."""
        config, training = self.config, self.config.training
        return KeyedTables(
            tables=self.features, layouts=self._layouts, optimizer=training.optimizer, penalty=training.embedding_l2,
            admit_after=config.keys.admit_after,
            pooled=[each.name for each in config.data.multi_valued if each.pool_at == "shard"],
            most_keys=[training.batch_size * table.max_ids for table in self.features],
            make_key_tables=self._make_tables, make_planner=self._make_planner,
            first_file=self._schedule.first_file, file_of=self._schedule.file_of,
        )  # fmt: skip

    def _make_tables(
        self,
        stack: ExitStack,
        folder: Path | None,
        binding: Binding,
        shared: Sequence[SharedKeys],
        pool: ThreadPool = ALONE,
    ) -> list[KeyTable]:
        config = self.config
        capacities = {name: build.capacity_of(config, layout) for name, layout in self._layouts.items()}
        place = Tables(config.storage, folder, self._layouts, capacities, stack, binding, self._writable)
        return [build.make_key_table(config, place, name, shared, pool) for name in self._layouts]

    def _make_planner(self, stack: ExitStack, key_tables: Sequence[Any], pool: ThreadPool = ALONE) -> LogPlanner:
        planner = LogPlanner(self.config, self.log.files, self._schedule, self.features, key_tables, self.pieces, pool)
        stack.callback(planner.close)
        return planner

    def has(self, split: Split) -> bool:
        """Whether the split has files."""
        return bool(self.files_of(split))

    def evaluate(
        self, parts: Components, split: Split, whole: bool = True, among: Sharing = UNSHARED
    ) -> dict[str, float]:
        """Predicts a split; returns AUC, log loss, normalised entropy and calibration."""
        return evaluate_files(self.predictor(parts), self.files_of(split), among=among)

    def predictor(self, parts: Components, distinct: DistinctIds | None = None) -> ClickPredictor:
        """Returns a predictor with the present parameters; see `ClickPredictor`."""
        step = cast(CtrStep, parts.step)
        return ClickPredictor(self.config, self.features, parts.readers, step, parts.device, distinct)

    def before_epoch(self, parts: Components, epoch: int, among: Sharing = UNSHARED) -> dict[str, float] | None:
        """Drops keys that have not been seen for long; in a progressive run by files predicts the next file and returns
        the metrics."""
        file = self._schedule.first_file(epoch)
        for table in self._tables:
            table.drop_unseen(file)
        if not self.config.training.progressive or self.config.predicts_batches:
            return None
        metrics = evaluate_files(self.predictor(parts), self.log.files[file : file + 1], True, among)
        return {"file": str(self.log.files[file].path), **metrics}

    def predicted(self, step: Step, among: Peers) -> dict[str, float]:
        """See `Task.predicted`."""
        return merged(among.gather(step.predicted())) if isinstance(step, PredictingStep) else {}

    def state_arrays(self) -> Mapping[str, np.ndarray]:
        """The keys of each table, as `TABLE.NAME`."""
        return key_arrays(self._tables)

    def load_state_arrays(self, arrays: Mapping[str, np.ndarray]) -> None:
        """See `Task.load_state_arrays`."""
        load_key_arrays(self._tables, arrays)

    def fingerprints(self, stores: Sequence[ParameterStore]) -> dict[str, str]:
        """SHA-256 of each table by key, independent of the order of its rows."""
        return {table.store.name: table.fingerprint() for table in self._tables}

    def finish(self, folder: Path) -> None:
        """See `tasks.ctr.names`."""
        keep_names(folder, self.config, self.log, self.state_arrays())

    def summary(self) -> dict[str, Any]:
        """The number of keys of each table, and of those that wait or were dropped."""
        return dict(key_counts(self._tables))
