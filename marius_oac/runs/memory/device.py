"""How much device memory a step takes beside the rows and arrays that it is given; see `memory`.

Sums of what is held at once where that is the most, as a dry run of the steps shows it (docs/gpu.md).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from marius_oac.batches import EdgeBatch, EncodedBatch
from marius_oac.config.ctr import CtrConfig
from marius_oac.config.encoder import EncoderConfig, GatConfig, ModuleConfig
from marius_oac.config.link_prediction import Config
from marius_oac.data.logs.tables import FeatureTable
from marius_oac.models.compute.row_optimizers import RowOptimizer
from marius_oac.models.link_prediction.decoders import make_decoder
from marius_oac.models.link_prediction.distances import tile_bytes
from marius_oac.models.link_prediction.losses import make_loss
from marius_oac.models.link_prediction.regularizers import penalized
from marius_oac.types import present


def link_step_bytes(config: Config, data: EdgeBatch[np.ndarray], rows: int) -> int:
    """Of a batch of `rows` entities."""
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


def encoder_step_bytes(
    data: EncodedBatch[np.ndarray], config: EncoderConfig, inputs: int, widths: Sequence[int], head: int
) -> int:
    """Of an encoder and a head that takes `head` bytes of its own; `config` and others as in `encoder_bytes`."""
    planned, nodes, blocks = data.means is not None, len(data.first), iter(data.blocks)
    first = nodes * inputs * (not planned)
    kept, words, parameters, most = first, 0, 0, list[float]()
    for number, (layer, width) in enumerate(zip(config.layers, widths, strict=True)):
        parameters += inputs * width * (1 if isinstance(layer, GatConfig) else 2)
        outputs, edges = nodes, 0
        if not (planned and not number):
            block = next(blocks)
            outputs, edges = len(block.offsets) - 1, len(block.sources)
        if isinstance(layer, GatConfig):
            edges, heads = edges + outputs * layer.attend_to_self, layer.heads * present(layer.dimension)
            saved = nodes * (heads + 2 * layer.heads) + 3 * edges * layer.heads
            work = nodes * heads + 2 * edges * heads + outputs * heads
        else:  # a layer of the user's is unknown: as if it computed a value of each edge
            saved = 2 * outputs * inputs + 3 * edges * width * isinstance(layer, ModuleConfig)
            work = max(2 * outputs, nodes) * inputs
        words += 5 * edges + nodes + outputs
        if config.dropout and edges:
            saved += nodes * inputs // 4
            work += nodes * inputs
        made, last = outputs * width, number + 1 == len(widths)
        # A layer's output is held until its backward pass; ELU holds its input, too.
        most.append(kept + saved + work + made * (1 + last))
        kept += saved + made * (2 if isinstance(layer, GatConfig) and not last else 1)
        nodes, inputs = outputs, width
    most += [kept + nodes * inputs + head / 4, 4 * first]
    return int(4 * max(most)) + 8 * words + 32 * parameters - head


def click_step_bytes(config: CtrConfig, tables: Sequence[FeatureTable], weighted: bool) -> int:
    """Of a batch of examples, or of those that are predicted at once: what was gathered, the network's layers, and
    gradients, above all by rows. A network of the user's is taken for an MLP."""
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
        "dien": 17.5 * steps + width + mlp,
    }.get(model.network, width + mlp)
    predicted = {"lr": 0, "fm": 2 * fields, "dlrm": fields + 3 * pairs, "dien": 6 * steps + width + 2 * hidden}.get(
        model.network, 2 * width + 2 * hidden
    )
    largest = max(count * width for count, width in occurrences)
    training = max(gathered + trained, 2 * gathered + 3 * largest + 12 * ids)
    prediction = gathered + max(gathered, predicted)
    return int(4 * max(config.training.batch_size * training, config.evaluation.batch_size * prediction))
