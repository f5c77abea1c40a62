"""A short run under compute-sanitizer, and a run that is killed and resumed again and again."""

from __future__ import annotations

import functools
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.graphs import generated_graph
from benchmarks.gpu.part import Missing, Part, Table
from marius_oac.config.link_prediction import Config
from tests.graphs import workers

SECONDS = 460
TABLES = [
    Table("sanitizer", "compute-sanitizer",
          "Runs twenty batches of ComplEx, with validation and all copies, and counts the errors that the tool "
          "reports.",
          {"tool": "tool", "batches": "batches", "code": "exit code", "said": "what it said"}),
    Table("soak", "kill -9 and resume",
          "The same run is trained once to its end, and once killed at random moments and resumed. The table "
          "compares the SHA-256 of all rows and dense parameters.",
          {"run": "run", "batches": "batches", "kills": "kills", "same": "same bits", "mrr": "MRR"}),
]  # fmt: skip
ROOT = Path(__file__).parents[2]
TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")
SANITIZER = "compute-sanitizer"
LOG_BYTES = 1 << 20
PLACES = (Path("/usr/local/cuda/bin"), Path("/usr/local/cuda/compute-sanitizer"))


def run(part: Part) -> None:
    with tempfile.TemporaryDirectory() as folder:
        config = functools.cache(lambda: _config(part, Path(folder)))
        _soak(part, config, Path(folder))
        _sanitize(part, config)


def _config(part: Part, folder: Path) -> Path:
    """A file: a run of some minutes with a checkpoint every few seconds."""
    sizes, batch, every, epochs = part.place.pick(
        ((100_000, 1_000_000, 50), 2_000, 400, 8), ((300, 2_000, 5), 50, 10, 3)
    )
    graph = generated_graph(folder, *sizes)
    config = Config.build(
        {
            "device": str(part.place.device),
            "data": {"path": str(graph.path)},
            "model": {"decoder": "complex", "dimension": part.place.pick(100, 8), "init_scale": 0.1},
            "training": {"batch_size": batch, "epochs": epochs, "negatives": {"count": part.place.pick(200, 10)}},
            "evaluation": {"every": 0, "candidates": 100},
            "checkpoint": {"every_batches": every},
        },
        ("pipeline.in_flight=8", *workers(2)),
    )
    path = folder / "config.yaml"
    path.write_text(config.dump())
    return path


def _child(part: Part, *words: object) -> list[str]:
    small = ["--small"] if part.place.small else []
    return [sys.executable, "-m", "benchmarks.gpu.child", *map(str, words), *small]


def _soak(part: Part, config: Callable[[], Path], folder: Path) -> None:
    def whole() -> dict[str, Any]:
        _to_its_end(part, "train", config(), folder / "whole")
        return _outcome(folder / "whole") | {"kills": 0}

    def killed() -> dict[str, Any]:
        if not (folder / "whole" / "summary.json").exists():
            raise Missing("there is nothing to compare it with")
        kills = _killed(part, config(), folder / "killed")
        found = _outcome(folder / "killed")
        same = found["bits"] == _outcome(folder / "whole")["bits"]
        return found | {"kills": kills, "same": same, "right": same}

    part.measure("soak", {"run": "to its end"}, whole, needs=part.place.pick(120, 0))
    part.measure("soak", {"run": "killed"}, killed, needs=part.place.pick(120, 0))


def _killed(part: Part, config: Path, path: Path) -> int:
    """Trains a run to its end, and kills it on the way as often as there is time for, but not for ever; how often."""
    chance, kills, most = random.Random(0), 0, part.place.pick(12, 2)
    reserve = part.place.pick(200, 0)  # for the last life, and the sanitizer
    while kills < most and part.left() > reserve:
        words = ("train", config, path) if not list(path.glob("checkpoints/0*")) else ("resume", config, path)
        if words[0] == "train" and path.exists():
            shutil.rmtree(path)  # killed before its first checkpoint
        process = subprocess.Popen(_child(part, *words), cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        before = _progress(path) if words[0] == "resume" else 0
        if _wait(process, lambda at=before: _progress(path) > at, part.left()):
            code = _exit(process, chance.uniform(0.0, part.place.pick(2.0, 0.05)))
            if code is None:
                process.kill()
                process.communicate()
                kills += 1
                continue
        _, said = process.communicate()
        if process.returncode:
            raise RuntimeError(f"{words[0]} ended with {process.returncode}: {said.decode()[-2000:]}")
        return kills
    _to_its_end(part, "resume", config, path)
    return kills


def _progress(path: Path) -> int:
    """The batches of the newest checkpoint."""
    return max((int(each.name) for each in path.glob("checkpoints/0*") if each.name.isdigit()), default=0)


def _wait(process: subprocess.Popen, reached: Any, seconds: float) -> bool:
    """Whether it came that far; else it has ended."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if reached():
            return True
        if _exit(process, 0.02) is not None:
            return False
    process.kill()
    process.communicate()
    raise TimeoutError("no checkpoint came")


def _exit(process: subprocess.Popen, seconds: float) -> int | None:
    """The exit code of a process that ends within so many seconds."""
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None


def _to_its_end(part: Part, verb: str, config: Path, path: Path) -> None:
    done = subprocess.run(
        _child(part, verb, config, path), cwd=ROOT, capture_output=True, text=True, timeout=max(10, part.left())
    )
    if done.returncode:
        raise RuntimeError(f"{verb} ended with {done.returncode}: {done.stderr[-2000:]}")


def _outcome(path: Path) -> dict[str, Any]:
    summary = json.loads((path / "summary.json").read_text())
    bits = {key: value for key, value in summary.items() if key.endswith("sha256")}
    return {"batches": summary["training.batches"], "mrr": summary["test.filtered.mrr"], "bits": bits}


def _sanitize(part: Part, config: Callable[[], Path]) -> None:
    if part.place.small:  # the short run alone, without a tool
        part.measure("sanitizer", {"tool": "none"}, lambda: _checked(part, config(), []))
        return
    found = shutil.which(SANITIZER) or next(
        (str(each / SANITIZER) for each in PLACES if (each / SANITIZER).exists()), ""
    )

    def checked(tool: str) -> dict[str, Any]:
        if not found:
            raise Missing(f"there is no {SANITIZER} here")
        return _checked(part, config(), [found, "--tool", tool, "--error-exitcode", "99"])

    for tool in TOOLS:
        part.measure("sanitizer", {"tool": tool}, lambda tool=tool: checked(tool), needs=30)


def _checked(part: Part, config: Path, tool: Sequence[str]) -> dict[str, Any]:
    batches = part.place.pick(20, 5)
    done = subprocess.run(
        [*tool, *_child(part, "short", config, batches)], cwd=ROOT, capture_output=True, text=True,
        timeout=max(10, min(part.left(), 150)),
    )  # fmt: skip
    said = (done.stdout + done.stderr).strip()
    with (part.out / "sanitizer.log").open("a", encoding="utf-8") as log:
        log.write(f"== {' '.join(tool)}: exit code {done.returncode}\n{said[-LOG_BYTES:]}\n")
    if not tool and done.returncode:
        raise RuntimeError(f"the short run ended with {done.returncode}: {said[-2000:]}")
    return {
        "batches": batches,
        "code": done.returncode,
        "right": not done.returncode,
        "said": said.splitlines()[-1][:120] if said else "",
    }
