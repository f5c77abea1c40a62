"""Part 1: the tests on the device, and `oac` = `sync` bit by bit while its streams are held for random whiles."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu.graphs import generated_graph
from benchmarks.gpu.part import Part, Table
from marius_oac.config.link_prediction import Config
from marius_oac.data.graphs.graph import Graph
from marius_oac.runs.session import Session
from marius_oac.runs.task import Task
from marius_oac.tasks.ctr.task import start_ctr_task
from marius_oac.tasks.link_prediction.task import GraphTask
from tests.click_logs import ctr_config, small_log
from tests.graphs import workers
from tests.pipeline.held_streams import HeldStreams

SECONDS = 460
TABLES = [
    Table("tests", "The tests on the device",
          "`pytest -m device` with `MARIUS_OAC_TEST_DEVICE=cuda`, one file at a time.",
          {"file": "file", "passed": "passed", "failed": "failed", "skipped": "skipped", "which": "which failed"}),
    Table("same bits", "`oac` has the bits of `sync`",
          "`oac` and `sync` train the same batches; the table compares the SHA-256 of all rows with their state "
          "and of dense parameters. `oac` runs with several batches in flight and several workers, and each of its "
          "streams is delayed at random by up to two milliseconds.",
          {"model": "model", "optimizer": "row optimizer", "batches": "batches", "replaced": "rows replaced",
           "same": "same bits", "again": "`sync` again: same bits"}),
]  # fmt: skip
FILES = (
    "tests/kernels/test_gpu_links.py", "tests/kernels/test_gpu_sums.py", "tests/kernels/test_gpu_clicks.py",
    "tests/pipeline/test_validation.py",
    "tests/devices/test_path.py", "tests/models/test_link_prediction.py", "tests/models/ctr/test_step.py",
    "tests/models/ctr/test_networks.py", "tests/models/gnn/test_layers.py", "tests/evaluation/test_evaluate.py",
)  # fmt: skip
FOR_BITS = 200
"""Seconds that must be left for the tests of a file to begin; the comparisons have half of them at least."""
ROOT = Path(__file__).parents[2]
LOG_BYTES = 1 << 20

DECODERS = {
    "DistMult": ["model.decoder=distmult"],
    "ComplEx": ["model.decoder=complex"],
    "TransE L1": ["model.decoder=transe", "model.norm=1"],
    "TransE L2": ["model.decoder=transe", "model.norm=2"],
    "RotatE": ["model.decoder=rotate"],
    "Dot": ["model.decoder=dot"],
}
OPTIMIZERS = ("adagrad", "rowwise_adagrad", "adam", "sgd")
NETWORKS = ("dlrm", "deepfm", "dcnv2", "dien", "youtubednn", "fm", "lr")
ENCODERS = {
    "GraphSAGE": ["encoder.layers=[{kind: sage, neighbors: 10}]"],
    "GAT": ["encoder.layers=[{kind: gat, neighbors: 5, heads: 2}]"],
    "GraphSAGE, GAT": ["encoder.layers=[{kind: sage, neighbors: 5}, {kind: gat, neighbors: 5}]", "encoder.dropout=0.2"],
}


def run(part: Part) -> None:
    for file in part.place.pick(FILES, FILES[1:2]):
        part.measure("tests", {"file": file}, lambda file=file: _tested(part, file), needs=part.place.pick(FOR_BITS, 0))
    with tempfile.TemporaryDirectory() as folder:
        _same_bits(part, Path(folder))


def _tested(part: Part, file: str) -> dict[str, Any]:
    """Runs the device's tests of a file in a process of their own; its output goes to a log beside the results.

    Where they are stopped because time is up, those that were through count.
    """
    ask = [sys.executable, "-m", "pytest", "-v", "-m", "device", "-p", "no:cacheprovider", file]
    ask += ["-o", "filterwarnings=default"]  # what another version of torch warns of is no fault of the device
    environment = {**os.environ, "MARIUS_OAC_TEST_DEVICE": str(part.place.device), "PYTHONUNBUFFERED": "1"}
    most = part.left() - FOR_BITS / 2
    try:
        done = subprocess.run(
            ask, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=most
        )
        code, said = done.returncode, done.stdout.decode()
    except subprocess.TimeoutExpired as stopped:
        code, said = None, (stopped.stdout or b"").decode()
    with (part.out / "tests.log").open("a", encoding="utf-8") as log:
        log.write(f"== {file}: exit code {code}\n{said[-LOG_BYTES:]}\n")
    if code not in (0, 1, None):
        raise RuntimeError(f"pytest ended with {code}: {said[-2000:]}")
    return counted(said, None if code is not None else f"stopped after {most:.0f} s")


def counted(said: str, stopped: str | None) -> dict[str, Any]:
    """How many tests passed, by what `pytest -v` said; `stopped`: why it did not come to its end, if so."""
    found = re.findall(r"^tests/\S+?::(.+?) (PASSED|FAILED|ERROR|SKIPPED)\b", said, re.MULTILINE)
    count = Counter(how for _, how in found)
    failed = [name for name, how in found if how in ("FAILED", "ERROR")]
    return {
        "passed": count["PASSED"], "failed": len(failed), "skipped": count["SKIPPED"],
        "which": "; ".join([*([stopped] if stopped else []), *failed[:20]]),
        "right": not failed and not stopped and bool(found),
    }  # fmt: skip


def _same_bits(part: Part, folder: Path) -> None:
    graph = generated_graph(folder, *part.place.pick((20_000, 200_000, 50), (300, 2_000, 5)))
    log = small_log(folder / "log.parquet", part.place.pick(30_000, 2_000))

    def links(*more: str) -> Callable[..., Task]:
        return lambda *mode: GraphTask(_config(part, graph).replace(*more, *mode), graph)

    def clicks(network: str) -> Callable[..., Task]:
        size = part.place.pick(("training.batch_size=1024", "model.dimension=16"), ())
        return lambda *mode: start_ctr_task(ctr_config(log, *size, part.place.override, *mode, network=network))[0]

    decoders = part.place.pick(tuple(DECODERS), ("ComplEx",))
    cases = {(name, OPTIMIZERS[0]): links(*DECODERS[name], _kind(OPTIMIZERS[0])) for name in decoders}
    cases |= {(name, "adagrad"): clicks(name) for name in part.place.pick(NETWORKS, ("deepfm",))}
    cases |= {(name, "adagrad"): links(*more) for name, more in list(ENCODERS.items())[: part.place.pick(3, 1)]}
    for kind in OPTIMIZERS[1:]:
        cases |= {(name, kind): links(*DECODERS[name], _kind(kind)) for name in decoders}
    cases["ComplEx, bfloat16", "adagrad"] = links("storage.dtype=bfloat16")
    cases["ComplEx, in order of arrival", "adagrad"] = links("pipeline.order=arrival")
    where = {"model": "ComplEx, `async`: must differ", "optimizer": "adagrad"}
    part.measure("same bits", where, lambda: _compared(part, links(), folder, mode="async"))
    for (model, optimizer), make in cases.items():
        where = {"model": model, "optimizer": optimizer}
        part.measure("same bits", where, lambda make=make: _compared(part, make, folder))


def _kind(optimizer: str) -> str:
    return f"training.optimizer.kind={optimizer}"


def _config(part: Part, graph: Graph) -> Config:
    size, count, dimension = part.place.pick((2_000, 200, 64), (100, 16, 8))
    return Config.build(
        {
            "device": str(part.place.device),
            "data": {"path": str(graph.path)},
            "model": {"dimension": dimension, "init_scale": 0.3},
            "training": {
                "batch_size": size,
                "negatives": {"count": count, "chunks": 2},
                "optimizer": {"learning_rate": 0.05},
            },
        }
    )


def _compared(part: Part, make: Callable[..., Task], folder: Path, mode: str = "oac") -> dict[str, Any]:
    """Trains by `make(*overrides)` twice in `sync` and once in `oac`; where they come in order of arrival, `sync`
    follows the order of `oac`. In `async`, as a control, bits must differ."""
    batches = part.place.pick(40, 12)
    busy = (f"pipeline.mode={mode}", "pipeline.in_flight=8", *workers(3))
    found = _trained(part, make(*busy), batches, held=True)
    order, replay = folder / "order.npy", ()
    if make().config.pipeline.order == "arrival":
        np.save(order, np.array(found["order"], np.int64))
        replay = (f"pipeline.order={order}",)
    sync, again = (_trained(part, make("pipeline.mode=sync", *replay), batches, held=False) for _ in range(2))
    with suppress(FileNotFoundError):
        order.unlink()
    same, repeats = found["bits"] == sync["bits"], sync["bits"] == again["bits"]
    return {
        "batches": batches, "replaced": found["replaced"], "same": same, "again": repeats,
        "right": repeats and same == (mode == "oac"),
        "oac": list(found["bits"]), "sync": list(sync["bits"]),
    }  # fmt: skip


def _trained(part: Part, task: Task, batches: int, held: bool) -> Mapping[str, Any]:
    """The fingerprints that so many batches leave; the sequences in the order that they were computed in."""
    results = []
    seed = int(time.monotonic_ns()) % (1 << 32)
    held_streams = part.place.copying(lambda streams: HeldStreams(streams, part.place.sleep, seed) if held else streams)
    with held_streams, Session(task) as session:
        session.report_to(results.append)
        if session.pipeline.run(0, batches) != batches:
            raise RuntimeError("not all batches ran")
        bits = (*(store.fingerprint() for store in session.stores), session.dense_fingerprint())
    results.sort(key=lambda result: result.timestamp)
    return {
        "bits": bits,
        "order": [result.batch_index for result in results],
        "replaced": sum(result.replaced for result in results),
    }
