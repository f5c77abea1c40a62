"""How much memory an encoder takes; see `memory`."""

from __future__ import annotations

import torch

from marius_oac.config.encoder import EncoderConfig, GatConfig, ModuleConfig
from marius_oac.runs.memory.device import encoder_step_bytes
from marius_oac.runs.memory.plan import Need
from marius_oac.tasks.encoder.build import GraphEncoder
from marius_oac.types import Plan


def encoder_needs(encoder: GraphEncoder, plan: Plan, on_disk: int, device: torch.device, head: int = 0) -> list[Need]:
    """What the encoder needs beside what stands on top of it, and beside the memory for encoding all nodes.

    Args:
        plan: of the first batch.
        on_disk: bytes of encoded nodes.
        head: bytes that what stands on top of it takes for a batch.
    """
    given, place = (plan, encoder.config, encoder.inputs, encoder.widths), "host"
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


def num_encoded(plan: Plan, config: EncoderConfig) -> int:
    """Nodes that a batch encodes."""
    last = plan.arrays.get(f"blocks.{len(config.layers) - 1}.offsets")
    return len(plan.arrays["means"] if last is None else last[1:])


def encoder_bytes(plan: Plan, config: EncoderConfig, inputs: int, widths: list[int]) -> int:
    """What the encoder's part of a step takes for a batch on the CPU, forward and backward.

    Args:
        config: `resolved`.
        inputs: floats of an input of the first layer.
        widths: floats of each layer's outputs.
    """
    planned = "means" in plan.arrays
    nodes = len(plan.arrays["means" if planned else "inputs"])
    # Beside the values that were read: gathered, their gradients, these by row.
    floats, words = 3 * nodes * inputs * (not planned), 0
    for number, (layer, width) in enumerate(zip(config.layers, widths, strict=True)):
        if planned and not number:
            floats += 4 * nodes * width
            inputs = width
            continue
        edges, outputs = len(plan.arrays[f"blocks.{number}.sources"]), len(plan.arrays[f"blocks.{number}.offsets"]) - 1
        floats += 2 * nodes * inputs * (number > 0) + 4 * outputs * (inputs + width)
        words += 3 * edges + nodes + outputs
        if isinstance(layer, GatConfig):
            every = edges + outputs * layer.attend_to_self
            floats += 2 * nodes * layer.heads * (layer.dimension + 1) + 6 * every * layer.heads
            words += 3 * every
        if isinstance(layer, ModuleConfig):  # not known: as much as if it made a value of each edge
            floats += 3 * edges * width
        nodes, inputs = outputs, width
    return 4 * floats + 8 * words
