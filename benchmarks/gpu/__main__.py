"""What a GPU has to show, in nine parts of less than eight minutes each: 1, 9, 2, 3 first, then the others.

    python -m benchmarks.gpu --part 1 --out FOLDER      # one part, on the GPU; rows go to FOLDER/results.jsonl
    python -m benchmarks.gpu --rehearse                 # all parts in small, on CPU tensors
    python -m benchmarks.gpu --page                     # benchmarks/gpu/README.md of benchmarks/gpu/results.jsonl

Exit code 1: a measurement failed. A part stops beginning measurements when its time is used up, and says what is
missing. benchmarks/gpu/README.md says how to run it where a GPU is lent.
"""

from __future__ import annotations

import argparse
import datetime
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from benchmarks.gpu import bandwidths, big_table, correct, kernels, networks, page, quality, ranks, soak, steps
from benchmarks.gpu.part import Table, run_part
from benchmarks.gpu.place import Place
from benchmarks.gpu.results import FILE, Results, read

PARTS = dict(enumerate((correct, steps, quality, bandwidths, big_table, networks, ranks, soak, kernels), 1))
HERE = Path(__file__).parent


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--part", type=int, choices=PARTS, help="the part to measure, on the GPU")
    what.add_argument("--rehearse", action="store_true", help="all parts in small, on the CPU: proves that they run")
    what.add_argument("--page", action="store_true", help="write the page of figures")
    parser.add_argument("--out", type=Path, help="folder for results.jsonl and logs (with --part)")
    parser.add_argument("--commit", help="what is measured (default: what git says)")
    parser.add_argument("--data", default=os.environ.get("MARIUS_OAC_DATA"), help="folder of data sets, for part 3")
    options = parser.parse_args()
    if options.page:
        return write_page()
    data = Path(options.data) if options.data else None
    if options.rehearse:
        return rehearse(options.out, options.commit, data)
    if options.out is None:
        parser.error("--part needs --out, the folder for its results")
    if not torch.cuda.is_available():
        parser.error("--part measures a GPU, and torch finds none here; --rehearse runs all parts on the CPU")
    place = Place(torch.device("cuda:0"), small=False)
    return measure(options.part, place, options.out, options.commit or commit(), data)


def measure(number: int, place: Place, out: Path, what: str, data: Path | None) -> int:
    """Runs a part; returns the exit code."""
    now = datetime.datetime.now(datetime.UTC)
    about = {"run": f"{now:%Y%m%d-%H%M%S}-{number}-{os.getpid()}", "part": number, "small": place.small, "commit": what}
    results = Results(out, {**about, "date": f"{now:%Y-%m-%d %H:%M} UTC", **place.facts()})
    print(f"{PARTS[number].__doc__.splitlines()[0]}\n  {results.lines[0]}", flush=True)
    began = time.monotonic()
    part = run_part(PARTS[number], place, results, out, data)
    print(f"part {number}: {part.rows} rows, {part.failed} failed, {time.monotonic() - began:.1f} s", flush=True)
    return 1 if part.failed or not part.rows else 0


def rehearse(out: Path | None, what: str | None, data: Path | None) -> int:
    """Runs all parts in small; 1 if one of them failed, found nothing, or left a table of its own without a row."""
    place, codes = Place(torch.device("cpu"), small=True), []
    os.environ["TRITON_INTERPRET"] = "1"  # before anything imports Triton
    with tempfile.TemporaryDirectory() as folder:
        out = out or Path(folder)
        began = len(read(out / FILE))
        for number in PARTS:
            codes.append(measure(number, place, out, what or commit(), data))
        lines = read(out / FILE)[began:]
    took = [(line["run"].split("-")[2], line["seconds"]) for line in lines if line["kind"] == "end"]
    print("seconds: " + ", ".join(f"part {number} {seconds:.1f}" for number, seconds in took), flush=True)
    measured = {line["name"] for line in lines if line["kind"] == "row"}
    empty = [table.name for part in PARTS.values() for table in part.TABLES if table.name not in measured]
    if empty:
        print(f"tables without a row: {', '.join(empty)}", file=sys.stderr)
    return 1 if any(codes) or empty else 0


def commit() -> str:
    ask = ("git", "-C", str(HERE), "describe", "--always", "--dirty", "--abbrev=12")
    try:
        return subprocess.run(ask, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def write_page() -> int:
    (HERE / "README.md").write_text(the_page(), "utf-8")
    return 0


def the_page() -> str:
    text = (HERE / "page.md").read_text("utf-8")
    return page.page(text, tables(), read(HERE / FILE))


def tables() -> dict[str, list[Table]]:
    """The tables of all parts, by what the part is called."""
    return {part.__doc__.splitlines()[0].rstrip("."): part.TABLES for part in PARTS.values()}


if __name__ == "__main__":
    sys.exit(main())
