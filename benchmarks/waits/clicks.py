"""Waits on a generated click log with DeepFM: evaluation, predictions, and its checkpoints (`checkpoints`)."""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from benchmarks.generate.log import LogSpec, write_day
from benchmarks.waits import checkpoints
from benchmarks.waits.measured import Wait
from marius_oac.config.task import build_config
from marius_oac.runs.folder.folder import RunFolder
from marius_oac.tasks.trained import Question
from marius_oac.training.local import train
from marius_oac.training.trained import evaluate_run, predict_run

DIMENSION, AT_ONCE, HIDDEN = 16, 1 << 14, (400, 400, 400)


def waits(folder: Path, rows: int, stack: ExitStack) -> list[Wait]:
    """The rows of a log of so many examples, half of it tests."""
    spec, run = LogSpec(keys=rows * 2), folder / "clicks"
    days = [folder / f"day_{day}.parquet" for day in range(2)]
    if not (folder / "other clicks").exists():
        for day, path in enumerate(days):
            write_day(path, day, rows, spec)
        config = build_config({
            "task": "ctr", "model": {"network": "deepfm", "dimension": DIMENSION, "hidden": list(HIDDEN)},
            "data": {"train": str(days[0]), "test": str(days[1]), "label": "label",
                     "numeric": [f"n{i}" for i in range(spec.numeric)],
                     "categorical": [f"c{i}" for i in range(spec.categorical)]},
        })  # fmt: skip
        train(config, run)
        shutil.copytree(run, folder / "other clicks")
    session = stack.enter_context(checkpoints.opened(run))
    ours = checkpoints.waits("clicks", run, folder / "other clicks", session, folder, stack)
    return [*ours, *_asked(run, days[1], spec, rows)]


def _asked(run: Path, log: Path, spec: LogSpec, rows: int) -> list[Wait]:
    saved = RunFolder.open(run).checkpoint()
    table = saved.tables()[0]
    arrays = saved.arrays()
    keys, vocabularies = (np.array(arrays[f"{table}.index.{part}"]) for part in ("keys", "vocabularies"))
    values = torch.from_numpy(np.array(saved.array(table, "values")))
    places = []
    for number in range(spec.categorical):
        own = np.flatnonzero(vocabularies == number)
        places.append(own[np.argsort(keys[own])])
    widths = [spec.numeric + spec.categorical * DIMENSION, *HIDDEN, 1]
    layers = [torch.randn(a, b) for a, b in zip(widths, widths[1:], strict=False)]

    def deep(found: torch.Tensor) -> torch.Tensor:
        for layer in layers:
            found = torch.relu(found @ layer)
        return found[:, 0]

    empty = torch.randn(AT_ONCE, widths[0])

    def limit(_: Path) -> None:
        with torch.inference_mode():
            for batch in pq.ParquetFile(log).iter_batches(AT_ONCE):
                deep(empty[: len(batch)])

    def scored() -> tuple[np.ndarray, np.ndarray]:
        labels, scores = [], []
        with torch.inference_mode():
            for batch in pq.ParquetFile(log).iter_batches(AT_ONCE):
                labels.append(batch.column("label").to_numpy())
                numbers = np.stack([batch.column(f"n{i}").to_numpy() for i in range(spec.numeric)], axis=1)
                found = []
                for number, own in enumerate(places):
                    asked = batch.column(f"c{number}").to_numpy()
                    at = np.searchsorted(keys[own], asked).clip(max=own.size - 1)
                    found.append(np.where(keys[own[at]] == asked, own[at], 0))
                rows = values[torch.from_numpy(np.stack(found, axis=1))]
                first, rest = rows[..., 0].sum(1), rows[..., -DIMENSION:]
                total = rest.sum(1)
                pairs = 0.5 * (total * total - (rest * rest).sum(1)).sum(1)
                inputs = torch.cat((torch.from_numpy(numbers), rest.flatten(1)), dim=1)
                scores.append(torch.sigmoid(first + pairs + deep(inputs)).numpy())
        return np.concatenate(labels), np.concatenate(scores)

    def plain_eval(_: Path) -> None:
        labels, scores = scored()
        order = np.argsort(scores, kind="stable")
        ranks = np.empty(len(order))
        ranks[order] = np.arange(1, len(order) + 1)
        positive = labels == 1
        ranks[positive].sum() - positive.sum() * (positive.sum() + 1) / 2
        np.log(np.where(positive, scores, 1 - scores).clip(1e-9)).mean()

    def plain_predict(path: Path) -> None:
        pq.write_table(pa.table({"probability": scored()[1]}), path)

    def predict(path: Path) -> None:
        predict_run(run, Question(data=(str(log),), out=(to := path.with_suffix(".parquet"))))
        to.unlink()

    what = "pyarrow reads, and the network's products"
    return [
        Wait("clicks: eval", lambda _: evaluate_run(run), limit, what, rows / 1e6, "M examples", plain_eval,
             "pyarrow, searchsorted, torch; rows in memory"),
        Wait("clicks: predict, a file", predict, limit, what, rows / 1e6, "M examples", plain_predict, "the same"),
    ]  # fmt: skip
