"""`oac` = `sync` bit by bit while its streams are held for random whiles."""

from __future__ import annotations

import functools
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu.graphs import generated_graph
from benchmarks.gpu.part import Part, Table
from benchmarks.gpu.place import Place
from marius_oac.config.link_prediction import Config
from marius_oac.data.graphs.graph import Graph
from marius_oac.runs.session import Session
from marius_oac.runs.task import Task
from marius_oac.tasks.ctr.task import start_ctr_task
from marius_oac.tasks.link_prediction.task import GraphTask
from tests.click_logs import ctr_config, small_log
from tests.graphs import workers
from tests.pipeline.held_streams import HeldStreams

SECONDS = 300
TABLES = [
    Table("same bits", "`oac` has the bits of `sync`",
          "`oac` and `sync` train the same batches; the table compares the SHA-256 of all rows with their state "
          "and of dense parameters. `oac` runs with several batches in flight and several workers, and each of its "
          "streams is delayed at random by up to two milliseconds.",
          {"model": "model", "optimizer": "row optimizer", "batches": "batches", "replaced": "rows replaced",
           "same": "same bits", "again": "`sync` again: same bits"}),
]  # fmt: skip

DECODERS = {
    "ComplEx": ["model.decoder=complex"],
    "DistMult": ["model.decoder=distmult"],
    "TransE L1": ["model.decoder=transe", "model.norm=1"],
    "TransE L2": ["model.decoder=transe", "model.norm=2"],
    "RotatE": ["model.decoder=rotate"],
    "Dot": ["model.decoder=dot"],
}
OPTIMIZERS = ("adagrad", "rowwise_adagrad", "adam", "sgd")
NETWORKS = ("dlrm", "dien", "dcnv2", "deepfm", "youtubednn", "fm", "lr")
ENCODERS = {
    "GraphSAGE": ["encoder.layers=[{kind: sage, neighbors: 10}]"],
    "GAT": ["encoder.layers=[{kind: gat, neighbors: 5, heads: 2}]"],
    "GraphSAGE, GAT": ["encoder.layers=[{kind: sage, neighbors: 5}, {kind: gat, neighbors: 5}]", "encoder.dropout=0.2"],
}
SMALL = (("ComplEx", "adagrad"), ("RotatE", "adagrad"), ("ComplEx", "adam"), ("dlrm", "adagrad"), ("dien", "adagrad"),
         ("GraphSAGE", "adagrad"), ("ComplEx, in order of arrival", "adagrad"))  # fmt: skip
"""What a rehearsal compares."""


def run(part: Part) -> None:
    with tempfile.TemporaryDirectory() as folder:
        every = cases(part.place, Path(folder))
        chosen = part.place.pick(tuple(every), SMALL)
        where = {"model": "ComplEx, `async`: must differ", "optimizer": "adagrad"}
        control = every["ComplEx", "adagrad"]
        part.measure("same bits", where, lambda: _compared(part.place, control, Path(folder), mode="async"))
        for model, optimizer in chosen:
            where, make = {"model": model, "optimizer": optimizer}, every[model, optimizer]
            part.measure("same bits", where, lambda make=make: _compared(part.place, make, Path(folder)))


def cases(place: Place, folder: Path) -> dict[tuple[str, str], Callable[..., Task]]:
    """`make(*overrides)` of the task by model and row optimizer, the most telling first."""
    sizes = place.pick((20_000, 200_000, 50), (300, 2_000, 5))
    graph = functools.cache(lambda: generated_graph(folder, *sizes))
    log = functools.cache(lambda: small_log(folder / "log.parquet", place.pick(30_000, 2_000)))

    def links(*more: str) -> Callable[..., Task]:
        return lambda *mode: GraphTask(_config(place, graph()).replace(*more, *mode), graph())

    def clicks(network: str) -> Callable[..., Task]:
        size = ("model.dimension=16", *place.pick(("training.batch_size=1024",), ()))
        return lambda *mode: start_ctr_task(ctr_config(log(), *size, place.override, *mode, network=network))[0]

    first = OPTIMIZERS[0]
    found = {(name, first): links(*more, _kind(first)) for name, more in DECODERS.items()}
    found |= {("ComplEx", kind): links(*DECODERS["ComplEx"], _kind(kind)) for kind in OPTIMIZERS[1:]}
    found |= {(name, "adagrad"): clicks(name) for name in NETWORKS[:2]}
    found |= {(name, "adagrad"): links(*more) for name, more in ENCODERS.items()}
    found["ComplEx, bfloat16", "adagrad"] = links("storage.dtype=bfloat16")
    found["ComplEx, in order of arrival", "adagrad"] = links("pipeline.order=arrival")
    found |= {(name, "adagrad"): clicks(name) for name in NETWORKS[2:]}
    found |= {
        (name, kind): links(*more, _kind(kind))
        for name, more in DECODERS.items() for kind in OPTIMIZERS[1:] if name != "ComplEx"
    }  # fmt: skip
    return found


def _kind(optimizer: str) -> str:
    return f"training.optimizer.kind={optimizer}"


def _config(place: Place, graph: Graph) -> Config:
    size, count = place.pick((2_000, 200), (100, 16))
    return Config.build(
        {
            "device": str(place.device),
            "data": {"path": str(graph.path)},
            "model": {"dimension": 64, "init_scale": 0.3},
            "training": {
                "batch_size": size,
                "negatives": {"count": count, "chunks": 2},
                "optimizer": {"learning_rate": 0.05},
            },
        }
    )


def _compared(place: Place, make: Callable[..., Task], folder: Path, mode: str = "oac") -> dict[str, Any]:
    """Trains by `make(*overrides)` twice in `sync` and once in `oac`; where they come in order of arrival, `sync`
    follows the order of `oac`. In `async`, as a control, bits must differ."""
    batches = place.pick(40, 12)
    busy = (f"pipeline.mode={mode}", "pipeline.in_flight=8", *workers(3))
    found = trained(place, make(*busy), batches, held=True)
    order, replay = folder / "order.npy", ()
    if make().config.pipeline.order == "arrival":
        np.save(order, np.array(found["order"], np.int64))
        replay = (f"pipeline.order={order}",)
    sync, again = (trained(place, make("pipeline.mode=sync", *replay), batches, held=False) for _ in range(2))
    with suppress(FileNotFoundError):
        order.unlink()
    same, repeats = found["bits"] == sync["bits"], sync["bits"] == again["bits"]
    return {
        "batches": batches, "replaced": found["replaced"], "same": same, "again": repeats,
        "right": repeats and same == (mode == "oac"),
        "oac": list(found["bits"]), "sync": list(sync["bits"]),
    }  # fmt: skip


def trained(place: Place, task: Task, batches: int, held: bool) -> Mapping[str, Any]:
    """The fingerprints that so many batches leave; the sequences in the order that they were computed in."""
    results = []
    seed = int(time.monotonic_ns()) % (1 << 32)
    held_streams = place.copying(lambda streams: HeldStreams(streams, place.sleep, seed) if held else streams)
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
