"""Layer-wise inference: encodes every node of a graph with all of its neighbours.

A layer is computed for all nodes before the next layer, so a node is computed once per layer, however many paths lead
to it. Nodes are processed in chunks of consecutive ones, and values are in mapped files, so memory is bounded for a
graph of any size.

Guarantees:
- The result is a pure function of encoder, values, neighbours and `memory`: the same bits for any number of threads.
- The file is complete or doesn't exist; who keeps it flushes it. No other files are left, even after an error.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn

from marius_oac.data.graphs.resident import Resident
from marius_oac.data.neighbors.neighbors import Neighbors
from marius_oac.evaluation.sharing import UNSHARED, Sharing
from marius_oac.kernels.cpu.relabel import relabel_behind
from marius_oac.models.compute.device_products import products_on
from marius_oac.models.compute.products import PooledProducts
from marius_oac.models.compute.scratch import Scratch
from marius_oac.models.compute.torch_state import torch_threads
from marius_oac.models.gnn.block import Block
from marius_oac.models.gnn.encoder import Encoder
from marius_oac.models.gnn.layers import GatLayer, Layer, SageLayer
from marius_oac.runtime import blas
from marius_oac.runtime.files.atomic import disk_errors, unfinished
from marius_oac.runtime.progress import Progress
from marius_oac.runtime.thread_pool import ThreadPool
from marius_oac.types import present

Read = Callable[[np.ndarray], np.ndarray]
"""Returns the values, float32 [n, D], of nodes, int64 [n], ascending and unique. Called by one thread."""

MEMORY = 1 << 29  # bytes
_PART_BYTES = 1 << 22  # of rows that are read or copied at once


def encode_nodes(
    encoder: Encoder,
    read: Read,
    width: int,
    neighbors: Neighbors,
    out: Path,
    thread_pool: ThreadPool,
    device: torch.device,
    memory: int = MEMORY,
    among: Sharing = UNSHARED,
) -> np.ndarray:
    """The values of all nodes, float32 [N, encoder.width], read-only and mapped from the .npy file `out`.

    They are those of `Encoder.forward` on blocks of all neighbours, without dropout. The encoder's mode is restored.
    Meanwhile there is at most one other file, with N values of an intermediate layer. Nodes that are equal in every
    respect get the same values only up to rounding, since BLAS rounds by a row's place in a product.

    Args:
        encoder: on the device.
        read: returns the first layer's inputs.
        width: D, floats of such an input.
        neighbors: all neighbours of all nodes.
        out: the file to write; it is replaced if it exists. Its folder exists.
        thread_pool: runs the work on the CPU.
        device: a CPU or CUDA device.
        memory: in bytes, see `encoding_bytes`.
        among: the processes that encode the same nodes together. Each computes some chunks of every layer, and all have
            all values; those of one machine map one file, which is at `out` of the first of them.

    Raises:
        InputError: the disk is full, or can't be written.
    """
    layers, num_nodes = encoder.sequence(), neighbors.num_nodes
    temporary = [unfinished(out.with_name(f"{out.name}.{number}")) for number in range(1, len(layers))]
    temporary.append(unfinished(out))
    layer_pass = _LayerPass(neighbors, thread_pool, device, memory, among)
    mapped: np.ndarray | None = None
    fill: Callable[[np.ndarray, np.ndarray], None] = partial(_fill, read)
    try:
        nodes, shown = num_nodes * len(layers), among.rank == 0
        with _ready(encoder, device), Progress("encoding", "nodes", nodes, shown=shown) as progress:
            for number, (layer, inputs) in enumerate(zip(layers, _widths(encoder, width), strict=True)):
                with disk_errors(out):
                    mapped = among.mapped(temporary[number], (num_nodes, layer.width))
                activation = layer.activation if number + 1 < len(layers) else nn.Identity()
                layer_pass.encode(layer, activation, inputs, fill, mapped, progress)
                fill = _Filler(mapped, thread_pool, memory)
                if number:
                    temporary[number - 1].unlink(missing_ok=True)
        if temporary[-1].exists():  # else another process has it
            with disk_errors(out):
                os.replace(temporary[-1], out)
    finally:
        for path in temporary:
            path.unlink(missing_ok=True)
    found = present(mapped)
    found.flags.writeable = False
    return found


def encoding_bytes(
    encoder: Encoder, width: int, num_nodes: int, num_entries: int, most_neighbors: int, memory: int = MEMORY
) -> int:
    """The largest memory that `encode_nodes` needs, in bytes, and on CUDA also of the device.

    It is what all nodes at once need, but at most `memory`, or what the neighbourhood of one node needs if that is more
    than half of `memory`; and a few MiB. It holds for our layers; a module of dgl may need more per edge than a value
    of the layer's width.

    Args:
        width: D, floats of an input of the first layer.
        num_entries: the number of all neighbours.
        most_neighbors: the largest number of neighbours of a node.
    """
    layers = [
        (_Cost.of(layer, inputs, num_nodes), 4 * num_nodes * (inputs + layer.width))
        for layer, inputs in zip(encoder.sequence(), _widths(encoder, width), strict=True)
    ]
    hub = max(cost.bytes(1, most_neighbors) for cost, _ in layers)
    whole = max(cost.bytes(num_nodes, num_entries) + files for cost, files in layers)
    return min(max(memory, 4 * _pages(memory) + hub), whole) + 4 * _PART_BYTES


def _widths(encoder: Encoder, width: int) -> list[int]:
    """The width of each layer's inputs."""
    return [width, *(layer.width for layer in encoder.sequence())][:-1]


@contextmanager
def _ready(encoder: Encoder, device: torch.device) -> Iterator[None]:
    """Within the block the encoder is in evaluation mode, products are float32, and torch and BLAS use one thread."""
    modes = {module: module.training for module in encoder.modules()}
    with ExitStack() as stack:
        if device.type == "cpu":
            stack.enter_context(blas.one_thread_per_product())
            stack.enter_context(torch_threads(1))
        stack.enter_context(products_on(device, "float32"))
        stack.enter_context(torch.no_grad())  # results of inference_mode could not be written by other threads
        encoder.eval()
        try:
            yield
        finally:
            for module, training in modes.items():
                module.training = training


def _pages(memory: int) -> int:
    """The bytes of each mapped file that may be resident: offsets, entries, inputs and outputs."""
    return memory // 8


@dataclass(frozen=True)
class _Cost:
    """The bytes that a layer needs for each node or entry, for each input, and for each output of a chunk."""

    num_nodes: int
    entry: int
    input: int
    output: int

    @classmethod
    def of(cls, layer: Layer, inputs: int, num_nodes: int) -> _Cost:
        heads = projected = 0
        if not isinstance(layer, SageLayer):
            projected = max([layer.width, *(each.shape[0] for each in layer.parameters() if each.dim())])
            heads = layer.heads if isinstance(layer, GatLayer) else projected
        # 64: eight int64 while nodes get local numbers, later the block's numbers and the weights of edges.
        return cls(
            num_nodes,
            64 + 4 * heads,
            4 * (inputs + projected + 2 * heads),
            4 * (3 * inputs + 2 * projected + 5 * layer.width),
        )

    def bytes(self, nodes: int, entries: int) -> int:
        every = nodes + entries
        return self.entry * every + self.input * min(every, self.num_nodes) + self.output * nodes


def _chunks(offsets: np.ndarray, cost: _Cost, most_bytes: int) -> Iterator[tuple[int, int]]:
    """Yields ranges of nodes that need at most so many bytes, or are one node."""
    begin, end = 0, len(offsets) - 1
    while begin < end:
        first = int(offsets[begin])
        fits = bisect_right(
            range(begin + 1, end + 1), most_bytes, key=lambda last: cost.bytes(last - begin, int(offsets[last]) - first)
        )
        yield begin, begin + max(1, fits)
        begin += max(1, fits)


def _fill(read: Read, nodes: np.ndarray, into: np.ndarray) -> None:
    """Writes the values of nodes, int64 [n], ascending and unique, to `into`, float32 [n, D]."""
    rows = max(1, _PART_BYTES // (4 * into.shape[1]))
    for begin in range(0, len(nodes), rows):
        into[begin : begin + rows] = read(nodes[begin : begin + rows])


class _Filler:
    """Does the same as `_fill`, from a mapped file of all values."""

    def __init__(self, values: np.ndarray, thread_pool: ThreadPool, memory: int) -> None:
        self._values, self._thread_pool = values.view(np.ndarray), thread_pool
        self._resident = Resident(values, _pages(memory))
        row = 4 * values.shape[1]
        self._window = max(1, _pages(memory) // row) if values.nbytes > _pages(memory) else len(values)
        self._rows = max(1, _PART_BYTES // row)

    def __call__(self, nodes: np.ndarray, into: np.ndarray) -> None:
        # One window of the file at a time, so that only its pages are resident.
        begin = 0
        while begin < len(nodes):
            end = int(np.searchsorted(nodes, nodes[begin] + self._window))
            cuts = range(begin, end, self._rows)
            self._thread_pool.run([partial(self._copy, nodes, into, at, min(at + self._rows, end)) for at in cuts])
            self._resident.drop()
            begin = end

    def _copy(self, nodes: np.ndarray, into: np.ndarray, begin: int, end: int) -> None:
        np.take(self._values, nodes[begin:end], axis=0, out=into[begin:end], mode="clip")


class _LayerPass:
    """Computes a layer for all nodes."""

    def __init__(
        self, neighbors: Neighbors, thread_pool: ThreadPool, device: torch.device, memory: int, among: Sharing
    ) -> None:
        self._neighbors, self._thread_pool, self._device, self._memory = neighbors, thread_pool, device, memory
        self._among = among
        self._offsets, self._entries = (each.view(np.ndarray) for each in (neighbors.offsets, neighbors.entries))
        self._scratch, self._products = Scratch(), PooledProducts(thread_pool, Scratch())

    def encode(
        self,
        layer: Layer,
        activation: Callable[[torch.Tensor], torch.Tensor],
        inputs: int,
        fill: Callable[[np.ndarray, np.ndarray], None],
        into: np.ndarray,
        progress: Progress,
    ) -> None:
        """Writes activation(layer) of all nodes to `into`, float32 [N, width]. `fill` writes the layer's inputs."""
        most = _pages(self._memory)
        maps = [Resident(each, most) for each in (self._neighbors.offsets, self._neighbors.entries, into)]
        cost = _Cost.of(layer, inputs, self._neighbors.num_nodes)
        # Chunks are shared as they are: a value's rounding depends on its place in its chunk.
        chunks = [*_chunks(self._offsets, cost, self._memory - 4 * most)]
        own = self._among.share(len(chunks))
        for begin, end in chunks[own.start : own.stop]:
            block, others = self._block(begin, end)
            values = self._scratch.take("values", block.num_inputs, inputs)
            fill(np.arange(begin, end), values[: end - begin])
            fill(others, values[end - begin :])
            with self._products:
                found = activation(layer(torch.from_numpy(values).to(self._device), block, self._thread_pool))
            into[begin:end] = found.cpu().numpy()
            for each in maps:
                each.drop()
            progress.add(end - begin)
            self._among.turn()
        firsts = [*(begin for begin, _ in chunks), self._neighbors.num_nodes]
        starts = [firsts[start] for start in self._among.starts(len(chunks))]
        self._among.completed(into, starts, maps[-1].drop)
        progress.add(self._neighbors.num_nodes - starts[self._among.rank + 1] + starts[self._among.rank])

    def _block(self, begin: int, end: int) -> tuple[Block, np.ndarray]:
        """The block of nodes [begin, end), and its other inputs, int64 [n], ascending."""
        offsets = self._offsets[begin : end + 1]
        first, last, count = int(offsets[0]), int(offsets[-1]), end - begin
        ids = np.empty(count + last - first, dtype=np.int64)
        ids[:count], ids[count:] = np.arange(begin, end), self._entries[first:last, 0]
        nodes, num_nodes = ids[:count], self._neighbors.num_nodes
        if count < num_nodes:
            nodes, _, _ = relabel_behind(ids, count, num_nodes)
        starts, sources = (torch.from_numpy(each).to(self._device) for each in (offsets - first, ids[count:]))
        return Block(starts, sources, len(nodes)), nodes[count:]
