"""How much memory and disk the training of a graph will need; see `memory`.

What a step takes of the device, beside the rows and arrays that it is given, is the sum of what is held at once
where that is the most, as a dry run of the step shows it (docs/gpu.md).
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import psutil
import torch

from marius_oac.batches import EdgeBatch, edges_of
from marius_oac.config.link_prediction import Config
from marius_oac.data.graphs.graph import EVALUATED, Graph
from marius_oac.data.splits import SPLITS
from marius_oac.errors import InputError, size_text
from marius_oac.evaluation.blocks import Blocks
from marius_oac.evaluation.given import needed_bytes
from marius_oac.evaluation.link_prediction import DRAW_EDGES
from marius_oac.evaluation.scores import EntityReader, LinkScorer, rounded_up
from marius_oac.models.compute.row_optimizers import RowOptimizer
from marius_oac.models.link_prediction.decoders import make_decoder
from marius_oac.models.link_prediction.distances import tile_bytes
from marius_oac.models.link_prediction.fused import fused_bytes, is_fused
from marius_oac.models.link_prediction.handwritten import _WAVE_SCORES, is_handwritten, needs_distances
from marius_oac.models.link_prediction.losses import make_loss
from marius_oac.models.link_prediction.regularizers import penalized
from marius_oac.models.link_prediction.step import relation_width
from marius_oac.runs.memory.batches import BatchMemory, rows_of_parts, table_needs
from marius_oac.runs.memory.plan import (
    BATCH_KEYS,
    KERNEL_BYTES,
    MemoryPlan,
    Need,
    available,
    batches_held,
    key_to_lower,
)
from marius_oac.runs.session import pick_device
from marius_oac.tasks.encoder.build import GraphEncoder
from marius_oac.tasks.encoder.memory import encoder_needs, num_encoded
from marius_oac.tasks.graph import edges_in_memory, entity_layout
from marius_oac.tasks.link_prediction.build import make_planner, num_model_relations
from marius_oac.types import present


def link_step_bytes(config: Config, data: EdgeBatch[np.ndarray], rows: int, device: torch.device) -> int:
    """Of a batch of `rows` entities."""
    if is_fused(config, device):
        return fused_bytes(config, data, rows)
    training, model, drawn = config.training, config.model, data.negatives
    decoder, loss = make_decoder(model), make_loss(training.loss)
    dimension, edges, sides = model.dimension, len(data.heads), 1 if model.reciprocal else 2
    negatives = 0 if drawn is None else drawn.size * dimension
    gathered, relations = 2 * edges * dimension + negatives, edges * decoder.relation_width(dimension)
    queries, scores = sides * edges * dimension, sides * edges * (rows if drawn is None else drawn.shape[2] + 1)
    # Chunks of two sizes are computed one by one.
    parts = 1 if drawn is None or edges % drawn.shape[1] == 0 else drawn.shape[1]
    made_of_scores = loss.kept + (loss.held - loss.kept) / parts
    kept = gathered + relations + decoder.held.forward * queries
    penalties = (gathered - negatives + relations) * penalized(training.regularization)
    most = [
        kept + made_of_scores * scores,
        kept + scores + queries + (1 + (parts > 1)) * negatives,
        kept + penalties + scores * loss.one_gradient + decoder.held.backward * queries + negatives,
        2 * gathered + 12 * (2 * edges + negatives // dimension) + rows * dimension,  # an embedding's gradient sorts
    ]
    if decoder.distance or decoder.compiled is None:
        unneeded = relations * (not decoder.held.relations)
        differences = tile_bytes(decoder.distance, scores // parts, dimension) // 4
        most.append(kept - unneeded + 2 * scores + queries + negatives + differences)
    if not config.encoder:
        most.append((1 + (RowOptimizer(training.optimizer).state_width(dimension) > 0)) * rows * dimension)
    indices = 2 * edges + sides * edges + negatives // dimension
    return int(4 * max(most)) + 8 * indices


def plan_memory(
    config: Config, graph: Graph, folder: Path, here: int | None = None, encoder: GraphEncoder | None = None
) -> MemoryPlan:
    """Returns the memory plan of a run that starts now and writes to `folder`; plans the first batch to see its size.

    `here`: how many of the entities' rows this process holds over nodes; None: all, on one machine.
    """
    program = psutil.Process().memory_info().rss
    free = available(device := pick_device(config.device), folder, program, config.storage.path)
    _check_negatives(config, free["host"], drawn_rows=device.type == "cpu" and encoder is None)
    planner = make_planner(config, graph, encoder)
    plan, ordering, partitioned = planner.plan(0), config.training.ordering, config.training.ordering.kind != "shuffle"
    rows, train_bytes = sum(map(len, plan.rows)), graph.edges("train").nbytes
    if partitioned:
        rows = min(rows, present(ordering.buffer) * -(-graph.num_nodes // present(ordering.partitions)))
    layouts = {table.name: entity_layout(config) for table in planner.tables}
    shared = config.training.negatives.all and not encoder
    parts = config.nodes.parts if here is not None else None
    copied = rows_of_parts(planner, parts) if parts and layouts else 0
    batches = BatchMemory(config, plan, planner.tables, layouts, rows, shared, copied)
    here = graph.num_nodes if here is None else here
    relations = num_model_relations(config, graph) * _relation_bytes(config)
    encoding, encoded = encoder.encoding_needs(config.evaluation.memory << 20) if encoder else (0, 0)
    evaluation = max(_evaluation_bytes(config, graph, device), encoding)
    nodes = num_encoded(plan.data) if encoder else rows
    edges = sum(graph.edges(split).nbytes for split in SPLITS if split != "train" and graph.num_edges[split])
    edges += edges_in_memory(graph.edges("train")) + train_bytes * partitioned  # the same, sorted
    on_cpu = device.type == "cpu"
    links = edges_of(plan.data)
    in_kernels = on_cpu and is_handwritten(config)
    if in_kernels:
        compute = _scratch_bytes(config, links, nodes, graph.num_nodes)
    else:
        compute = link_step_bytes(config, links, nodes, device)
    needs = [
        Need("host", "this program", program + KERNEL_BYTES, None),
        Need("host", "edges", edges, "data.path", mapped=True),
        *table_needs(config.storage, layouts, dict.fromkeys(layouts, here), "model.dimension"),
        *(encoder_needs(encoder, plan.data, encoded, device, compute) if encoder else []),
        *batches.needs(device),
        Need("host" if on_cpu else "device", "compute", compute + 2 * relations, key_to_lower(config, *BATCH_KEYS)),
        *batches.saved(here, relations, evaluation, device),
        Need("host", "known answers", _known_bytes(config, graph), "evaluation.filtered"),
    ]
    if partitioned:
        needs.append(Need("disk", "sorted edges", train_bytes, "training.ordering.kind"))
    return MemoryPlan(tuple(needs), free)


def _check_negatives(config: Config, free: int, drawn_rows: bool) -> None:
    """Raises InputError, before a batch is planned, if the negatives of the batches in flight don't fit into memory;
    with `drawn_rows` the step has two copies of the row of each."""
    negatives, sides = config.training.negatives, 1 if config.model.reciprocal else 2
    plans = sum(batches_held(config.pipeline)) + config.pipeline.most_workers("plan")
    words = plans + config.model.dimension * drawn_rows
    needed = sides * negatives.chunks * negatives.count * 8 * words
    if not negatives.all and needed > free:
        what = f"{size_text(needed)} of host memory are needed and {size_text(free)} are free"
        raise InputError(f"{what}, for the negatives of batches alone", "training.negatives.count")


def _relation_bytes(config: Config) -> int:
    """Of a relation with its optimizer's state."""
    width = relation_width(config)
    return 4 * (width + RowOptimizer(config.training.optimizer).state_width(width))


def _scratch_bytes(config: Config, data: EdgeBatch[np.ndarray], rows: int, num_rows: int) -> int:
    """What the step keeps from batch to batch of `rows` entities on the CPU; see `models.handwritten`."""
    training, dimension = config.training, config.model.dimension
    edges, sides = len(data.heads), 1 if config.model.reciprocal else 2
    relations = 0 if data.relation_rows is None else len(data.relation_rows)
    drawn, candidates = (0, num_rows) if data.negatives is None else (data.negatives.size, data.negatives.shape[2])
    scores = min(sides * edges * candidates, _WAVE_SCORES) * (2 if needs_distances(make_decoder(config.model)) else 1)
    floats = scores + sides * edges * (2 * dimension + 1) + relations * dimension
    floats += dimension * (num_rows * (1 + sides) if training.negatives.all else 2 * drawn)
    words = 3 * edges + drawn + rows + (2 * edges + drawn) + rows + 3 * relations + edges + sides * edges
    return 4 * floats + 8 * words


def _evaluation_bytes(config: Config, graph: Graph, device: torch.device) -> int:
    """A block of candidates, as it is read and as it is scored. And scores: a piece for each thread, or a tile
    of torch, the last one still held while the next is made; see `evaluate`."""
    width = entity_layout(config).width if config.encoder is None else config.model.dimension
    scorer = LinkScorer(
        config.model, EntityReader(graph.num_nodes, config.model.dimension, lambda rows: rows), None, device
    )
    drawn = config.evaluation.candidates
    if drawn == "given":
        counts = zip(EVALUATED, _num_evaluated(config, graph), strict=True)
        sizes = config.model.dimension, config.evaluation.memory
        return max(needed_bytes(sizes[0], graph.negatives(split), edges, sizes[1]) for split, edges in counts)
    blocks = Blocks.fit(scorer, graph.num_nodes if drawn == "all" else drawn, config.evaluation.memory)
    edges = max(_num_evaluated(config, graph))
    tile = min(blocks.tile, rounded_up(edges if drawn == "all" else min(edges, DRAW_EDGES), scorer.piece[0]))
    queries = min(blocks.queries, 2 * edges) * (4 * config.model.dimension + 128)
    scores = 4 * math.prod(scorer.piece) * torch.get_num_threads() if scorer.on_cores else 2 * 4 * tile * blocks.block
    if not scorer.on_cores and (scorer.decoder.compiled is None or device.type != "cpu" and scorer.decoder.distance):
        scores += tile_bytes(scorer.decoder.distance, math.prod(scorer.piece), config.model.dimension)
    return (queries + scores + blocks.block * 4 * (2 * config.model.dimension + width)) * (edges > 0)


def _num_evaluated(config: Config, graph: Graph) -> tuple[int, int]:
    """Edges of validation, if there is any, and test; the end takes all of both."""
    return graph.num_edges["valid"] * (config.evaluation.every > 0), graph.num_edges["test"]


def _known_bytes(config: Config, graph: Graph) -> int:
    """The answers that the filter leaves out, on both sides of validation or test, one after the other; an estimate, as
    nothing but a pass over all edges could count them."""
    edges = max(_num_evaluated(config, graph))
    filtered = config.evaluation.filtered and config.evaluation.candidates != "given"
    return filtered * 16 * (min(sum(graph.num_edges.values()), 100 * edges) + 4 * edges)
