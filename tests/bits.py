"""Do two versions of this package train the same bits? `python -m tests.bits [--tree FOLDER]...`

Trains some small configurations with the package of each given checkout (default: this one), each in processes whose
PYTHONPATH is that checkout, with kernels compiled anew. What is trained on, the same for all, is written here and
prepared there; only commands that users type are called, and only files of checkpoints are read, so that any two
versions can be compared that can both train these configurations.

Prints a table: for each configuration and checkout the first digits of the SHA-256 of what was trained (names and bytes
of rows, keys, optimizer state and dense parameters) and of the results that were measured on it, and whether they are
the same. Exit code 1 if any differs, or fails. Bits depend on the processor and on the libraries, so there are no
expected ones: compare checkouts on one machine. Takes about a minute and a half for each.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from pyarrow import csv

HERE = Path(__file__).resolve().parents[1]
DIGITS = 16
FAILED = "failed"
NOT_TRAINED = (".timestamps.npy", ".slots.npy", ".checksums.npy")
"""Ends of names of a checkpoint's files that hold no result of training."""
RESULTS = ("test.", "valid.")

# Calls commands in a process that has imported torch and compiled kernels already. Its arguments are the folder that
# the package must come from, and lists of words, as JSON.
_CALLER = """
import json, os, sys, traceback
import marius_oac
from marius_oac.cli.commands import main
tree, *commands = sys.argv[1:]
assert os.path.dirname(os.path.dirname(os.path.realpath(marius_oac.__file__))) == tree, marius_oac.__file__
for command in map(json.loads, commands):
    try:
        if code := main(command):
            print(command, code)
    except Exception:
        print(command, traceback.format_exc())
"""
_SEEN = {
    "evaluation": {"candidates": 50},
    "compute": {"products": "numpy"},
}  # not a race's winner, which has other bits
_GRAPH = {
    "device": "cpu",
    "data": {"path": "graph"},
    "model": {"dimension": 16, "init_scale": 0.3},
    "training": {"epochs": 2, "batch_size": 64, "negatives": {"count": 16, "chunks": 2, "degree_fraction": 0.5}},
    **_SEEN,
}
_CLICKS = {
    "task": "ctr",
    "device": "cpu",
    "data": {
        "train": "day_*.parquet",
        "test": "test.parquet",
        "label": "label",
        "numeric": ["number"],
        "categorical": ["user", "item"],
        "multi_valued": [{"name": "tags", "pooling": "mean"}],
        "ignored": ["history"],
    },
    "model": {"network": "deepfm", "dimension": 8, "hidden": [16, 8], "bottom": [16], "init_scale": 0.3},
    "training": {"epochs": 2, "batch_size": 64, "embedding_l2": 1.0e-4},
    "compute": {"products": "numpy"},
}
_HISTORY = {"data": {"sequences": [{"name": "history", "vocabulary": "item", "max_values": 4}], "ignored": []}}
_ENCODER = {"layers": [{"kind": "sage", "neighbors": 5}, {"kind": "gat", "neighbors": 5, "heads": 2}], "dropout": 0.1}


class Case(NamedTuple):
    """What is trained: a name, a config, options of `train`, and what `resume` then changes, if anything."""

    name: str
    config: dict[str, Any]
    options: tuple[str, ...] = ()
    resumed: tuple[str, ...] = ()


def changed(tree: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """A tree with other values: a mapping changes what it names, anything else replaces what was there."""
    found = dict(tree)
    for key, value in change.items():
        below = isinstance(value, Mapping) and isinstance(found.get(key), Mapping)
        found[key] = changed(found[key], value) if below else value
    return found


def _graph(change: Mapping[str, Any] = {}, **model: Any) -> dict[str, Any]:
    return changed(changed(_GRAPH, {"model": model}), change)


def _clicks(change: Mapping[str, Any] = {}, **model: Any) -> dict[str, Any]:
    return changed(changed(_CLICKS, {"model": model}), change)


_DISK = {
    "model": {"dimension": 256},  # a row with its state takes more than half a page
    "training": {"epochs": 1, "batch_size": 8, "negatives": {"count": 4, "chunks": 1},
                 "ordering": {"kind": "comet", "partitions": 8, "buffer": 4}},
    "storage": {"memory": 500_000, "page": 4096},
}  # fmt: skip
CASES = (
    Case("ComplEx, codex-s", _graph({"data": {"path": "codex-s"}, "training": {"epochs": 1, "batch_size": 1000}})),
    Case("DistMult, Adam, N3", _graph({"training": {"optimizer": {"kind": "adam", "learning_rate": 0.01},
                                                    "regularization": {"kind": "n3", "weight": 0.01}}},
                                      decoder="distmult")),
    Case("TransE, L1, reciprocal, margin", _graph({"training": {"loss": {"kind": "margin"}}},
                                                  decoder="transe", norm=1, reciprocal=True)),
    Case("RotatE, self-adversarial", _graph({"training": {"loss": {"kind": "self_adversarial"},
                                                          "optimizer": {"kind": "rowwise_adagrad"}}},
                                            decoder="rotate")),
    Case("Dot, SGD", _graph({"data": {"path": "links"}, "training": {"optimizer": {"kind": "sgd"}}}, decoder="dot")),
    Case("DeepFM", _clicks()),
    Case("DCNv2, Adam, admission", _clicks({"keys": {"admit_after": 2}, "training": {"optimizer": {"kind": "adam"}}},
                                           network="dcnv2", batch_norm=True, dropout=0.2)),
    Case("DIEN", _clicks(_HISTORY, network="dien", target="item")),
    Case("GraphSAGE and GAT", _graph({"encoder": _ENCODER}, decoder="distmult")),
    Case("on disk, COMET, then in memory", _graph(_DISK),
         resumed=("storage.memory=null", "training.epochs=2")),
    Case("classes of nodes", {
        "task": "node_classification",
        "device": "cpu",
        "data": {"path": "links", "labels": "labels.tsv"},
        "model": {"dimension": 16},
        "encoder": _ENCODER | {"embeddings": 8},
        "training": {"epochs": 2, "batch_size": 64},
    }),
    Case("two nodes", _clicks(), ("--local-nodes", "2")),
)  # fmt: skip


def write_sources(folder: Path) -> None:
    """Edges with relations and without, labels of nodes, and click logs of two days and one to test on."""
    draw = np.random.default_rng(0)
    ends = draw.zipf(1.3, (3000, 2)) * np.array([7, 11]) % 300
    relations = draw.integers(4, size=len(ends))
    edges = [f"e{head}\tr{relation}\te{tail}" for (head, tail), relation in zip(ends, relations, strict=True)]
    (folder / "edges.tsv").write_text("\n".join(edges) + "\n")
    (folder / "links.tsv").write_text("\n".join(f"e{head}\te{tail}" for head, tail in ends) + "\n")
    split = ("train", "train", "valid", "test")
    labels = [f"e{node}\tclass {node % 5}\t{split[node % 4]}" for node in sorted(set(ends.ravel()))]
    (folder / "labels.tsv").write_text("\n".join(["name\tlabel\tsplit", *labels]) + "\n")
    for name in ("day_0", "day_1", "test"):
        _write_clicks(folder / f"{name}.parquet", draw)


def _write_clicks(path: Path, draw: np.random.Generator, rows: int = 2000) -> None:
    user, item = draw.zipf(1.3, (2, rows)) % 500
    lists = pa.list_(pa.int64())
    columns = {
        "label": pa.array((user * 7 + item + draw.integers(4, size=rows)) % 5 < 2, pa.int8()),
        "number": pa.array(draw.normal(size=rows), pa.float32()),
        "user": user,
        "item": item,
        "tags": pa.array([draw.integers(12, size=size).tolist() for size in draw.integers(4, size=rows)], lists),
        "history": pa.array([draw.integers(99, size=size).tolist() for size in draw.integers(6, size=rows)], lists),
    }
    pq.write_table(pa.table(columns), path)
    flat = {name: columns[name] for name in ("label", "number", "user", "item")}
    csv.write_csv(pa.table(flat), path.with_suffix(".csv"))


def train_all(
    tree: Path, folder: Path, cases: Sequence[Case] = CASES, kernels: Path | None = None
) -> dict[str, dict[str, str]]:
    """Trains with the package of a checkout in a new folder; the digests of each case, by what they are of, or FAILED.
    What a command that fails has said goes to standard error. Kernels are cached in
    `kernels`, a folder; None: in the new one."""
    folder.mkdir()
    write_sources(folder)
    commands = [["prepare", "edges.tsv", "--out", "graph"],
                ["prepare", "links.tsv", "--no-relations", "--unseen", "keep", "--out", "links"]]  # fmt: skip
    for number, case in enumerate(cases):
        (folder / f"{number}.yaml").write_text(yaml.safe_dump(case.config))
        commands.append(["train", f"{number}.yaml", "--out", f"run-{number}", *case.options])
        if case.resumed:
            sets = [word for change in case.resumed for word in ("--set", change)]
            commands.append(["resume", f"run-{number}", *sets])
    environment = os.environ | {"PYTHONPATH": str(tree), "NUMBA_CACHE_DIR": str(kernels or folder / "kernels")}
    call = [sys.executable, "-P", "-c", _CALLER, str(tree), *map(json.dumps, commands)]
    done = subprocess.run(
        call, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode or any(not (folder / f"run-{number}" / "summary.json").exists() for number in range(len(cases))):
        print(f"{tree}:\n{done.stdout}", file=sys.stderr)
    return {case.name: digests(folder / f"run-{number}") for number, case in enumerate(cases)}


def digests(run: Path) -> dict[str, str]:
    """SHA-256 of a run's newest checkpoint, with all parts of a run over nodes, and of its results."""
    if not (run / "summary.json").exists():
        return dict.fromkeys(("trained", "results"), FAILED)
    newest = max(path.parent.name for path in run.glob("**/checkpoints/[0-9]*/manifest.json"))
    found = hashlib.sha256()
    for part in sorted(run.glob(f"**/checkpoints/{newest}")):
        node = part.parents[1].name if part.parents[1] != run else ""
        for name, content in trained(part):
            found.update(f"{node}/{name} {len(content)}\n".encode() + content)
    summary = json.loads((run / "summary.json").read_text())
    results = {key: value for key, value in summary.items() if key.startswith(RESULTS) and "seconds" not in key}
    text = json.dumps(results, sort_keys=True)
    return {"trained": found.hexdigest(), "results": hashlib.sha256(text.encode()).hexdigest()}


def trained(checkpoint: Path) -> Iterator[tuple[str, bytes]]:
    """Name and bytes of each array and tensor of a checkpoint, or of one node's part of it."""
    for path in sorted(checkpoint.iterdir()):
        if path.suffix in (".npy", ".safetensors") and not path.name.endswith(NOT_TRAINED):
            yield path.name, path.read_bytes()


def compared(found: Mapping[str, Mapping[str, Mapping[str, str]]]) -> tuple[list[str], bool]:
    """The lines of the table, of digests by checkout, case and kind; and whether all are the same."""
    trees = list(found)
    lines = ["| configuration | of | " + " | ".join(trees) + " | |", "|---|---|" + "---|" * (len(trees) + 1)]
    all_same = True
    for case, kinds in found[trees[0]].items():
        for kind in kinds:
            each = [found[tree][case][kind] for tree in trees]
            same = len(set(each)) == 1 and FAILED not in each
            all_same &= same
            verdict = "" if same and len(trees) == 1 else "same" if same else "differs"
            lines.append(f"| {case} | {kind} | {' | '.join(f'`{digest[:DIGITS]}`' for digest in each)} | {verdict} |")
    return lines, all_same


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bits", description=__doc__.partition("\n")[0])
    parser.add_argument("--tree", type=Path, action="append", help="a checkout; more than one may be given")
    trees = [tree.resolve() for tree in parser.parse_args(argv).tree or [HERE]]
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for number, tree in enumerate(trees):
            found[str(tree)] = train_all(tree, Path(folder) / str(number))
    lines, same = compared(found)
    print("\n".join(lines))
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
