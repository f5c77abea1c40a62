"""Seconds from a command to its first line, to its first batch and to its end, of a machine's first run and the next.

    python -m benchmarks.waits.starts --tree . --tree BEFORE --rounds 3

A first run has an empty cache of Numba's. Each run is the command of a checkout's own .venv, trained for one epoch, on
the graph that comes with the package; clicks are those of Frappe where MARIUS_OAC_DATA has them. The checkouts take
turns; printed are medians, and the processor seconds of all processes of a run.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.machine import machine

WATCH = """
import importlib.machinery, os, sys, time

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name != "marius_oac.pipeline.runner":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        run = spec.loader.exec_module

        def exec_module(module):
            run(module)
            begin = module.Pipeline.__init__

            def init(self, *args, **options):
                begin(self, *args, **options)
                said, report = [], self.on_result

                def on_result(result):
                    if not said:
                        said.append(True)
                        with open(os.environ["FIRST_BATCH"], "a") as file:
                            file.write(f"{time.time()}\\\\n")
                    report(result)

                self.on_result = on_result

            module.Pipeline.__init__ = init

        spec.loader.exec_module = exec_module
        return spec

sys.meta_path.insert(0, Finder())
""".replace("\\\\n", "\\n")
"""A sitecustomize.py: the time of the first batch of each process that trains."""

CLICKS = """
task: ctr
data:
  train: {data}/frappe/valid.csv.gz
  test: {data}/frappe/test.csv.gz
  categorical: [user, item, daytime, weekday, isweekend, homework, cost, weather, country, city]
model: {{network: deepfm, dimension: 10, hidden: [400, 400, 400], batch_norm: true, dropout: 0.2}}
training:
  epochs: 1
  batch_size: 4096
  optimizer: {{kind: adam, learning_rate: 0.001}}
  dense_optimizer: {{kind: adam, learning_rate: 0.001}}
"""
WAITS = ("first line", "first batch", "end", "processor")


def commands(folder: Path) -> dict[str, Sequence[str]]:
    """What is run, by name."""
    graph = (str(Path("examples/codex-s.yaml").resolve()), "--set", "training.epochs=1")
    found = {
        "graph": graph,
        "encoder": (*graph, "--set", "encoder.layers=[{kind: sage, neighbors: 10}]"),
        "two nodes": (*graph, "--local-nodes", "2"),
    }
    if (data := os.environ.get("MARIUS_OAC_DATA")) and (Path(data) / "frappe").is_dir():
        (folder / "clicks.yaml").write_text(CLICKS.format(data=data))
        found["clicks"] = (str(folder / "clicks.yaml"),)
    return found


def run(tree: Path, words: Sequence[str], folder: Path, out: Path) -> Mapping[str, float]:
    """Trains once; the waits in seconds."""
    first = folder / "first-batch"
    first.unlink(missing_ok=True)
    own = {"PYTHONPATH": str(folder), "FIRST_BATCH": str(first), "NUMBA_CACHE_DIR": str(out.parent / "cache")}
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.time()
    with subprocess.Popen(
        [tree / ".venv/bin/marius-oac", "train", *words, "--out", out], cwd=folder, env=os.environ | own,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stderr is not None
        said = process.stderr.readline()
        line = time.time()
        said += process.stderr.read()
    end, after = time.time(), resource.getrusage(resource.RUSAGE_CHILDREN)
    if process.returncode:
        raise SystemExit(said)
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    batch = max(map(float, first.read_text().split()))
    return dict(zip(WAITS, (line - started, batch - started, end - started, processor), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tree", type=Path, action="append", help="a checkout with its .venv (default: this one)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", action="append", help="graph, encoder, two nodes or clicks; repeatable")
    arguments = parser.parse_args()
    trees = [tree.resolve() for tree in arguments.tree or [Path()]]
    found: dict[tuple[str, str, str], list[Mapping[str, float]]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as name:
        (folder := Path(name)).joinpath("sitecustomize.py").write_text(WATCH)
        kinds = {kind: words for kind, words in commands(folder).items() if kind in (arguments.only or [kind])}
        for number in range(arguments.rounds):
            for kind, words in kinds.items():
                for place, tree in enumerate(trees):
                    own = folder / f"{number}-{place}-{kind}".replace(" ", "-")
                    for which in ("first", "second"):
                        found[kind, which, str(tree)].append(run(tree, words, folder, own / which))
    print(f"{machine()}\n\n| run | | checkout | {' | '.join(WAITS)} |\n|---|---|---|{'---|' * len(WAITS)}")
    for (kind, which, checkout), waits in found.items():
        medians = (f"{statistics.median(each[wait] for each in waits):.1f}" for wait in WAITS)
        print(f"| {kind} | {which} | {checkout} | {' | '.join(medians)} |")


if __name__ == "__main__":
    main()
