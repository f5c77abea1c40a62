"""A first configuration for a click log: columns, label and sizes, guessed from its first rows."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from marius_oac.config.ctr import CtrConfig, LogConfig
from marius_oac.config.errors import parse
from marius_oac.data.logs.formats import BLANKS, open_log
from marius_oac.data.logs.guess import Column, guess
from marius_oac.data.logs.guess_label import Label, guess_label
from marius_oac.data.logs.lines import COMPRESSIONS
from marius_oac.data.logs.place import format_of
from marius_oac.data.logs.sample import ROWS, LogSample, read_sample
from marius_oac.data.logs.settle import settle_by
from marius_oac.data.logs.split import check_split, split_log
from marius_oac.data.reading.edge_file import ReadOptions
from marius_oac.errors import InputError
from marius_oac.prepare.init.yaml_text import commented, listed, plain, scalar
from marius_oac.runtime.files.untrusted import open_regular

_SMALL, _LARGE = 200_000, 2_000_000  # examples
_TEST_WORDS, _VALID_WORDS, _TRAIN_WORDS = {"test", "eval"}, {"valid", "validation", "val", "dev"}, {"train", "training"}


@dataclass(frozen=True)
class LogRequest:
    """What a user knows of a click log.

    Attributes:
        label: the column of labels.
        positive: the labels that mean 1.
        delimiter: between columns.
        split: a folder to make for the splits of a single file.
        fractions: of the examples for validation and test.
    """

    label: str | None = None
    positive: tuple[str, ...] = ()
    delimiter: str | None = None
    split: Path | None = None
    fractions: tuple[float, float] = (0.1, 0.1)


@dataclass(frozen=True)
class _Found:
    """The findings about a log: a sample of its first file, `data.format`, the columns without the label, the label,
    and the approximate number of rows."""

    sample: LogSample
    format: str
    columns: list[Column]
    label: Label
    rows: int


def sample_of(path: Path, delimiter: str | None = None) -> LogSample:
    """The first rows of a file with any suffix. Raises InputError if it can't be read or has one column."""
    if delimiter is not None:
        ReadOptions(delimiter=" " if delimiter == BLANKS else delimiter)  # checks the delimiter
    sample = read_sample(path, _format(path), delimiter)
    if len(sample.names) == 1 and sample.delimiter and not delimiter:
        spaced = _spaced(path)
        if spaced is not None:
            return spaced
    if len(sample.names) < 2:
        how = f" (columns are told apart by {sample.delimiter!r}; --delimiter)" if sample.delimiter else ""
        raise InputError(f"has one column; a label and a feature, or two ends of edges, are needed{how}", path)
    return sample


def _spaced(path: Path) -> LogSample | None:
    """The sample with blanks, or runs of them, as delimiters; None if there is only one column then."""
    for delimiter in (" ", BLANKS):
        try:
            found = read_sample(path, _format(path), delimiter)
        except InputError:
            continue
        if len(found.names) > 1 and all(found.names):
            return found
    return None


def _format(path: Path) -> str:
    """`data.format`: auto if the suffix is known, else by the first bytes of the file."""
    try:
        format_of(path)
    except InputError:
        with open_regular(path) as file:
            return "parquet" if file.read(4) == b"PAR1" else "csv"
    return "auto"


def first_log(files: Sequence[Path], request: LogRequest, name: str) -> tuple[str, list[str]]:
    """The configuration's text, checked by reading the first rows with it, and notes. Writes the splits, if requested.

    Args:
        name: of the configuration, for its comments.

    Raises:
        InputError: as `init`.
    """
    splits = _splits(files, request)
    found = _found(splits["train"], request)
    plan = check_split(files[0], found.sample.format, found.sample.header, request.split, request.fractions)
    text = _text(found, splits, request, name)
    tree, _ = parse(text, "the configuration")
    config = CtrConfig.build(tree).data
    for path in [path for paths in splits.values() for path in paths]:
        open_log(path, config, with_labels=True)
    config = try_rows(config, splits["train"][0], min(found.sample.rows, ROWS))
    for path in [paths[0] for paths in (splits["valid"], splits["test"]) if paths]:
        try_rows(config, path, ROWS)
    if plan is not None:
        parts = split_log(plan)
        text = _text(found, {split: [path] for split, path in parts.items()}, request, name)
    left_out = [f"{each.name} ({each.why})" for each in found.columns if each.role == "ignored" and not each.doubt]
    notes = [found.label.line] * bool(found.label.line)
    notes += [f"left out: {', '.join(left_out[:10])}{' and more' if len(left_out) > 10 else ''}"] * bool(left_out)
    notes += [each.line for each in found.columns if each.doubt]
    return text, [plain(each, longest=1000) for each in notes]


def _splits(files: Sequence[Path], request: LogRequest) -> dict[str, list[Path]]:
    """The files of each split: by the words in their names; else the last file is for testing, and of three or more
    files the one before it for validation."""
    if request.split is not None and len(files) != 1:
        raise InputError(f"a single file is split, not {len(files)}: several are told apart by themselves", "--split")
    words = {path: set(re.findall("[a-z]+", path.name.lower())) for path in files}
    if len(files) > 1 and any(each & (_TEST_WORDS | _VALID_WORDS) for each in words.values()):
        test = [path for path in files if words[path] & _TEST_WORDS]
        valid = [path for path in files if words[path] & _VALID_WORDS and path not in test]
        train = [path for path in files if path not in (*test, *valid)]
        if not train:
            raise InputError("by their names all files are for validation or test: none is left to train on", files[0])
    else:
        cut = 0 if len(files) == 1 else 1 if len(files) == 2 or words[files[-1]] & _TRAIN_WORDS else 2
        train, rest = list(files[: len(files) - cut]), list(files[len(files) - cut :])
        valid, test = rest[:-1], rest[-1:]
    return {"train": train, "valid": valid, "test": test}


def _found(files: Sequence[Path], request: LogRequest) -> _Found:
    sample = sample_of(files[0], request.delimiter)
    columns = guess(sample)
    try:
        label = guess_label(sample, request.label, any_values=bool(request.positive))
    except InputError as error:
        kinds = ", ".join(f"{each.name} ({each.kind})" for each in columns[:40])
        edges = "" if request.label else "; edges of a graph: --columns HEAD,RELATION,TAIL"
        raise InputError(
            f"{error.message}{edges}; the columns are, with a guess of each: {kinds}", error.where
        ) from None
    if request.positive:
        label = _as_asked(label, request.positive, sample)
    if label.share in (0.0, 1.0):
        raise InputError(f"column '{label.name}' means {label.share:.0f} in all rows that were read", sample.path)
    rest = [each for each in columns if each.name != label.name]
    if sample.format == "libsvm":  # its columns are ids, unless they are a bag
        rest = [each if each.kind == "multi_valued" else replace(each, kind="categorical", doubt="") for each in rest]
    if all(each.role == "ignored" for each in rest):
        kinds = ", ".join(f"{each.name} ({each.why})" for each in rest[:40])
        raise InputError(f"no column is left for a feature beside the label '{label.name}': {kinds}", sample.path)
    return _Found(sample, _format(files[0]), rest, label, sum(_rows(path, sample) for path in files))


def _as_asked(label: Label, positive: tuple[str, ...], sample: LogSample) -> Label:
    column = sample.columns[label.name]
    texts = np.array([str(each).strip() for each in column.to_pylist()])
    for value in positive:
        if not (texts == value).any():
            raise InputError(f"no row that was read has {value!r} in column '{label.name}'", "--positive")
    others = sorted({*texts.tolist()} - {*positive})
    why = f"all of {', '.join(map(repr, others[:5]))} mean 0" if len(others) > 1 else ""
    share = float(np.isin(texts, positive).mean())
    return replace(label, positive=positive, negative=tuple(others) if not why else (), share=share, why=why)


def _rows(path: Path, sample: LogSample) -> int:
    """The approximate number of rows of a file."""
    if sample.format == "parquet":
        return pq.ParquetFile(path).metadata.num_rows
    if path == sample.path and sample.whole:
        return sample.rows
    size = os.path.getsize(path) * (4 if path.suffix.lower() in COMPRESSIONS else 1)
    return int(size / max(sample.bytes_a_row, 1.0))


def try_rows(config: LogConfig, path: Path, rows: int) -> LogConfig:
    """Reads the first rows as training does, and returns what is settled by them. Raises InputError if training would
    refuse them."""
    blocks = open_log(path, config, with_labels=True).blocks(0, rows)
    raw = next(blocks)
    parsed = list(raw.parse(np.arange(len(raw))))
    settled, _ = settle_by(config, path, parsed)
    blocks.close()
    return settled


def _text(found: _Found, splits: dict[str, list[Path]], request: LogRequest, name: str) -> str:
    sample = found.sample
    columns: dict[str, list[tuple[Any, str]]] = {}
    for each in found.columns:
        columns.setdefault(each.role, []).append((_section(each), _why(each, sample.rows)))
    lines = [
        f"# Written by `marius-oac init`: guesses by the first {sample.rows:,} rows of {plain(sample.path.name)}.",
        f"# Look through it, then: marius-oac train {plain(name)}",
        "# Every key: `marius-oac config`, or docs/config.md.",
        "task: ctr",
        "data:",
        *_files(splits, request),
        *_format_lines(found),
        *_label(found.label),
        *listed("numeric", columns.get("numeric", []), "transform: auto, chosen when training begins"),
        *listed("categorical", columns.get("categorical", []), "one value each, which has a row of its own"),
        *listed("multi_valued", columns.get("multi_valued", []), "several values in no order"),
        *listed("ignored", columns.get("ignored", []), "left out"),
        *_missing(found, columns),
        *_sizes(found, bool(splits["valid"])),
    ]
    return "\n".join(lines) + "\n"


def _files(splits: dict[str, list[Path]], request: LogRequest) -> list[str]:
    lines = []
    for split, paths in splits.items():
        if paths:
            names = [str(path) for path in paths]
            lines.append(f"  {split}: {scalar(names[0] if len(names) == 1 else names)}")
    if not splits["test"]:
        again = shlex.join(["marius-oac", "init", str(splits["train"][0]), "--split", "FOLDER"])
        lines.append(
            f"  # nothing is kept back to test on: name a file, `test: FILE`, or let this one be split: {plain(again)}"
        )
    return lines


def _format_lines(found: _Found) -> list[str]:
    sample, format = found.sample, found.format
    lines = []
    if sample.format == "libsvm" and format_of(sample.path, format)[0] != "libsvm":
        return ["  format: libsvm"]
    if format != "auto":
        lines.append(f"  format: {format}")
    if sample.delimiter is not None and sample.delimiter != format_of(sample.path, format)[1]:
        lines.append(f"  delimiter: {scalar(sample.delimiter)}")
    if sample.quotes and sample.delimiter != ",":
        lines.append("  quotes: true")
    if not sample.header:
        names = ", ".join(map(scalar, sample.names))
        lines.append(f"  columns: [{names}]  # the file has no names: these are made up")
    return lines


def _label(label: Label) -> list[str]:
    share = f"{label.share:.1%} of the rows mean 1"
    if not label.positive:
        return [commented(f"  label: {scalar(label.name)}", share)]
    values = label.positive[0] if len(label.positive) == 1 else list(label.positive)
    negative = {"negative": label.negative[0]} if label.negative else {}
    section = scalar({"column": label.name, "positive": values, **negative})
    why = f"; {label.why}" if label.why else ""
    return [f"  # {plain(f'`positive` is what means 1, a guess to be looked at: {share}{why}')}", f"  label: {section}"]


def _section(column: Column) -> Any:
    """The entry of a column in its list: its name, or a mapping."""
    gaps = {"missing": "median", "indicator": True} if column.kind == "numeric" and column.missing else {}
    keys = {**gaps, **(column.section if column.role != "ignored" else {})}
    return {"name": column.name, **keys} if keys else column.name


def _why(column: Column, rows: int) -> str:
    gaps = f"; missing in {column.missing / rows:.1%}" if column.missing and column.kind == "numeric" else ""
    kind = f"{column.kind}: " if column.role == "ignored" else ""
    return f"{kind}{column.why}{gaps}{'; a guess' if column.doubt else ''}"


def _missing(found: _Found, columns: dict[str, list[tuple[Any, str]]]) -> list[str]:
    odd = sorted({text for each in found.columns for text in each.odd})
    lines = [commented(f"  missing: {scalar(odd)}", "texts that stand for missing numbers")] if odd else []
    if not columns.get("numeric") or found.sample.whole and found.rows == found.sample.rows:
        return lines
    return [*lines, commented("  missing_numbers: median", "where a number is missing in rows that were not looked at")]


def _sizes(found: _Found, valid: bool) -> list[str]:
    """Network and training by the number of examples: few examples need small batches and several epochs."""
    rows = found.rows
    small, large = rows < _SMALL, rows > _LARGE
    batch = 256 if small else 1024 if not large else 4096
    epochs = (20 if valid else 5) if small else 3 if valid and not large else 1
    stopping = [commented("  early_stopping: {patience: 2}", "epochs without a better AUC of `valid`")] if valid else []
    return [
        *([commented("  shuffle: 65536", "examples within such stretches")] if not large else []),
        "model:",
        commented("  network: deepfm", "or lr, fm, dlrm, dcnv2"),
        f"  dimension: {8 if small else 16}",
        f"  hidden: {'[64, 32]' if small else '[256, 128]' if not large else '[400, 400, 400]'}",
        "training:",
        f"  epochs: {epochs}",
        commented(f"  batch_size: {batch}", f"for about {rows:,} examples"),
        f"  optimizer: {{kind: adagrad, learning_rate: {0.02 if small else 0.05}}}",
        "  dense_optimizer: {kind: adam, learning_rate: 0.001}",
        *(stopping if epochs > 1 else []),
    ]
