"""Builds what trains link prediction on a graph: encoder, planner, step."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from marius_oac.config.link_prediction import Config
from marius_oac.config.parts import DECODERS, LOSSES, WITHOUT_RELATIONS
from marius_oac.data.batches.buckets import BucketPlanner, BucketSchedule
from marius_oac.data.batches.edges import EdgePlanner
from marius_oac.data.graphs.buckets import count_buckets, open_buckets
from marius_oac.data.graphs.graph import Graph
from marius_oac.evaluation.evaluator import is_sampled
from marius_oac.kernels.cpu.decoders import INNER
from marius_oac.models.compute.dense_moments import RELATIONS
from marius_oac.models.compute.multiply import Layer
from marius_oac.models.compute.update import Update
from marius_oac.models.gnn.step import EncodedStep
from marius_oac.models.link_prediction.decoders import make_decoder
from marius_oac.models.link_prediction.handwritten import TILE_EDGES
from marius_oac.models.link_prediction.step import LinkPredictionStep, relation_width
from marius_oac.storage.initial import RowInitial
from marius_oac.tasks.encoder import build as encoders
from marius_oac.tasks.graph import edges_in_memory
from marius_oac.types import present

_MANY = 512  # candidates where every entity is one, whose number the configuration does not know


def settled_on(config: Config, graph: Graph) -> tuple[Config, list[str]]:
    """Fills in the defaults that depend on the graph; returns the configuration, and remarks for the user."""
    notes = []
    if (with_given := settled_on_given(config, graph)) is not config:
        config = with_given
        notes.append(f"the graph has negatives of its own: evaluations compute OGB's {graph.metric}")
    if not graph.num_relations and "decoder" not in config.model.model_fields_set:
        config = config.replace(f"model.decoder={WITHOUT_RELATIONS}")
        notes.append(f"the graph has no relations: model.decoder is {WITHOUT_RELATIONS}")
    if is_sampled(config, graph) and config.evaluation.every:
        notes.append(
            f"between epochs validation takes {config.evaluation.max_edges:,} of {graph.num_edges['valid']:,} edges "
            "(evaluation.max_edges); the end takes all"
        )
    return config, notes


def settled_on_given(config: Config, graph: Graph) -> Config:
    """Fills in that the graph's own negatives are used, and the metric that decides; the same configuration where there
    are none, or all is set."""
    evaluation = config.evaluation
    asked = evaluation.candidates == "given" or "candidates" not in evaluation.model_fields_set
    if not (graph.metric and asked) or (evaluation.candidates == "given" and evaluation.decisive):
        return config
    decisive = evaluation.decisive or graph.metric
    return config.replace("evaluation.candidates=given", f"evaluation.decisive={decisive}")


def num_model_relations(config: Config, graph: Graph) -> int:
    """Returns the number of the model's relations: twice the graph's if every edge also stands reversed."""
    return graph.num_relations * (2 if config.model.reciprocal else 1)


def make_graph_encoder(config: Config, graph: Graph) -> encoders.GraphEncoder | None:
    """Makes the graph encoder; None if none is configured."""
    if config.encoder is None:
        return None
    dimension = config.model.dimension
    return encoders.GraphEncoder(config.encoder.resolved(dimension), graph, config.seed, dimension, edges_in_memory)


def make_planner(config: Config, graph: Graph, encoder: encoders.GraphEncoder | None = None) -> EdgePlanner:
    """Makes the planner of shuffled training edges."""
    edges = graph.edges("train")
    around = encoder.neighborhoods if encoder else None
    return EdgePlanner(edges, graph.num_nodes, graph.num_relations, config, edges_in_memory(edges), around)


def make_schedule(config: Config, graph: Graph) -> BucketSchedule:
    """Makes the buffer states of a partition ordering; reads all training edges, which have been checked."""
    BucketSchedule.check(graph.num_nodes, config)
    counts = count_buckets(graph.edges("train"), graph.num_nodes, present(config.training.ordering.partitions))
    return BucketSchedule(counts, graph.num_nodes, config)


def make_bucket_planner(config: Config, graph: Graph, schedule: BucketSchedule, folder: Path) -> BucketPlanner:
    """Makes the planner of a partition ordering; sorts the edges into `folder`, unless they are there."""
    sizes = graph.num_nodes, graph.num_relations
    edges = open_buckets(folder, graph.edges("train"), schedule.counts, *sizes, graph.fingerprint)
    most = edges_in_memory(edges)
    return BucketPlanner(edges, graph.num_nodes, graph.num_relations, config, schedule, most)


def largest_layer(config: Config) -> Layer | None:
    """The sizes of the step's largest products: of the encoder, or of scores of edges; None: it has none, or they are
    torch's, of a decoder or a loss of the user's own."""
    training, dimension = config.training, config.model.dimension
    if config.encoder:
        return encoders.largest_layer(config.encoder, dimension, training.batch_size)
    if config.model.decoder not in DECODERS or training.loss.kind not in LOSSES:
        return None
    if present(make_decoder(config.model).compiled).similarity != INNER:
        return None
    candidates = _MANY if training.negatives.all else training.negatives.count
    edges = training.batch_size // (1 if training.negatives.all else training.negatives.chunks)
    return Layer(min(edges, TILE_EDGES), dimension, candidates)


def make_encoded_step(
    config: Config, graph: Graph, encoder: encoders.GraphEncoder, device: torch.device, threads: int, update: Update
) -> EncodedStep:
    """Makes the step over encoded entities, with the initial values of encoder and relations."""
    return encoder.step(make_step(config, graph, device, threads, update.below()), update, device, config.compute)


def make_step(
    config: Config,
    graph: Graph,
    device: torch.device,
    threads: int,
    update: Update | None = None,
) -> LinkPredictionStep:
    """Makes the step with the initial values of the relations; `update` says what follows from its gradients."""
    count, width = num_model_relations(config, graph), relation_width(config)
    relations = None
    if count and width:
        relations = np.empty((count, width), np.float32)
        initial = RowInitial(config.model.relation_init, config.model.init_scale, config.seed, RELATIONS)
        initial.fill(np.arange(count), relations, width)
    return LinkPredictionStep(config, count, device, threads, relations, update)
