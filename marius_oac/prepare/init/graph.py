"""A first configuration for a graph. The decoder depends on its relations, the sizes on the number of its edges."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from marius_oac.config.parts import DECODERS, DEFAULT_DECODER, WITHOUT_RELATIONS
from marius_oac.data.graphs.graph import open_graph
from marius_oac.data.reading.edge_file import EdgeFile, ReadOptions
from marius_oac.data.reading.readers import read_edges
from marius_oac.data.reading.text import read_pieces
from marius_oac.errors import InputError
from marius_oac.prepare.init.yaml_text import commented, plain, scalar
from marius_oac.types import present

_SMALL, _LARGE = 1_000_000, 20_000_000  # edges
_FEW_NODES = 200_000  # up to so many, edges are ranked against all nodes


def known_graph(name: str) -> str:
    """The configuration for a prepared graph, given by its folder or the name of an embedded data set.

    Raises:
        InputError: there is no such graph, or it has no edges to train on.
    """
    graph = open_graph(name)
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
    file = EdgeFile(path, ReadOptions(delimiter=delimiter, columns=columns), one_of_several=len(files) > 1)
    batches = read_edges(file)
    first = next(batches, None)
    batches.close()
    if first is None:
        raise InputError("the file has no edges", path)
    named = Path(sources[0] if len(sources) == 1 else path)  # a folder's name says more than that of a part of it
    folder = Path("data", re.sub(r"[*?[\]]", "", named.name.split(".")[0]).strip("-_") or "graph")
    command = ["marius-oac", "prepare", *sources]
    command += ["--delimiter", delimiter] if delimiter else []
    asked = ",".join(columns or (_read_columns(file) if file.doubtful else ()))
    command += ["--columns", asked] if asked else []
    command += ["--out", str(folder)]
    shown = " ".join(map(_quoted, command))
    edges, relations = sum(_edges(each, len(first) * (each == path)) for each in files), first.num_columns == 3
    head = [f"The graph of {', '.join(sources)}. Prepare it first:", f"  {shown}"]
    notes = [] if os.path.exists(folder) else [f"prepare it first: {shown}"]
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


def _read_columns(file: EdgeFile) -> list[str]:
    """The columns that are read, as `--columns` names them."""
    found = present(file.columns)
    names = [str(number) if found.names is None else found.names[number] for number in found.chosen]
    return names if all(name and "," not in name for name in names) else list(map(str, found.chosen))


def begins_as_edges_do(path: Path) -> bool:
    """Whether a text's first line is a comment of a file of edges, or their number, as in OpenKE's files."""
    if path.suffix.lower() == ".parquet":
        return False
    piece = next(read_pieces(path, 1 << 10), b"").removeprefix(b"\xef\xbb\xbf")
    return piece[:1] == b"#" or re.match(rb"\d+\s*\n\d+[ \t]\d+[ \t]\d+\s*\n", piece) is not None


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
