"""A trained model of clicks, opened from a run's folder: evaluate it, or predict the examples of files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from marius_oac.checkpoint import Checkpoint
from marius_oac.config_ctr import CtrConfig
from marius_oac.ctr_predict import evaluate_files
from marius_oac.ctr_task import CtrTask
from marius_oac.data.log_files import LogFile, LogFiles
from marius_oac.data.log_tables import vocabulary_names
from marius_oac.errors import InputError
from marius_oac.export import Names
from marius_oac.files import disk_errors, make_folder, sync, unfinished
from marius_oac.models.torch_state import torch_threads
from marius_oac.run import RunFolder
from marius_oac.run_log import RunLog
from marius_oac.session import num_threads, pick_device

_SCHEMA = pa.schema(
    [("file", pa.dictionary(pa.int32(), pa.string())), ("row", pa.int64()), ("probability", pa.float32())]
)


@dataclass(frozen=True)
class ClickMetrics:
    """An evaluation's numbers by name; prints as a table."""

    title: str
    values: dict[str, float]

    def __str__(self) -> str:
        lines = [f"  {name:<28}{value:,.6g}" for name, value in self.values.items()]
        return "\n".join([self.title, *lines])


class TrainedClickModel:
    """A checkpoint of a run on a click log, its tables in memory until `close`."""

    def __init__(self, path: Path, config: CtrConfig, checkpoint: Checkpoint, log: RunLog):
        if not checkpoint.pages:  # the run's tables have come to lie on disk since
            config = config.replace("storage.memory=null", "storage.io=direct")
        self.path, self.config, self.checkpoint = path, config, checkpoint
        self._task = CtrTask(config, log, writable=False)
        self._task.use_folder(path)
        with ExitStack() as stack:
            device = pick_device(config.device)
            self._parts = self._task.build(stack, device, num_threads(config))
            self._task.load_state_arrays(checkpoint.arrays())
            checkpoint.restore(self._parts.stores)
            self._parts.step.load_dense_state(checkpoint.dense())
            self._stack = stack.pop_all()

    @classmethod
    def open(cls, path: str | Path, checkpoint: str | None = None) -> TrainedClickModel:
        """Opens a run's result, as `TrainedModel.open` does.

        Raises:
            CheckpointError: no run or no such checkpoint, or a damaged one. InputError: a run on a graph.
        """
        folder = RunFolder.open(path)
        if not isinstance(folder.config, CtrConfig):
            raise InputError("was trained on a graph, which knows no files of examples", path)
        return cls(folder.path, folder.config, folder.checkpoint(checkpoint), RunLog.read(folder.path))

    def evaluate(self, data: str | Sequence[str] = "test", overrides: Iterable[str] = ()) -> ClickMetrics:
        """AUC, log loss, normalised entropy and calibration on a split, `valid` or `test`, or on files with labels."""
        if tuple(overrides):
            raise InputError("a model of clicks is evaluated as its run was configured", "--set")
        patterns = getattr(self.config.data, data) if isinstance(data, str) else data
        if not patterns:
            raise InputError(f"the run has no {data} files; name some with --data", f"data.{data}")
        files = LogFiles.scan(patterns, self.config.data).files
        with torch_threads(num_threads(self.config)):
            values = evaluate_files(self._task.predictor(self._parts), files)
        what = data if isinstance(data, str) else ", ".join(data)
        return ClickMetrics(f"{self.path}, checkpoint {self.checkpoint.name}, {what}", values)

    def predict_files(self, data: Sequence[str], out: str | Path | None = None) -> Path:
        """Writes the probability of a click for each example of files, which need no labels, to a new Parquet file.

        Its columns are `file`, `row` (from 0) and `probability`, in the order of the files. All of it or nothing.

        Raises:
            InputError: `out` exists or is not given, or a file can't be read.
        """
        if out is None:
            raise InputError("name the .parquet file to write", "--out")
        out = Path(out)
        if os.path.lexists(out):
            raise InputError("exists already", out)
        files = LogFiles.scan(data, self.config.data, with_labels=False).files
        temporary = unfinished(out)
        with disk_errors(out), torch_threads(num_threads(self.config)):
            try:
                make_folder(out.parent)
                self._write(temporary, files)
                sync(temporary)
                os.rename(temporary, out)
                sync(out.parent)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise
        return out

    def _write(self, path: Path, files: Sequence[LogFile]) -> None:
        predictor, names = self._task.predictor(self._parts), pa.array([str(file.path) for file in files])
        number, row = 0, 0
        with pq.ParquetWriter(path, _SCHEMA) as writer:
            for examples, probabilities in predictor.files(files, labelled=False):
                while row == files[number].rows:
                    number, row = number + 1, 0
                file = pa.DictionaryArray.from_arrays(np.full(examples.size, number, np.int32), names)
                rows = np.arange(row, row + examples.size)
                writer.write_table(pa.Table.from_arrays([file, rows, probabilities], schema=_SCHEMA))
                row += examples.size

    def close(self) -> None:
        self._stack.close()

    def __enter__(self) -> TrainedClickModel:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def predict_run(path: str | Path, data: Sequence[str], out: str | Path | None, checkpoint: str | None = None) -> Path:
    """`TrainedClickModel.predict_files` of a run's result."""
    with TrainedClickModel.open(path, checkpoint) as model:
        return model.predict_files(data, out)


def key_names(config: CtrConfig, checkpoint: Checkpoint) -> dict[str, Names]:
    """Names of the tables' rows: vocabulary and key, the key in hexadecimal where it is the fingerprint of a text."""
    vocabularies, arrays = vocabulary_names(config), checkpoint.arrays()

    def of_table(table: str) -> Names:
        keys, numbers, checks = (arrays[f"{table}.index.{part}"] for part in ("keys", "vocabularies", "checks"))

        def names(rows: np.ndarray) -> list[str]:
            return [
                f"{vocabularies[numbers[row]]}={np.uint64(keys[row]):016x}"
                if checks[row]
                else f"{vocabularies[numbers[row]]}={keys[row]}"
                for row in rows
            ]

        return names

    return {table: of_table(table) for table in checkpoint.tables()}
