"""How much device memory an encoder takes beside the rows and arrays that it is given; see `runs.memory.plan`.

Sums of what is held at once where that is the most, as a dry run of the step shows it (docs/gpu.md).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from marius_oac.batches import EncodedBatch
from marius_oac.config.encoder import EncoderConfig, GatConfig, ModuleConfig
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
