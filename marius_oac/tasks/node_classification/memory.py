"""How much memory and disk training a node classification will need; see `memory`."""

from __future__ import annotations

from pathlib import Path

import psutil

from marius_oac.config.node_classification import NodeClassificationConfig
from marius_oac.data.batches.nodes import NodePlanner
from marius_oac.data.graphs.graph import Graph
from marius_oac.runs.memory.batches import BatchMemory, rows_of_parts, table_needs
from marius_oac.runs.memory.plan import KERNEL_BYTES, MemoryPlan, Need, available
from marius_oac.runs.session import pick_device
from marius_oac.tasks.encoder.build import GraphEncoder
from marius_oac.tasks.encoder.memory import encoder_needs
from marius_oac.tasks.graph import entity_layout


def plan_memory(
    config: NodeClassificationConfig,
    graph: Graph,
    planner: NodePlanner,
    encoder: GraphEncoder,
    folder: Path,
    held: int | None = None,
) -> MemoryPlan:
    """Returns the memory plan of a run that starts now and writes to `folder`; plans the first batch to see its size.

    `held`: how many of the nodes' rows this process holds over nodes; None: all, on one machine.
    """
    here = graph.num_nodes if held is None else held
    program = psutil.Process().memory_info().rss
    device, plan = pick_device(config.device), planner.plan(0)
    layouts = {table.name: entity_layout(config) for table in planner.tables}
    parts = config.nodes.parts if held is not None else None
    copied = rows_of_parts(planner, parts) if parts and layouts else 0
    batches = BatchMemory(config, plan, planner.tables, layouts, sum(map(len, plan.rows)), of_parts=copied)
    encoding, on_disk = encoder.encoding_needs(config.evaluation.memory << 20)
    needs = [
        Need("host", "this program", program + KERNEL_BYTES, None),
        *table_needs(config.storage, layouts, dict.fromkeys(layouts, here), "encoder.embeddings"),
        *encoder_needs(encoder, plan.data, on_disk, device),
        *batches.needs(device),
        *batches.saved(here, 0, encoding, device),
    ]
    return MemoryPlan(tuple(needs), available(device, folder, program, config.storage.path))
