"""A first configuration for a graph. The decoder depends on its relations, the sizes on the number of its edges."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from marius_oac.cli.init.log import sample_of
from marius_oac.cli.init.yaml_text import commented, plain, scalar
from marius_oac.config.parts import DECODERS, DEFAULT_DECODER, WITHOUT_RELATIONS
from marius_oac.data.graphs.graph import open_or_prepare
from marius_oac.data.logs.sample import LogSample
from marius_oac.data.prepare.edge_file import EdgeFile, ReadOptions, roles
from marius_oac.data.prepare.readers import read_edges
from marius_oac.data.prepare.text import read_pieces
from marius_oac.errors import InputError

_SMALL, _LARGE = 1_000_000, 20_000_000  # edges
_FEWER = 4  # times as many values have ends of edges, at least, as the relations that are told by that
_FEW_NODES = 200_000  # up to so many, edges are ranked against all nodes


def known_graph(name: str) -> str:
    """The configuration for a prepared graph, given by its folder or the name of an embedded data set.

    Raises:
        InputError: there is no such graph, or it has no edges to train on.
    """
    graph = open_or_prepare(name)
    if not graph.num_edges["train"]:
        raise InputError("the graph has no edges to train on", name)
    counts = " / ".join(f"{count:,}" for count in graph.num_edges.values())
    about = f"{graph.num_nodes:,} nodes, {graph.num_relations:,} relations, {counts} edges (train / valid / test)"
    valid, nodes = bool(graph.num_edges["valid"]), graph.num_nodes
    edges, relations = graph.num_edges["train"], bool(graph.num_relations)
    return _text([f"{name}: {about}."], name, relations, edges, nodes, valid, graph.metric)


def raw_graph(
    sources: Sequence[str], files: Sequence[Path], delimiter: str | None, columns: tuple[str, ...] | None
) -> tuple[str, list[str]]:
    """The configuration for the graph that files of edges will be prepared to, and a note with the command for that.

    Args:
        sources: as the user names them. files: that they stand for, one of which is looked at.
        delimiter, columns: as in `ReadOptions`; None: guessed.

    Raises:
        InputError: the file holds no edges, or it is unclear which columns are their ends.
    """
    path = one_to_look_at(files)
    options = _options(path, delimiter)
    guessed = options.columns if columns is None else None
    options = replace(options, columns=columns or options.columns)
    batches = read_edges(EdgeFile(path, options))
    first = next(batches)
    batches.close()
    named = Path(sources[0] if len(sources) == 1 else path)  # a folder's name says more than that of a part of it
    folder = Path("data", re.sub(r"[*?[\]]", "", named.name.split(".")[0]).strip("-_") or "graph")
    command = ["marius-oac", "prepare", *sources]
    command += ["--delimiter", options.delimiter] if options.delimiter else []
    command += ["--columns", ",".join(options.columns)] if options.columns else []
    command += ["--out", str(folder)]
    shown = " ".join(map(_quoted, command))
    edges, relations = sum(_edges(each, len(first) * (each == path)) for each in files), first.num_columns == 3
    head = [f"The graph of {', '.join(sources)}. Prepare it first:", f"  {shown}"]
    notes = [] if os.path.exists(folder) else [f"prepare it first: {shown}"]
    if guessed and len(guessed) == 3:
        notes.insert(
            0, f"the relation is column {plain(guessed[1])!r}, as it has the fewest values (--columns: others)"
        )
    return _text(head, str(folder), relations, edges, edges, True), notes


def one_to_look_at(files: Sequence[Path]) -> Path:
    """The first of the larger files. If one was cut into parts, the first part alone has its column names."""
    sizes = [os.path.getsize(path) for path in files]
    return next(path for path, size in zip(files, sizes, strict=True) if 2 * size >= max(sizes))


def _quoted(word: str) -> str:
    """A word as a shell reads it, on one line."""
    if word.isprintable():
        return shlex.quote(word)
    plain_ones = (each.isprintable() and each not in "\\'" for each in word)
    escaped = (each if is_plain else "".join(f"\\x{byte:02x}" for byte in each.encode())
               for each, is_plain in zip(word, plain_ones, strict=True))  # fmt: skip
    return f"$'{''.join(escaped)}'".replace(r"\x09", r"\t")


def _options(path: Path, delimiter: str | None) -> ReadOptions:
    """The options with which `prepare` can read the file."""
    if path.suffix.lower() == ".npy" or begins_with_comment(path):
        return ReadOptions(delimiter=delimiter)
    sample = sample_of(path, delimiter)
    if sample.format != "csv":
        return ReadOptions(columns=_columns(sample))
    usual = {".csv": ",", ".tsv": "\t", ".txt": "\t", ".tab": "\t"}
    suffixes = [suffix for suffix in path.suffixes if suffix.lower() != ".gz"]
    known = usual.get(suffixes[-1].lower() if suffixes else "")
    given = None if sample.delimiter == known else sample.delimiter
    return ReadOptions(delimiter=given, columns=_columns(sample))


def begins_with_comment(path: Path) -> bool:
    """Whether a text's first line is a comment of a file of edges."""
    if path.suffix.lower() == ".parquet":
        return False
    return next(read_pieces(path, 1), b"") == b"#"


def _columns(sample: LogSample) -> tuple[str, ...] | None:
    """The columns of the edges by name, or by number if they have no names; None: as `prepare` takes them.

    If names don't tell, the one of three columns that has far fewer values than both others is the relation.
    """
    if _has_weights(sample):
        return ("0", "1")
    names, said = sample.names, sample.header and roles(sample.names) is not None
    if len(names) != 3 or said or any(not name or "," in name for name in names):
        return None
    counts = [len(sample.columns[name].unique()) for name in names]
    relation = int(np.argmin(counts))
    head, tail = (number for number in range(3) if number != relation)
    if counts[relation] * _FEWER > min(counts[head], counts[tail]) or (relation == 1 and not sample.header):
        return None
    return tuple(names[number] if sample.header else str(number) for number in (head, relation, tail))


def _has_weights(sample: LogSample) -> bool:
    """Whether the last of three columns without names holds fractions, which are no names of nodes."""
    if sample.header or len(sample.names) != 3:
        return False
    try:
        last = np.array([float(each) for each in sample.columns[sample.names[2]].to_pylist()])
    except ValueError:
        return False
    return bool((last != np.floor(last)).any())


def _edges(path: Path, first: int) -> int:
    """The approximate number of edges of a file; at least `first`, that of its first batch."""
    return max(first, int(os.path.getsize(path) / 25))


def _text(
    head: list[str], path: str, relations: bool, edges: int, nodes: int, valid: bool, metric: str | None = None
) -> str:
    """The configuration; `metric` is what is computed with negatives that come with the graph."""
    small, large = edges < _SMALL, edges > _LARGE
    epochs, every = (40, 5) if small else (5 if large else 10, 1)
    batch = 500 if edges < 100_000 else 1000 if small else 10_000
    stopping = commented("  early_stopping: {patience: 2}", f"evaluations without a better {metric or 'filtered MRR'}")
    decoder, why = WITHOUT_RELATIONS, "the edges have no relations"
    if relations:
        others = (name for name, part in DECODERS.items() if part.uses_relations and name != DEFAULT_DECODER)
        decoder, why = DEFAULT_DECODER, f"or {', '.join(others)}"
    more = ["  reciprocal: true"] if relations else []
    evaluation = [f"  every: {every}"]
    if metric:
        evaluation.append(commented("  candidates: given", f"OGB's negatives, for its {metric}"))
    elif nodes > _FEW_NODES:
        evaluation.append(commented("  candidates: 10000", "drawn ones; `all` ranks against every node"))
    lines = [
        *(f"# {each if each.isprintable() else plain(each)}" for each in head),
        "# Written by `marius-oac init`. Every key: `marius-oac config`, or docs/config.md.",
        "data:",
        f"  path: {scalar(path)}",
        "model:",
        commented(f"  decoder: {decoder}", why),
        "  dimension: 100",
        *more,
        "training:",
        f"  epochs: {epochs}",
        f"  batch_size: {batch}",
        commented("  negatives: {count: 500}", "shared by the edges of a batch, for each side"),
        *(["  regularization: {kind: n3, weight: 0.01}"] if relations else []),
        "  optimizer: {kind: adagrad, learning_rate: 0.1}",
        *([stopping] if valid else []),
        "evaluation:",
        *evaluation,
    ]
    return "\n".join(lines) + "\n"
