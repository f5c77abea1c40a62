"""What a graph encoder is built from, whatever its head: neighbours, features, sampler, layers."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from marius_oac.config.encoder import EncoderConfig, ModuleConfig, SageConfig
from marius_oac.config.parts import own_file
from marius_oac.config.sections import ComputeConfig
from marius_oac.data.dgl.sampling import DglSampler
from marius_oac.data.folders import default_cache_dir
from marius_oac.data.graphs.derived import DerivedArray, open_derived
from marius_oac.data.graphs.features import features_fingerprint, open_features
from marius_oac.data.graphs.graph import Graph
from marius_oac.data.neighbors.neighborhoods import Neighborhoods, Sampler, features_of
from marius_oac.data.neighbors.neighbors import Neighbors, open_neighbors
from marius_oac.data.neighbors.sampling import NeighborSampler
from marius_oac.data.reading.registry import EMBEDDED
from marius_oac.errors import CheckpointError, ConfigError
from marius_oac.evaluation.inference import encode_nodes, encoding_bytes
from marius_oac.evaluation.sharing import UNSHARED, Sharing
from marius_oac.models.compute.multiply import Layer
from marius_oac.models.compute.network_parameters import NETWORK
from marius_oac.models.compute.update import Update
from marius_oac.models.compute.user_code import blaming_frames, own_files
from marius_oac.models.gnn.encoder import Encoder, make_encoder
from marius_oac.models.gnn.step import EncodedStep, Head
from marius_oac.runs.checkpoints.checkpoint import Checkpoint
from marius_oac.runs.task import Components
from marius_oac.runtime.console import logger
from marius_oac.runtime.files.atomic import check_no_link, made_of
from marius_oac.runtime.files.scratch import scratch_folder
from marius_oac.runtime.thread_pool import ThreadPool
from marius_oac.storage.snapshots import RowArray
from marius_oac.types import present

FEATURES = "encoder.features"
ENCODED = "entities.npy"
"""The file of all encoded nodes."""
_ENCODED_AT, _ABOUT = "encoded", "encoded.json"
_AT_ONCE = 1 << 20  # nodes whose neighbours are counted

Read = Callable[[np.ndarray], np.ndarray]


def own_layers(config: EncoderConfig) -> dict[str, str]:
    """Returns the texts of the user's files that define layers; see `Task.run_files`."""
    return own_files(("encoder.layers", layer.module) for layer in config.layers if isinstance(layer, ModuleConfig))


class GraphEncoder:
    """The configured encoder of a graph, and its files on disk.

    Neighbours and features lie in the graph's folder, where every run on the graph finds them, or, where it can't be
    written, in the user's cache; they are made by the first run.

    Attributes:
        data: the fingerprint of the features, if there are some, by the configuration's key.

    Args:
        config: `resolved`.
        width: floats of an encoded node that are asked for.
        most_bytes: of an array in a mapped file that may be in memory at a time.
    Raises:
        InputError: the features don't fit the graph, the folder can't be written, or the last layer makes another
            number of floats.
    """

    def __init__(
        self, config: EncoderConfig, graph: Graph, seed: int, width: int, most_bytes: Callable[[np.ndarray], int]
    ):
        self.config, self._graph, self._seed = config, graph, seed
        place, edges = _writable(graph), graph.edges("train")
        sizes, folder = (graph.num_nodes, graph.num_relations), place / f"neighbors-{config.direction}"
        self.neighbors: Neighbors = open_neighbors(folder, edges, *sizes, config.direction, graph.fingerprint)
        self.features: np.ndarray | None = None
        self.data: dict[str, str] = {}
        if config.features:
            name = hashlib.sha256(str(Path(config.features).resolve()).encode()).hexdigest()[:12]
            folder = place / f"features-{name}"
            self.features = open_features(Path(config.features), graph, folder)
            self.data = {FEATURES: features_fingerprint(folder)}
        self._most = most_bytes(self.neighbors.entries)
        self.mapped_bytes = self._most + self.neighbors.offsets.nbytes
        encoder = self.make()
        layers: Iterable[Any] = encoder.layers  # modules that have a width
        self.widths: list[int] = [layer.width for layer in layers]
        if encoder.width != width:
            raise ConfigError(
                f"the last one makes {encoder.width} floats of a node, {width} are needed", "encoder.layers"
            )

    @property
    def own(self) -> list[Path]:
        """The user's files that layers come from."""
        found = [own_file(layer.module) for layer in self.config.layers if isinstance(layer, ModuleConfig)]
        return [file[0] for file in found if file]

    @property
    def inputs(self) -> int:
        """The number of floats of an input of the first layer."""
        return present(self.config.embeddings) + (0 if self.features is None else self.features.shape[1])

    @property
    def neighborhoods(self) -> Neighborhoods:
        """Sampler and features, for the planner."""
        first, embedded = self.config.layers[0], present(self.config.embeddings) > 0
        given = not (embedded or self.config.dropout)  # nothing is drawn or trained before the first layer's means
        means = first.aggregator if given and isinstance(first, SageConfig) else None
        return Neighborhoods(self._sampler(), embedded, self.features, means)

    def _sampler(self) -> Sampler:
        fan_outs, graph = self.config.fan_outs, self._graph
        if self.config.sampler == "own":
            return NeighborSampler(self.neighbors, fan_outs, self._seed, self._most)
        sizes = graph.num_nodes, graph.num_relations
        return DglSampler(graph.edges("train"), *sizes, self.config.direction, fan_outs, self._seed)

    def make(self) -> Encoder:
        """Makes the layers with their initial parameters."""
        return make_encoder(self.config, self.inputs, self._seed)

    def step(self, head: Head, update: Update, device: torch.device, compute: ComputeConfig) -> EncodedStep:
        """Makes the step over encoded nodes, with the initial parameters; the head is made with `update.below()`."""
        embeddings, optimizer = present(self.config.embeddings), self.config.optimizer
        return EncodedStep(self.make(), head, embeddings, optimizer, update, self._seed, device, self.own, compute)

    def encode(
        self,
        encoder: Encoder,
        rows: Read | None,
        out: Path,
        thread_pool: ThreadPool,
        device: torch.device,
        memory: int,
        among: Sharing = UNSHARED,
    ) -> np.ndarray:
        """Encodes all nodes, layer by layer with all their neighbours, into the file `out`: float32 [N, W], mapped
        read-only.

        Args:
            rows: gives the values of the nodes' own rows, int64 [n] ascending; None if they have none.
            memory: bytes for what is encoded at once.
            among: see `encode_nodes`.
        Raises:
            ConfigError: the user's own layer has failed.
            InputError: the disk is full, or can't be written.
        """
        read = self._inputs_of(rows)
        with blaming_frames(self.own, "encoder.layers"):
            return encode_nodes(encoder, read, self.inputs, self.neighbors, out, thread_pool, device, memory, among)

    @contextmanager
    def encoded(
        self, parts: Components, folder: Path | None, memory: int, among: Sharing = UNSHARED
    ) -> Iterator[np.ndarray]:
        """Encodes all nodes with the present parameters, as `encode`, into a file in `folder` that lasts as long as the
        block."""
        rows = parts.readers[0].read if parts.readers else None
        step = cast(EncodedStep, parts.step)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".encoded-", suffix=".unfinished") as place:
            out, thread_pool = Path(place) / ENCODED, step.head.thread_pool
            yield self.encode(step.encoder, rows, out, thread_pool, parts.device, memory, among)

    def encoded_at(
        self, checkpoint: Checkpoint, rows: RowArray | None, threads: int, device: torch.device, memory: int
    ) -> np.ndarray:
        """Encodes all nodes with a checkpoint's encoder, as `encode`, unless that was done before. The file lies in the
        run's folder, not in the checkpoint's, which a training run may remove at any moment."""
        run = checkpoint.path.parent.parent

        def make(folder: Path) -> None:
            for old in (run / _ENCODED_AT).glob("[0-9]" * 10):
                if not (checkpoint.path.parent / old.name).exists() and made_of(old, (_ABOUT, ENCODED)):
                    shutil.rmtree(old, ignore_errors=True)
            encoder = self.make().to(device)
            load_encoder(encoder, checkpoint)
            read = None if rows is None else rows.__getitem__
            with closing(ThreadPool(threads if device.type == "cpu" else 1)) as thread_pool:
                self.encode(encoder, read, folder / ENCODED, thread_pool, device, memory)

        if not os.access(run, os.W_OK):
            logger.warning(f"{run} can't be written: the nodes are encoded anew each time")
            with scratch_folder() as place:
                make(place)
                return np.load(place / ENCODED, mmap_mode="r", allow_pickle=False)  # readable while mapped
        folder = run / _ENCODED_AT / checkpoint.name
        check_no_link(folder, run)
        layers = hashlib.sha256(json.dumps(own_layers(self.config)).encode()).hexdigest()
        wanted = {"format": "marius_oac.encoded", "version": 1, "checkpoint": checkpoint.digest}
        wanted |= {"data": self.data, "layers": layers}
        array = DerivedArray(ENCODED, (np.float32,), (self._graph.num_nodes, self.widths[-1]))
        return open_derived(folder, _ABOUT, wanted, [array], make, "the nodes are encoded again")[0]

    def encoding_needs(self, memory: int) -> tuple[int, int]:
        """Returns the most bytes that encoding all nodes takes: of memory, and on disk."""
        offsets, encoder = self.neighbors.offsets, self.make()
        cuts = range(0, len(offsets), _AT_ONCE)
        most = max(int(np.diff(offsets[first : first + _AT_ONCE + 1]).max(initial=0)) for first in cuts)
        widths = sorted(self.widths, reverse=True)[:2]
        num_nodes, num_entries = self.neighbors.num_nodes, len(self.neighbors.entries)
        held = encoding_bytes(encoder, self.inputs, num_nodes, num_entries, most, memory)
        return held, 4 * num_nodes * sum(widths)

    def _inputs_of(self, rows: Read | None) -> Read:
        if self.features is None:
            return present(rows)
        features = partial(features_of, self.features)
        return features if rows is None else lambda ids: np.concatenate((rows(ids), features(ids)), 1)


def largest_layer(config: EncoderConfig, dimension: int, batch_size: int) -> Layer:
    """The sizes of the layer with the most work, as far as the configuration knows them: features count as `dimension`
    floats, and so do results of a user's layer."""
    resolved = config.resolved(dimension)
    widths = [resolved.embeddings or dimension]
    for number, layer in enumerate(resolved.layers, 1):
        last = number == len(resolved.layers)
        widths.append(dimension if isinstance(layer, ModuleConfig) else layer.width(last))
    layers = (Layer(batch_size, *pair) for pair in zip(widths[:-1], widths[1:], strict=True))
    return max(layers, key=lambda layer: layer.work)


def load_encoder(encoder: Encoder, checkpoint: Checkpoint) -> None:
    """Loads the encoder's parameters from a checkpoint. Raises CheckpointError if they don't fit."""
    state = {name.removeprefix(NETWORK): each for name, each in checkpoint.dense().items() if name.startswith(NETWORK)}
    try:
        encoder.load_state_dict(state)
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise CheckpointError(f"has an encoder of other parameters: {reason}", checkpoint.path) from None


def _writable(graph: Graph) -> Path:
    """The graph's folder, or a folder in the user's cache if that comes with the package or, with a warning, can't be
    written."""
    own = graph.path.is_relative_to(EMBEDDED)
    if os.access(graph.path, os.W_OK) and not own:
        return graph.path
    place = default_cache_dir() / "derived" / graph.fingerprint[:16]
    if not own:
        logger.warning(f"{graph.path} can't be written: neighbours and features lie in {place}")
    return place
