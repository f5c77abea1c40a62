"""What `marius-oac watch` costs a run: processor seconds with a watcher and without, in turns, and its own."""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

WAYS = {"not watched": None, "terminal": [], "page": ["--page"]}
PROGRAM = [sys.executable, "-m", "marius_oac"]


def main() -> None:
    """Prints a line for each way of watching."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, default=Path("examples/codex-s.yaml"))
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=4)
    args = parser.parse_args()
    found: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as scratch:
        for number in range(args.rounds):
            for way, options in WAYS.items():  # in turns
                found[way].append(_run(args, Path(scratch) / f"{number}{way[-4:]}", options))
                print(way, *(f"{each:.2f}" for each in found[way][-1]), flush=True)
    plain = [run for run, _ in found["not watched"]]
    for way, seconds in found.items():
        ratio = statistics.median(run / alone for (run, _), alone in zip(seconds, plain, strict=True))
        runs, watches = (statistics.median(each) for each in zip(*seconds, strict=True))
        print(f"| {way} | {runs:.2f} | {ratio - 1:+.2%} | {watches:.2f} |")


def _run(args: argparse.Namespace, out: Path, options: list[str] | None) -> tuple[float, float]:
    """Processor seconds of a run, and of its watcher."""
    train = [*PROGRAM, "train", str(args.config), "--out", str(out), "--set", f"training.epochs={args.epochs}"]
    run = subprocess.Popen(train, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    watcher = None
    if options is not None:
        while not (out / "metrics.jsonl").exists():
            time.sleep(0.05)
        watcher = subprocess.Popen([*PROGRAM, "watch", str(out), *options], stdout=subprocess.PIPE, text=True)
    spent = [_wait(each) for each in (run, watcher) if each is not None]
    return spent[0], spent[1] if watcher else 0.0


def _wait(process: subprocess.Popen[str]) -> float:
    """Processor seconds of a process, with its children, when it has ended."""
    if process.stdout is not None:
        process.stdout.read()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
