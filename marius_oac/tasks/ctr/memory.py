"""How much memory and disk training on a click log will need; see `memory`.

What a step takes of the device, beside the rows and arrays that it is given, is the sum of what is held at once
where that is the most, as a dry run of the step shows it (docs/gpu.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import psutil
import torch

from marius_oac.config.ctr import CtrConfig
from marius_oac.data.logs.tables import FeatureTable
from marius_oac.kernels.cpu.keys import RECORD
from marius_oac.kernels.gpu import choice
from marius_oac.pipeline.device import SLACK
from marius_oac.runs.memory.batches import ahead_bytes, part_needs, rows_place, table_needs
from marius_oac.runs.memory.plan import (
    BATCH_KEYS,
    KERNEL_BYTES,
    MemoryPlan,
    Need,
    available,
    batches_held,
    key_to_lower,
    room_for,
)
from marius_oac.runs.session import pick_device
from marius_oac.tasks.ctr.build import KEY_BYTES, capacity_of, make_ctr_network, row_layout, tables_of


def click_step_bytes(config: CtrConfig, tables: Sequence[FeatureTable], weighted: bool, kernels: bool) -> int:
    """Of a batch of examples, or of those that are predicted at once: what was gathered, the network's layers, and
    gradients, above all by rows, which torch's operations sort. A network of the user's is taken for an MLP."""
    model, numbers = config.model, config.data.num_numbers
    occurrences = [(table.max_ids, table.dimension + weighted) for table in tables]
    ids, gathered = sum(count for count, _ in occurrences), sum(count * width for count, width in occurrences)
    columns = sum(len(table.singles) + len(table.bags) for table in tables)
    fields = sum((len(table.singles) + len(table.bags)) * table.dimension for table in tables)
    steps = sum(each.max_values * (each.dimension or model.dimension) for each in config.data.sequences)
    width, hidden = fields + numbers, max(model.hidden, default=0)
    pairs, mlp = (columns + 1) * columns // 2, sum(model.hidden) * (1 + model.batch_norm + 1.25 * bool(model.dropout))
    mlp += (3 if model.batch_norm else 2) * hidden
    trained = {
        "lr": 0,
        "fm": 2 * fields,
        "dlrm": sum(model.bottom) + fields + 2 * model.dimension + pairs + mlp,
        "dcnv2": (3 + 2 * model.cross_layers) * width + mlp - hidden,
        "dien": 18.5 * steps + width + mlp,
    }.get(model.network, width + mlp)
    predicted = {"lr": 0, "fm": 2 * fields, "dlrm": fields + 3 * pairs, "dien": 6 * steps + width + 2 * hidden}.get(
        model.network, 2 * width + 2 * hidden
    )
    largest = max(count * width for count, width in occurrences)
    summing = 2 * largest if kernels else 3 * largest + 12 * ids
    training = max(gathered + trained, 2 * gathered + summing)
    prediction = gathered + max(gathered, predicted)
    return int(4 * max(config.training.batch_size * training, config.evaluation.batch_size * prediction))


def _compute_bytes(
    config: CtrConfig, device: torch.device, dense: int, row_bytes: int, tables: Sequence[FeatureTable], weighted: bool
) -> int:
    """Of the network's parameters, of `dense` bytes, with their optimizer's state, and of a batch. `row_bytes`: of the
    rows that an example reads."""
    if device.type == "cpu":
        examples = max(config.evaluation.batch_size, config.training.batch_size)
        return 8 * dense + 4 * examples * sum(config.model.hidden) * 3 + 3 * examples * row_bytes
    states = {"sgd": 0, "adagrad": 1, "adam": 2}[config.training.dense_optimizer.kind]
    return (2 * (1 + states) + 1) * dense + click_step_bytes(config, tables, weighted, choice.chosen(device))


def plan_ctr_memory(config: CtrConfig, folder: Path, over_nodes: bool = False) -> MemoryPlan:
    """Returns the memory plan of a run that starts now and writes to `folder`.

    How many keys a log holds is not known before it has been read. Tables are planned with the rows that
    `keys.capacity` allows where it is set, else with none: they grow until the memory is full, and the run then stops
    with an error that names the key.
    """
    program = psutil.Process().memory_info().rss
    device, network = pick_device(config.device), make_ctr_network(config)
    tables = tables_of(config, network)
    layouts = [row_layout(config, table, network) for table in tables]
    in_flight, held = batches_held(config.pipeline)
    size = config.training.batch_size
    ids = sum(table.max_ids for table in tables)
    row_bytes = sum(table.max_ids * (4 * layout.width + 8) for table, layout in zip(tables, layouts, strict=True))
    plan_bytes = size * (ids * 56 + 4 * config.data.num_numbers)
    settled_bytes = size * (ids * 16 + 4 * config.data.num_numbers)
    plans = (held + in_flight + config.pipeline.most_workers("plan")) * plan_bytes + ahead_bytes(config, settled_bytes)
    dense = sum(parameter.nbytes for parameter in network.parameters())
    compute = _compute_bytes(config, device, dense, row_bytes, tables, bool(network.first_order))
    rows = [capacity_of(config, layout) if config.keys.capacity else 0 for layout in layouts]
    names = [table.name for table in tables]
    key_bytes = sum(rows) * KEY_BYTES
    mapped = sum(rows) * RECORD.itemsize * config.storage.on_disk
    # Over nodes also one of those that this trainer decodes for all, and one that is decoded ahead.
    blocks = (
        (config.pipeline.most_workers("plan") + 1 + 2 * over_nodes)
        * max(config.data.shuffle, 1 << 16)
        * (ids * 12 + 64)
    )
    place = "host" if device.type == "cpu" else "device"
    key = key_to_lower(config, "pipeline.in_flight", *BATCH_KEYS)
    needs = [
        Need("host", "this program", program + KERNEL_BYTES, None),
        *table_needs(
            config.storage, dict(zip(names, layouts, strict=True)), dict(zip(names, rows, strict=True)), "keys.capacity"
        ),
        Need("host", "keys", key_bytes - mapped, "keys.capacity"),
        Need("host", "keys on disk", mapped, "keys.capacity", mapped=True),
        Need("host", "blocks of the log", blocks, "data.shuffle"),
        Need("host", "batches", held * size * row_bytes + plans, key),
        Need(place, "compute", compute, key_to_lower(config, *BATCH_KEYS, "evaluation.batch_size")),
    ]
    if over_nodes and config.nodes.parts:
        for table, layout in zip(tables, layouts, strict=True):
            most = size * table.max_ids
            needs += part_needs(config.nodes.parts, most, most, layout.dimension, key)
    if place == "device":
        staged = sum(table.max_ids * (4 * layout.width + 16) for table, layout in zip(tables, layouts, strict=True))
        arranged = 16 * size * ids * choice.chosen(device)
        there = size * staged + int(SLACK * (settled_bytes + arranged))
        needs.append(Need("device", "batches", room_for(config.pipeline) * there, key))
    disk = (config.checkpoint.keep + 2 - config.storage.paged) * (
        sum(count * (4 * layout.width + 22) for count, layout in zip(rows, layouts, strict=True)) + 3 * dense
    )
    if config.storage.on_disk:
        needs.append(Need("disk", "keys", mapped, "keys.capacity"))
    needs.append(Need(rows_place(config.storage), "checkpoints", disk, "checkpoint.keep"))
    if not config.keys.capacity:
        needs = [replace(need, what=f"{need.what} at first") if need.key == "keys.capacity" else need for need in needs]
    return MemoryPlan(tuple(needs), available(device, folder, program, config.storage.path))
