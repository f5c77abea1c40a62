"""How much memory and disk training a node classification will need; see `memory`."""

from __future__ import annotations

from pathlib import Path

import psutil

from marius_oac.batch_memory import BatchMemory
from marius_oac.config_classes import ClassesConfig
from marius_oac.data.graph import Graph
from marius_oac.data.node_batches import NodePlanner
from marius_oac.disk_tables import table_needs
from marius_oac.encoder_memory import encoder_needs
from marius_oac.encoder_parts import GraphEncoder
from marius_oac.graph_parts import entity_layout
from marius_oac.memory import KERNEL_BYTES, MemoryPlan, Need, available
from marius_oac.session import pick_device


def plan_memory(
    config: ClassesConfig, graph: Graph, planner: NodePlanner, encoder: GraphEncoder, folder: Path
) -> MemoryPlan:
    """The plan of a run that starts now and writes to `folder`; the first batch is made to see how many rows it has."""
    program = psutil.Process().memory_info().rss
    device, plan = pick_device(config.device), planner.plan(0)
    layouts = {table.name: entity_layout(config) for table in planner.tables}
    batches = BatchMemory(config, plan, planner.tables, layouts, sum(map(len, plan.rows)))
    encoding, on_disk = encoder.encoding_needs(config.evaluation.memory << 20)
    needs = [
        Need("host", "this program", program + KERNEL_BYTES, None),
        *table_needs(config.storage, layouts, dict.fromkeys(layouts, graph.num_nodes), "encoder.embeddings"),
        *encoder_needs(encoder, plan, on_disk, device),
        *batches.needs(device),
        *batches.saved(graph.num_nodes, 0, encoding, device),
    ]
    return MemoryPlan(tuple(needs), available(device, folder, program, config.storage.path))
