"""A trained model of clicks, opened from a run's folder, to be evaluated or to predict files."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from marius_oac.config.ctr import CtrConfig
from marius_oac.data.logs.doubts import spellings
from marius_oac.data.logs.files import LogFile, scan_files
from marius_oac.data.logs.run_log import RunLog
from marius_oac.data.logs.tables import vocabulary_names
from marius_oac.data.splits import check_split
from marius_oac.errors import CheckpointError, InputError
from marius_oac.evaluation.metrics import Metrics
from marius_oac.evaluation.nearest import Neighbor
from marius_oac.evaluation.quality import MOST_EXAMPLES, Quality, calibration, plane
from marius_oac.models.compute.network_parameters import OPTIMIZER
from marius_oac.models.compute.torch_state import torch_threads
from marius_oac.runs.checkpoints.checkpoint import Checkpoint
from marius_oac.runs.export import Names
from marius_oac.runs.folder.folder import RunFolder
from marius_oac.runs.session import num_threads, reading_device
from marius_oac.runtime.console import logger
from marius_oac.runtime.files.atomic import appearing, check_place
from marius_oac.tasks.ctr.distinct import DistinctIds
from marius_oac.tasks.ctr.evaluate import evaluate_files
from marius_oac.tasks.ctr.names import KeyTexts
from marius_oac.tasks.ctr.nearest import ColumnRows, nearest_values
from marius_oac.tasks.ctr.predict import check_suffix, write_predictions
from marius_oac.tasks.ctr.task import CtrTask
from marius_oac.tasks.trained import Exported, Question, TrainedRun
from marius_oac.types import present


class ClickMetrics(Metrics):
    """An evaluation's numbers by name; prints as a table, with six digits, as models of clicks differ by little."""

    digits = 6


def _to_predict(saved: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Dense state for predictions: the saved network, and the optimizer state of the new step, as that of nodes may
    have another form."""
    optimizer = {name: tensor for name, tensor in own.items() if name.startswith(OPTIMIZER)}
    return optimizer | {name: tensor for name, tensor in saved.items() if not name.startswith(OPTIMIZER)}


class TrainedClickModel(TrainedRun):
    """A trained model of clicks: a checkpoint of a run on a click log, its tables in memory until `close`."""

    task = "ctr"
    config: CtrConfig

    def __init__(self, folder: RunFolder, checkpoint: str | None):
        super().__init__(folder, checkpoint)
        log = RunLog.read(folder.path)
        self.checkpoint = saved = folder.checkpoint(checkpoint)
        if not saved.pages:  # since then the run's tables may have moved to disk
            self.config = self.config.replace("storage.memory=null", "storage.io=direct")
        self._task = CtrTask(self.config, log, writable=False)
        self._task.use_folder(folder.path)
        with ExitStack() as stack:
            stack.callback(saved.close)
            self._parts = self._task.build(stack, reading_device(self.config.device), num_threads(self.config))
            self._task.load_state_arrays(saved.arrays())
            saved.restore(self._parts.stores)
            try:
                step = self._parts.step
                step.load_dense_state(_to_predict(saved.dense(), step.dense_state()))
            except ValueError as error:  # the user's own network may have changed
                raise CheckpointError(str(error), saved.path) from None
            self._stack = stack.pop_all()

    @staticmethod
    def understands(question: Question) -> bool:
        """See `TrainedRun.understands`."""
        return bool(question.data)

    def answer(self, question: Question) -> Path:
        """See `predict_files`."""
        return self.predict_files(question.data, question.out)

    def evaluate(self, data: str | Sequence[str] = "test", overrides: Iterable[str] = ()) -> ClickMetrics:
        """Evaluates on a split, `valid` or `test`, or on files with labels: AUC, log loss, normalised entropy,
        calibration."""
        if tuple(overrides):
            raise InputError("a model of clicks is evaluated as its run was configured", "--set")
        if isinstance(data, str):
            check_split(data)
        patterns = getattr(self.config.data, data) if isinstance(data, str) else data
        if not patterns:
            raise InputError(f"the run has no {data} files; name some with --data", f"data.{data}")
        files = scan_files(patterns, self.config.data.unweighted)
        with torch_threads(num_threads(self.config)), self._told(files) as distinct:
            values = evaluate_files(self._task.predictor(self._parts, distinct), files)
        what = data if isinstance(data, str) else ", ".join(data)
        return ClickMetrics(self.title(what), values)

    def quality(self) -> Quality:
        """The calibration of the first million examples, and a plane of the largest table's rows; see
        `TrainedRun.quality`."""
        split = "test" if self.config.data.test else "valid"
        patterns = getattr(self.config.data, split)
        tables = [self.checkpoint.array(name, "values") for name in self.checkpoint.tables()]
        seen = plane(max(tables, key=len), self.config.seed) if tables else None
        if not patterns:
            return Quality("", 0, plane=seen)
        files = scan_files(patterns, self.config.data.unweighted)
        predictor = self._task.predictor(self._parts)
        blocks = predictor.cut(files)
        before = np.cumsum([0, *(each.examples for each in blocks)])[:-1]
        with torch_threads(num_threads(self.config)):
            found = [
                (present(examples.labels), probabilities)
                for examples, probabilities in predictor.blocks(files, blocks[: (before < MOST_EXAMPLES).sum()], True)
            ]
        labels, probabilities = (np.concatenate(each) for each in zip(*found, strict=True))
        return Quality(split, len(labels), bins=calibration(labels, probabilities), plane=seen)

    def nearest(
        self, column: str, value: str | int, k: int = 10, among: Iterable[str | int] | None = None
    ) -> list[Neighbor]:
        """Returns the `k` values of a column whose embeddings are most similar to that of `value`, which is not among
        them, by cosine similarity: the most similar first, equal ones by row. Columns that share a vocabulary share
        their values.

        Args:
            value: as in the log: a text, or an integer; "" is the missing one.
            among: values to choose from, such as those that a catalogue has; those that were not trained on are left
                out. None: all. Of them, texts that the run has not kept (`keys.names`) are named by their fingerprint,
                16 hexadecimal digits.

        Raises:
            InputError: there is no such column, or it has no embeddings; `value` was not trained on; `k` is below 1.
            MariusOacError: an embedding holds NaN or an infinite number.
        """
        held = ColumnRows.of(column, self.config, self._task.features, self.checkpoint)
        return nearest_values(held, self.checkpoint, value, k, among, self._texts)

    @cached_property
    def _texts(self) -> KeyTexts:
        return KeyTexts.read(self.path)

    def predict_files(self, data: Sequence[str], out: str | Path | None = None) -> Path:
        """Writes the probability of a click for each example of files, which need no labels, to a new file: Parquet, or
        text where its suffix is .csv, .tsv or a .gz of these.

        Its columns are `file`, `row` (from 0) and `probability`, in the order of the files. All of it or nothing.

        Raises:
            InputError: `out` exists, is not given or has another suffix, or a file can't be read.
        """
        if out is None:
            raise InputError("name the file to write: .parquet, .csv or .tsv, or .gz of the texts", "--out")
        out = Path(out)
        check_suffix(out)
        check_place(out)
        if os.path.lexists(out):
            raise InputError("exists already", out)
        files = scan_files(data, self.config.data, with_labels=False)
        with torch_threads(num_threads(self.config)), self._told(files) as distinct, appearing(out) as temporary:
            self._write(temporary, out, files, distinct)
        return out

    @contextmanager
    def _told(self, files: Sequence[LogFile]) -> Iterator[DistinctIds]:
        """Tells the user, at the end, how files write ids, and where the model knows few of them."""
        distinct = DistinctIds(self.config.data)
        yield distinct
        for line in (*spellings(self.config.data, files[0].path), *distinct.lines()):
            logger.warning(line)

    def _write(self, path: Path, named: Path, files: Sequence[LogFile], distinct: DistinctIds) -> None:
        found = self._task.predictor(self._parts, distinct).files(files, labelled=False)
        known = [(str(file.path), file.rows) for file in files]
        write_predictions(path, named, known, (probabilities for _, probabilities in found))

    def close(self) -> None:
        """Closes the tables and ends the step's threads."""
        self._stack.close()

    @classmethod
    def exported_from(cls, path: str | Path, checkpoint: str | None, **opened: Any) -> Exported:
        """See `TrainedRun.exported_from`. Takes the rows from the checkpoint, without opening the model."""
        run = RunFolder.open(path)
        chosen, config = run.checkpoint(checkpoint), cast(CtrConfig, run.config)
        rows = {name: chosen.array(name, "values") for name in chosen.tables()}
        return Exported(rows, key_names(config, chosen, run.path), numbers_file(config))

    @classmethod
    def names_in(cls, folder: RunFolder, checkpoint: Checkpoint, data_path: str | Path | None) -> Mapping[str, Names]:
        """See `TrainedRun.names_in`."""
        return key_names(cast(CtrConfig, folder.config), checkpoint, folder.path)


def numbers_file(config: CtrConfig) -> dict[str, str]:
    """The transforms of numeric columns as a file of an export, text by name; empty without such columns."""
    columns = [each.model_dump(mode="json", exclude_none=True) for each in config.data.numeric]
    return {"numbers.json": json.dumps(columns, indent=1) + "\n"} if columns else {}


def key_names(config: CtrConfig, checkpoint: Checkpoint, run: Path) -> dict[str, Names]:
    """Returns the names of the tables' rows: vocabulary and key; where the key is the fingerprint of a text, the text
    if the run's folder has it, else the fingerprint in hexadecimal."""
    vocabularies, arrays, texts = vocabulary_names(config), checkpoint.arrays(), KeyTexts.read(run)

    def of_table(table: str) -> Names:
        names_of = [f"{table}.index.{part}" for part in ("keys", "vocabularies", "checks")]
        rows = len(checkpoint.array(table, "timestamps"))
        if not all(name in arrays and len(arrays[name]) == rows for name in names_of):
            raise CheckpointError(f"table {table!r} has {rows:,} rows, but not as many keys", checkpoint.path)
        keys, numbers, checks = (arrays[name] for name in names_of)
        if rows and numbers.max() >= len(vocabularies):
            raise CheckpointError(f"table {table!r} has keys of a vocabulary {numbers.max()}", checkpoint.path)

        return lambda rows: _key_names(vocabularies, numbers[rows], keys[rows], checks[rows], texts)

    return {table: of_table(table) for table in checkpoint.tables()}


def _key_names(
    vocabularies: Sequence[str], numbers: np.ndarray, keys: np.ndarray, checks: np.ndarray, texts: KeyTexts
) -> list[str]:
    """Names of keys, int64 [n], with the numbers of their vocabularies and the checks of their texts, 0: a number."""
    shown, are_texts = pa.array(np.asarray(keys)).cast(pa.string()), np.asarray(checks) != 0
    if are_texts.any():
        digits = np.frombuffer(keys.astype(">i8").tobytes().hex().encode(), "S16")
        known = pa.array(texts.names(numbers, keys, checks), pa.string())
        shown = pc.if_else(pa.array(are_texts), pc.coalesce(known, pa.array(digits).cast(pa.string())), shown)
    named = pa.array(vocabularies, pa.string()).take(pa.array(np.asarray(numbers)))
    return pc.binary_join_element_wise(named, shown, "=").to_pylist()
