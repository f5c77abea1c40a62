"""The system's share of each command's processor seconds.

    python -m benchmarks.waits.system_share --folder DIR-ON-THE-DISK

Generates a graph and a click log into --folder and runs each command in a process of its own, twice; the second run
counts. Seconds of a process that only loads the program are shown first; `share` is without them.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import yaml

from benchmarks.machine import machine

Words = list[str]
_LOADS = [sys.executable, "-c", "import marius_oac.training.local"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="where files of some 100 MB are put (default: a temporary folder)")
    parser.add_argument("--nodes", type=int, default=100_000, help="of the graph; it has ten edges for each")
    parser.add_argument("--examples", type=int, default=400_000, help="of the log")
    parser.add_argument("--only", nargs="+", default=("",), metavar="TEXT", help="commands whose name has one of these")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        os.chdir(folder)
        print(f"{machine()}\n\n| command | own | system | share |\n|---|---|---|---|")
        loaded = min(_spent(_LOADS) for _ in range(3))
        print(f"| (a process that loads the program) | {loaded[0]:.2f} s | {loaded[1]:.2f} s | |")
        for name, words in _commands(args.nodes, args.examples):
            counts = any(text in name for text in args.only)
            command = [sys.executable, "-m", "marius_oac", *words]
            for _ in range(1 + counts):
                subprocess.run(["rm", "-rf", "again", "again.csv", "again.html"], check=True)
                spent = _spent([each.replace("OUT", "again") for each in command])
            if counts:
                own, system = (max(mine - alone, 0.0) for mine, alone in zip(spent, loaded, strict=True))
                share = system / max(own + system, 1e-9)
                print(f"| {name} | {spent[0]:.2f} s | {spent[1]:.2f} s | {share:.1%} |", flush=True)
            if "(again)" not in name and Path("again").exists():
                Path("again").rename(name.replace(" ", "-"))


def _spent(command: Words) -> tuple[float, float]:
    """Processor seconds of a command: its own, and the system's."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: {done.stderr}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime


def _commands(nodes: int, examples: int) -> Iterator[tuple[str, Words]]:
    """Each command and a name; what it writes to OUT is there for the next by this name."""
    random = np.random.default_rng(0)
    edges = np.stack([random.integers(0, limit, 10 * nodes) for limit in (nodes, 50, nodes)], axis=1)
    np.savetxt("edges.tsv", edges, fmt="%d", delimiter="\t")
    yield "prepare", ["prepare", "edges.tsv", "--out", "OUT"]
    yield "init a graph (again)", ["init", "edges.tsv"]
    config = {"data": {"path": "prepare"}, "model": {"dimension": 100}, "training": {"epochs": 1, "batch_size": 5000}}
    _write("graph.yaml", config | {"evaluation": {"every": 0}})
    yield "train a graph", ["train", "graph.yaml", "--out", "OUT"]
    disk = {"storage": {"memory": "40MiB"}}
    _write("disk.yaml", config | {"evaluation": {"every": 0}} | disk)
    yield "train on disk", ["train", "disk.yaml", "--out", "OUT"]
    run = "train-a-graph"
    yield "eval (again)", ["eval", run, "--split", "valid"]
    yield "predict (again)", ["predict", run, "--head", "5", "--relation", "7"]
    yield "export (again)", ["export", run, "--out", "OUT"]
    yield "compare (again)", ["compare", run, run]
    yield "verify (again)", ["verify", run]
    yield "report (again)", ["report", run, "--out", "again.html"]
    words = ["--out", "log", "--days", "1", "--rows", str(examples), "--keys", str(examples)]
    subprocess.run([sys.executable, "-m", "benchmarks.generate.log", *words], check=True, capture_output=True)
    log = str(next(Path("log").glob("*.parquet")))
    yield "init a log (again)", ["init", log]
    text = subprocess.run([sys.executable, "-m", "marius_oac", "init", log], check=True, capture_output=True).stdout
    _write("clicks.yaml", yaml.safe_load(text) | {"training": {"epochs": 1, "batch_size": 4096}})
    yield "train clicks", ["train", "clicks.yaml", "--out", "OUT"]
    yield "eval clicks (again)", ["eval", "train-clicks", "--data", log]
    yield "predict clicks (again)", ["predict", "train-clicks", "--data", log, "--out", "OUT.csv"]
    yield "export clicks (again)", ["export", "train-clicks", "--out", "OUT"]


def _write(name: str, config: dict) -> None:
    Path(name).write_text(yaml.safe_dump(config), "utf-8")


if __name__ == "__main__":
    main()
