"""How much memory and disk training a node classification will need; see `memory`."""

from __future__ import annotations

from pathlib import Path

import psutil

from marius_oac.config_classes import ClassesConfig
from marius_oac.data.graph import Graph
from marius_oac.data.node_batches import NodePlanner
from marius_oac.disk_tables import ahead_bytes, check_batch, rows_place, table_needs
from marius_oac.encoder_memory import encoder_needs
from marius_oac.encoder_parts import GraphEncoder
from marius_oac.graph_parts import entity_layout
from marius_oac.memory import KERNEL_BYTES, MemoryPlan, Need, available, batches_held
from marius_oac.session import pick_device
from marius_oac.storage.contract import ROWS_PER_BLOCK


def plan_memory(
    config: ClassesConfig, graph: Graph, planner: NodePlanner, encoder: GraphEncoder, folder: Path
) -> MemoryPlan:
    """The plan of a run that starts now and writes to `folder`; the first batch is made to see how many rows it has."""
    program = psutil.Process().memory_info().rss
    device, plan = pick_device(config.device), planner.plan(0)
    if plan.rows:
        check_batch(config.storage, entity_layout(config), plan.rows[0])
    rows = sum(map(len, plan.rows))
    layouts = {table.name: entity_layout(config) for table in planner.tables}
    width = sum(each.width for each in layouts.values())
    plan_bytes = 8 * rows + sum(array.nbytes for array in plan.arrays.values())
    in_flight, held = batches_held(config.pipeline)
    plans = (held + in_flight + config.pipeline.workers.plan) * plan_bytes + ahead_bytes(config, plan_bytes)
    save = min(graph.num_nodes, ROWS_PER_BLOCK) * width * 8
    staged = rows * (4 * width + 16)
    encoding, on_disk = encoder.encoding_needs(config.evaluation.memory << 20)
    needs = [
        Need("host", "this program", program + KERNEL_BYTES, "data.path"),
        *table_needs(config.storage, layouts, dict.fromkeys(layouts, graph.num_nodes), "encoder.embeddings"),
        *encoder_needs(encoder, plan, on_disk, device),
    ]
    if device.type == "cpu":
        most = "evaluation" if encoding > save else "checkpoints"
        needs.append(Need("host", most, max(encoding, save), "evaluation.memory"))
        needs.append(Need("host", "batches", held * staged + plans, "pipeline.in_flight"))
    else:
        needs.append(Need("host", "checkpoints", save, "encoder.embeddings"))
        needs.append(Need("device", "evaluation", encoding, "evaluation.memory"))
        needs.append(Need("host", "batches", in_flight * staged + plans, "pipeline.in_flight"))
        needs.append(Need("device", "batches", held * staged + in_flight * plan_bytes, "pipeline.in_flight"))
    disk = (config.checkpoint.keep + 2 - config.storage.paged) * graph.num_nodes * (4 * width + 8) * bool(width)
    needs.append(Need(rows_place(config.storage), "checkpoints", disk, "checkpoint.keep"))
    return MemoryPlan(tuple(needs), available(device, folder, program, config.storage.path))
