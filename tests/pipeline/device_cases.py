"""Steps as they are configured by default, at three sizes of a batch: what they cost a device, and what is planned.

    python -m tests.pipeline.device_cases          # writes device_costs.txt, which test_device_cost compares

A graph of 60,000 nodes and edges, of which a batch of 50,000 has nearly all, and 26 categorical columns whose keys
all differ: both are the most that a plan allows for.
"""

import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

from benchmarks.generate.graph import GeneratedGraph, write_graph
from benchmarks.generate.nodes import write_labels
from marius_oac.batches import ClickBatch, Jagged, TableIndices
from marius_oac.config.link_prediction import Config
from marius_oac.data.graphs.graph import Graph
from marius_oac.data.reading.edge_file import ReadOptions
from marius_oac.kernels.gpu import choice
from marius_oac.models.compute.soundness import is_sound
from marius_oac.models.compute.update import Update
from marius_oac.pipeline.batch import Batch
from marius_oac.pipeline.device import TorchDevice
from marius_oac.prepare.prepare import PrepareRequest, prepare
from marius_oac.runs.memory.plan import MemoryPlan
from marius_oac.storage.contract import RowLayout
from marius_oac.tasks.ctr import memory as ctr_memory
from marius_oac.tasks.ctr.build import make_ctr_network, make_ctr_step, row_layout, tables_of
from marius_oac.tasks.graph import entity_layout
from marius_oac.tasks.link_prediction import memory as graph_memory
from marius_oac.tasks.link_prediction.task import GraphTask
from marius_oac.tasks.node_classification import memory as classes_memory
from marius_oac.tasks.node_classification.task import NodeClassificationTask
from marius_oac.types import Plan, Step, TableSpec
from tests.pipeline.device_cost import META, Costs, MetaStreams, as_on_cuda

TABLE = Path(__file__).parent / "device_costs.txt"
SIZES = 1_000, 10_000, 50_000
NODES, EDGES, RELATIONS, CLASSES = 60_000, 90_000, 20, 12
CUDA = torch.device("cuda")
MIB = 1 << 20

LINKS = {
    "DistMult": ["model.decoder=distmult"],
    "ComplEx": [],
    "TransE, L1": ["model.decoder=transe", "model.norm=1"],
    "TransE, L2": ["model.decoder=transe"],
    "RotatE": ["model.decoder=rotate"],
    "Dot": ["model.decoder=dot"],
    "logistic": ["training.loss.kind=logistic"],
    "margin": ["training.loss.kind=margin"],
    "self-adversarial": ["training.loss.kind=self_adversarial"],
    "SGD": ["training.optimizer.kind=sgd"],
    "row-wise Adagrad": ["training.optimizer.kind=rowwise_adagrad"],
    "Adam": ["training.optimizer.kind=adam"],
    "10 chunks": ["training.negatives.chunks=10"],
    "7 ragged chunks": ["training.negatives.chunks=7"],
    "all nodes": ["training.negatives.all=true"],
    "reciprocal": ["model.reciprocal=true"],
    "L2": ["training.regularization.kind=l2", "training.regularization.weight=0.05"],
    "N3": ["training.regularization.kind=n3", "training.regularization.weight=0.05"],
    "bfloat16": ["storage.dtype=bfloat16"],
}
"""ComplEx, softmax, Adagrad, 500 negatives on each side, but for what a name says."""
BY_TORCH = {f"{name}, by torch": LINKS[name] for name in (
    "DistMult", "ComplEx", "TransE, L2", "RotatE", "self-adversarial", "7 ragged chunks", "all nodes", "N3", "bfloat16"
)}  # fmt: skip
"""Where Triton is missing."""
ENCODERS = {
    "GraphSAGE": ["encoder.layers=[{kind: sage}]"],
    "GraphSAGE, gcn": ["encoder.layers=[{kind: sage, aggregator: gcn}]"],
    "GraphSAGE, two layers": ["encoder.layers=[{kind: sage}, {kind: sage}]"],
    "GraphSAGE, dropout": ["encoder.layers=[{kind: sage}]", "encoder.dropout=0.2"],
    "GAT": ["encoder.layers=[{kind: gat}]"],
    "GAT, two layers": ["encoder.layers=[{kind: gat}, {kind: gat}]"],
    "GraphSAGE, GAT": ["encoder.layers=[{kind: sage}, {kind: gat}]"],
}
"""Under Dot."""
CLASSES_OF_NODES = {
    "GraphSAGE, two layers": ["encoder.layers=[{kind: sage}, {kind: sage}]"],
    "GAT": ["encoder.layers=[{kind: gat}]"],
}
NETWORKS = {
    "LR": ["model.network=lr"],
    "FM": ["model.network=fm"],
    "DeepFM": [],
    "DLRM": ["model.network=dlrm"],
    "DCN-V2": ["model.network=dcnv2"],
    "YouTubeDNN": ["model.network=youtubednn"],
    "DIEN": ["model.network=dien", "model.target=c0"],
    "DeepFM, batch norm, dropout": ["model.batch_norm=true", "model.dropout=0.1"],
    "DeepFM, L2 of rows": ["training.embedding_l2=0.01"],
    "DeepFM, network by SGD": ["training.dense_optimizer.kind=sgd"],
    "DeepFM, network by Adagrad": ["training.dense_optimizer.kind=adagrad"],
    "DeepFM, a bag": ["data.multi_valued=[{name: bag, pooling: mean, max_values: 8}]"],
}
"""26 categorical columns and 13 numbers; YouTubeDNN and DIEN with a history of 20 clicks."""
CLICKS_BY_TORCH = {f"{name}, by torch": NETWORKS[name] for name in ("LR", "FM", "DeepFM, a bag")}
CASES = {
    **{f"links, {name}": ("graph", overrides) for name, overrides in (LINKS | BY_TORCH).items()},
    **{f"encoded, {name}": ("encoded", overrides) for name, overrides in ENCODERS.items()},
    **{f"classes, {name}": ("classes", overrides) for name, overrides in CLASSES_OF_NODES.items()},
    **{f"clicks, {name}": ("ctr", overrides) for name, overrides in (NETWORKS | CLICKS_BY_TORCH).items()},
}


@dataclass(frozen=True)
class Data:
    """Where the graphs are."""

    folder: Path

    @classmethod
    def make(cls, folder: Path) -> "Data":
        spec = {"num_nodes": NODES, "num_edges": EDGES}
        for name, relations in (("graph", RELATIONS), ("plain", 0)):
            generated = GeneratedGraph(**spec, num_relations=relations, num_clusters=CLASSES)
            write_graph(generated, folder / f"{name}.npy")
            read = ReadOptions(relations=relations > 0)
            prepare(PrepareRequest(source=str(folder / f"{name}.npy"), out=folder / name, read=read, unseen="keep"))
        write_labels(generated, Graph.open(folder / "plain"), folder / "labels.tsv", (0.9, 0.05, 0.05))
        return cls(folder)


@dataclass(frozen=True)
class Made:
    """A step on the device that costs nothing, its first batch, and what is planned for them."""

    step: Step
    plan: Plan
    tables: list[TableSpec]
    layouts: list[RowLayout]
    memory: MemoryPlan


@dataclass(frozen=True)
class Cost:
    """Of one batch. Bytes: `peak` of the step over what it was given, with dense parameters twice, as a checkpoint
    copies them; `planned` for the same. `ops`: launches by operation."""

    launches: int
    copies: int
    peak: int
    planned: int
    ops: dict[str, int]
    at: str


def by_kernels(case: str) -> AbstractContextManager[None]:
    """Within it, a step is computed as the case says."""
    return choice.forced("by torch" not in case)


def make(data: Data, case: str, size: int) -> Made:
    task, overrides = CASES[case]
    overrides = [f"training.batch_size={size}", *overrides]
    with (
        by_kernels(case),
        mock.patch.object(torch.cuda, "mem_get_info", lambda device: (1 << 40, 1 << 40)),
        mock.patch.object(graph_memory, "pick_device", lambda name: CUDA),
        mock.patch.object(classes_memory, "pick_device", lambda name: CUDA),
        mock.patch.object(ctr_memory, "pick_device", lambda name: CUDA),
        mock.patch.object(torch.Tensor, "__float__", lambda tensor: 1.0),  # parameters are looked at as a step is made
    ):
        return {"graph": _links, "encoded": _links, "classes": _classes, "ctr": _clicks}[task](data, overrides)


def _links(data: Data, overrides: list[str]) -> Made:
    encoded = any(each.startswith("encoder") for each in overrides)
    folder = data.folder / ("plain" if encoded else "graph")
    tree = {"data": {"path": str(folder)}, "model": {"decoder": "dot"} if encoded else {}}
    config, graph = Config.build(tree, overrides), Graph.open(folder)
    task = GraphTask(config, graph)
    step = task.make_step(META, 1, Update.here(config.training.optimizer))
    planner = graph_memory.make_planner(config, graph, task.encoder)
    layouts = [entity_layout(config) for _ in planner.tables]
    return Made(step, planner.plan(0), planner.tables, layouts, task.plan_memory(data.folder))


def _classes(data: Data, overrides: list[str]) -> Made:
    tree = {
        "task": "node_classification",
        "data": {"path": str(data.folder / "plain"), "labels": str(data.folder / "labels.tsv")},
    }
    task = NodeClassificationTask(Config.build(tree, overrides), Graph.open(data.folder / "plain"))
    step = task.make_step(META, 1, Update.here(task.config.training.optimizer))
    layouts = [entity_layout(task.config) for _ in task.planner.tables]
    return Made(step, task.planner.plan(0), task.planner.tables, layouts, task.plan_memory(data.folder))


def _clicks(data: Data, overrides: list[str]) -> Made:
    tree = {
        "task": "ctr",
        "data": {
            "train": "none.parquet",
            "categorical": [f"c{number}" for number in range(26)],
            "numeric": [{"name": f"n{number}", "transform": "none"} for number in range(13)],
        },
    }
    if any("dien" in each or "youtube" in each for each in overrides):
        tree["data"]["sequences"] = [{"name": "history", "vocabulary": "c0", "max_values": 20}]
    config = Config.build(tree, ["evaluation.batch_size=1", *overrides])
    network = make_ctr_network(config)
    tables, size = tables_of(config, network), config.training.batch_size
    rows = [size * table.max_ids for table in tables]

    def jagged(features: Sequence[Any]) -> tuple[Jagged[np.ndarray], ...]:
        most = [each.max_values for each in features]
        return tuple(Jagged(np.zeros(size * count, np.int64), np.arange(size + 1) * count) for count in most)

    indices = TableIndices(
        np.zeros((len(tables[0].singles), size), np.int64),
        jagged(config.data.multi_valued),
        jagged(config.data.sequences),
    )
    assert len(tables) == 1
    clicks = ClickBatch(
        labels=np.zeros(size, np.float32),
        numbers=np.zeros((size, config.data.num_numbers), np.float32),
        tables=(indices,),
    )
    plan = Plan(0, [np.arange(count) for count in rows], clicks, size)
    specs = [TableSpec(table.name, count, count) for table, count in zip(tables, rows, strict=True)]
    layouts = [row_layout(config, table, network) for table in tables]
    step = make_ctr_step(config, tables, network, META, 1)
    return Made(step, plan, specs, layouts, ctr_memory.plan_ctr_memory(config, data.folder))


def cost_of(made: Made, case: str) -> Cost:
    """Of a batch on the device: uploaded, computed, rounded, checked."""
    with by_kernels(case):
        return _cost_of(made)


def _cost_of(made: Made) -> Cost:
    device = TorchDevice(META, made.tables, made.layouts, 1, False, streams=MetaStreams())
    batch, dense = Batch(made.plan), sum(each.nbytes for each in made.step.dense_state().values())
    with as_on_cuda(), Costs() as first:
        device.borrow(batch)
        device.upload(batch)
    values = [batch.rows_in(batch.resident, table)[2] for table in range(len(made.tables))]
    with as_on_cuda(), Costs() as costs:
        batch.loss = made.step.compute(values, batch.data, 0)
        device.round(batch)
        batch.sound = [is_sound(rows, each.dimension) for rows, each in zip(values, made.layouts, strict=True)]
    assert not costs.copies, f"a step copies to the device: {costs.copies}"
    planned = sum(
        need.num_bytes for need in made.memory.needs if need.place == "device" and need.what in ("compute", "encoder")
    )
    return Cost(costs.launches, first.copies, costs.peak + 2 * dense, planned, dict(costs.ops), costs.at)


def cells(cost: Cost) -> tuple[str, str, str]:
    """Of the table: copies, launches, memory."""
    return f"{cost.copies}", f"{cost.launches:,}", f"{cost.peak / MIB:,.1f} of {cost.planned / MIB:,.1f}"


def table(data: Data) -> str:
    sizes = [f"{size:,}" for size in SIZES]
    heads = ["step", "copies", *(f"launches, {each}" for each in sizes), *(f"MiB, {each}" for each in sizes)]
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    for case in CASES:
        costs = []
        for size in SIZES:
            made = make(data, case, size)
            costs.append(cost_of(made, case))
            made.step.close()
        copies, launches, memory = zip(*map(cells, costs), strict=True)
        lines.append(f"| {' | '.join((case, copies[0], *launches, *memory))} |")
        if os.environ.get("VERBOSE"):
            print(
                lines[-1],
                [round(cost.peak / cost.planned, 2) if cost.planned else 0 for cost in costs],
                [cost.at for cost in costs],
                file=sys.stderr,
            )
    return "\n".join(lines)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        written = table(Data.make(Path(folder)))
    TABLE.write_text(f"{written}\n", "utf-8")


if __name__ == "__main__":
    main()
