"""A fork server for fault scripts: imports and compiles once, then runs the command line in one child per start.

Reads a JSON list of scripts from standard input and prints a JSON list of outcomes. A script is a folder and a list of
starts; a start is `{"argv": [...], "signal": 9, "at": ["write", 12]}`. `at` names the moment: a stage and a batch, or
a function of `CALLS` and which of its calls (from 1). Without `signal` nothing is injected.

Run as `python -m tests.runs.fault_driver`.
"""

import faulthandler
import json
import multiprocessing
import os
import shutil
import signal
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import torch

import marius_oac.training.local as training
from marius_oac.cli.commands import main
from marius_oac.runs.session import Session
from marius_oac.runtime import standstill
from tests.pipeline.toy import STAGES

HANG_SECONDS = 60
CALLS = {"fsync": os, "rename": os, "replace": os, "rmtree": shutil, "evaluate": Session}
"""Functions that a fault can be put in front of, and where they live."""


def inject(number: int, stage: str, count: int):
    """Sends this process a signal at the moment; returns the probe for the pipeline."""
    if stage in STAGES:

        def probe(at: str, batch_index: int) -> None:
            if (at, batch_index) == (stage, count):
                os.kill(os.getpid(), number)

        return probe
    original, calls = getattr(CALLS[stage], stage), []

    def counted(*args, **kwargs):
        calls.append(None)
        if len(calls) == count:
            os.kill(os.getpid(), number)
        return original(*args, **kwargs)

    setattr(CALLS[stage], stage, counted)
    return None


def child(start: dict, log: Path) -> int:
    """One process of the script; returns its exit code, or 70 if it left a thread behind."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    standstill.in_command = lambda: False  # the one timer of faulthandler is this one
    faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if "signal" in start:
        probe = inject(start["signal"], *start["at"])
        training.train = partial(training.train, probe=probe)
        training.resume = partial(training.resume, probe=probe)
    code = main(start["argv"])
    return 70 if threading.active_count() > 1 else code


def run(start: dict, log: Path) -> dict:
    began = time.monotonic()
    pid = os.fork()
    if not pid:
        code = 71
        try:
            code = child(start, log)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    return {"code": code, "said": log.read_text("utf-8"), "seconds": time.monotonic() - began}


def play(script: dict) -> dict:
    """All starts of a script, one after the other."""
    folder = Path(script["folder"])
    ended = [run(start, folder.with_suffix(f".{number}.log")) for number, start in enumerate(script["starts"])]
    summary = folder / "summary.json"
    return {"ended": ended, "summary": json.loads(summary.read_text()) if summary.exists() else None}


def serve(scripts: list[dict]) -> list[dict]:
    torch.set_num_threads(1)
    thread_pool = min(len(os.sched_getaffinity(0)), len(scripts))
    with ProcessPoolExecutor(thread_pool, multiprocessing.get_context("fork")) as pool:
        return list(pool.map(play, scripts))


if __name__ == "__main__":
    request = json.load(sys.stdin)
    warm = os.dup(1)
    os.dup2(2, 1)
    if main(request["warm_up"]):  # compiles and loads every kernel once, for all children
        sys.exit(1)
    os.write(warm, json.dumps(serve(request["scripts"])).encode())
