"""What a GPU has to show, in two calls of 150 and 300 seconds; other parts by name, where there is time.

    python -m benchmarks.gpu --call 1 --out FOLDER      # what can be wrong in principle, to FOLDER/results.jsonl
    python -m benchmarks.gpu --call 2 --out FOLDER      # same bits under delayed streams, and the important figures
    python -m benchmarks.gpu --part soak --seconds 200 --only sanitizer --out FOLDER
    python -m benchmarks.gpu --rehearse                 # both calls in small, on CPU tensors
    python -m benchmarks.gpu --page                     # benchmarks/gpu/README.md of benchmarks/gpu/results.jsonl

A command ends in its time, whatever hangs, and says what was not measured. Exit code 1: a measurement failed, or a part
was killed. benchmarks/gpu/README.md says how to run it where a GPU is lent.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import torch

from benchmarks.gpu import page, triton_cache
from benchmarks.gpu.bounded import bounded
from benchmarks.gpu.calls import CALLS, PARTS, Call, Command, Step, run_call
from benchmarks.gpu.part import Table
from benchmarks.gpu.place import Place
from benchmarks.gpu.results import FILE, read
from marius_oac.kernels import ahead

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
KERNELS_OF = ("links", "clicks", "encoder", "bfloat16")
"""What the calls train, as the record of the CPU's kernels names it."""


def main() -> int:
    began = time.monotonic() - (time.time() - psutil.Process().create_time())
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--call", type=int, choices=CALLS, help="the call to make")
    what.add_argument("--part", choices=PARTS, help="the part to measure")
    what.add_argument("--page", action="store_true", help="write the page of figures")
    parser.add_argument("--seconds", type=float, help="that the part has (default: those of the part)")
    parser.add_argument("--only", action="append", default=[], metavar="TEXT",
                        help="of the part, what has this text in its name or settings; may be repeated")  # fmt: skip
    parser.add_argument("--rehearse", action="store_true", help="in small, on the CPU (default: both calls)")
    parser.add_argument("--out", type=Path, help="folder for results.jsonl and logs")
    parser.add_argument("--commit", help="what is measured (default: what git says)")
    parser.add_argument("--data", type=Path, default=os.environ.get("MARIUS_OAC_DATA"), help="data sets, for quality")
    parser.add_argument("--triton-cache", type=Path, default=ROOT / "build" / "gpu-triton-cache.tar.xz", metavar="FILE",
                        help="kernels that were compiled before (default: %(default)s, if it is there)")  # fmt: skip
    options = parser.parse_args()
    if options.page:
        return write_page()
    if not (options.call or options.part or options.rehearse):
        parser.error("one of --call, --part, --rehearse and --page is needed")
    if (options.only or options.seconds) and not options.part:
        parser.error("--only and --seconds are for --part")
    if options.out is None and not options.rehearse:
        parser.error("--out is needed, the folder for the results")
    if not options.rehearse and (why := no_gpu()):
        parser.error(f"{why}; --rehearse runs the same on the CPU")
    return measure(options, began)


def no_gpu() -> str:
    """Why there is nothing to measure, if so. Asked in a process of its own, as CUDA does not survive a fork."""
    answer = bounded(lambda: 0 if torch.cuda.is_available() else 1, 60)
    said = {0: "", 1: "a GPU is measured, and torch finds none here"}
    return said.get(answer, "torch does not say whether there is a GPU")


def measure(options: argparse.Namespace, began: float) -> int:
    """Makes the calls; returns the exit code."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # by which processes are killed
    if options.rehearse:
        place = Place(torch.device("cpu"), small=True)
        os.environ["TRITON_INTERPRET"] = "1"  # before anything imports Triton
    else:
        place = Place(torch.device("cuda:0"), small=False)
        triton_cache.use(options.triton_cache)
    if options.part:
        seconds = options.seconds or PARTS[options.part].SECONDS
        calls = [Call(seconds, [Step(options.part, seconds, options.only)])]
    else:
        calls = [CALLS[options.call]] if options.call else list(CALLS.values())
    with tempfile.TemporaryDirectory() as folder, ahead.compiling(KERNELS_OF):
        command = Command(place, options.out or Path(folder), options.commit or commit(), options.data)
        codes = []
        for call in calls:
            codes.append(run_call(command, call, began))
            began = time.monotonic()
        return max(codes)


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
    return {f"{name}: {part.__doc__.splitlines()[0].rstrip('.')}": part.TABLES for name, part in PARTS.items()}


if __name__ == "__main__":
    sys.exit(main())
