"""How much memory an encoder takes; see `memory`.

What a step takes of the device, beside the rows and arrays that it is given, is the sum of what is held at once
where that is the most, as a dry run of the step shows it (docs/gpu.md).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from marius_oac.batches import EncodedBatch
from marius_oac.config.encoder import EncoderConfig, GatConfig, ModuleConfig
from marius_oac.runs.memory.plan import Need
from marius_oac.tasks.encoder.build import GraphEncoder
from marius_oac.types import present


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


def encoder_needs(
    encoder: GraphEncoder, data: EncodedBatch[np.ndarray], on_disk: int, device: torch.device, head: int = 0
) -> list[Need]:
    """Returns what the encoder needs besides its head, and besides the memory for encoding all nodes.

    Args:
        data: of the first batch.
        on_disk: bytes of encoded nodes.
        head: bytes that the head takes for a batch.
    """
    given, place = (data, encoder.config, encoder.inputs, encoder.widths), "host"
    size = encoder_bytes(*given)
    if device.type == "cuda":
        place, size = "device", encoder_step_bytes(*given, head)
    needs = [
        Need("host", "neighbours", encoder.mapped_bytes, "encoder.direction", mapped=True),
        Need(place, "encoder", size, "encoder.layers"),
        Need("disk", "encoded nodes", on_disk, "encoder.layers"),
    ]
    if encoder.features is not None:
        needs.append(Need("host", "features", encoder.features.nbytes, "encoder.features", mapped=True))
    return needs


def num_encoded(data: EncodedBatch[np.ndarray]) -> int:
    """Returns the number of nodes that a batch encodes."""
    return len(data.blocks[-1].offsets) - 1 if data.blocks else len(data.first)


def encoder_bytes(data: EncodedBatch[np.ndarray], config: EncoderConfig, inputs: int, widths: list[int]) -> int:
    """Returns the bytes that the encoder takes for a batch on the CPU, forward and backward.

    Args:
        config: `resolved`.
        inputs: floats of an input of the first layer.
        widths: floats of each layer's outputs.
    """
    planned, nodes, blocks = data.means is not None, len(data.first), iter(data.blocks)
    # Beside the values that were read: gathered, their gradients, these by row.
    floats, words = 3 * nodes * inputs * (not planned), 0
    for number, (layer, width) in enumerate(zip(config.layers, widths, strict=True)):
        if planned and not number:
            floats += 4 * nodes * width
            inputs = width
            continue
        block = next(blocks)
        edges, outputs = len(block.sources), len(block.offsets) - 1
        floats += 2 * nodes * inputs * (number > 0) + 4 * outputs * (inputs + width)
        words += 3 * edges + nodes + outputs
        if isinstance(layer, GatConfig):
            every = edges + outputs * layer.attend_to_self
            floats += 2 * nodes * layer.heads * (present(layer.dimension) + 1) + 6 * every * layer.heads
            words += 3 * every
        if isinstance(layer, ModuleConfig):  # unknown: as if it computed a value of each edge
            floats += 3 * edges * width
        nodes, inputs = outputs, width
    return 4 * floats + 8 * words
