"""A smaller batch compiles no kernel anew: Triton has one for each type, constant and whether a tensor begins at a
multiple of 16 bytes, and an epoch's last batch may have any size. Batches are packed as for a device."""

from collections import Counter

import numpy as np
import pytest
import torch

from marius_oac.batches import BlockData, EncodedBatch
from marius_oac.kernels.gpu import choice
from marius_oac.models.compute.arranged import arranged
from marius_oac.models.compute.soundness import is_sound
from marius_oac.models.compute.update import Update
from marius_oac.models.gnn.encoder import make_encoder
from marius_oac.models.gnn.step import EncodedStep
from marius_oac.models.link_prediction.step import LinkPredictionStep
from marius_oac.pipeline.packing import Packing
from marius_oac.pipeline.validation import replacing
from marius_oac.types import map_arrays
from tests.models import batches, test_encoded
from tests.models.ctr import step_batches

jit = pytest.importorskip("marius_oac.kernels.gpu.jit", reason="no Triton")

SIZES = 1000, 115, 116, 117, 118, 999, 1
CPU = torch.device("cpu")
LINKS = {
    "ComplEx": ("complex", {}),
    "one float": ("distmult", {"model__dimension": 1}),
    "odd vectors": ("distmult", {"model__dimension": 5}),
    "many splits": ("complex", {"training__negatives__count": 3}),
    "chunks": ("complex", {"training__negatives__chunks": 4}),
    "ragged chunks": ("distmult", {"training__negatives__chunks": 7, "model__dimension": 5}),
    "all nodes": ("complex", {"training__negatives__all": "true"}),
    "reciprocal": ("complex", {"model__reciprocal": "true"}),
    "reciprocal, odd vectors": ("transe-1", {"model__reciprocal": "true", "model__dimension": 5}),
    "Dot": ("dot", {"training__optimizer__kind": "rowwise_adagrad"}),
    "RotatE, Adam": ("rotate", {"training__optimizer__kind": "adam"}),
    "penalty": ("transe-2", {"training__regularization__kind": "l2", "training__regularization__weight": 0.1}),
}


@pytest.fixture(autouse=True)
def by_kernels():
    with choice.forced(True):
        yield


class Kinds:
    """What Triton would have compiled so far, by the size of the batch that asked for it first."""

    def __init__(self):
        self.size, self.first = 0, {}

    def note(self, launch):
        given = tuple(
            (str(each.dtype), each.data_ptr() % 16 == 0) if isinstance(each, torch.Tensor) else type(each)
            for each in launch.arguments
        )
        key = launch.kernel.__name__, given, launch.warps, str(sorted(launch.constants.items()))
        self.first.setdefault(key, self.size)

    def check(self, names):
        """Only the first batch asked for any; tensors begin at such multiples then, as they do on a GPU."""
        later = {f"{key[0]} at {size}" for key, size in self.first.items() if size != SIZES[0]}
        assert not later and {key[0] for key in self.first} == set(names)
        assert all(each[1] for key in self.first for each in key[1] if isinstance(each, tuple))
        assert max(Counter(key[0] for key in self.first).values()) <= 2  # rows, and relations


@pytest.fixture
def kinds():
    found = Kinds()
    jit.observers.append(found.note)
    yield found
    jit.observers.remove(found.note)


def packed(rows, data):
    """Rows and data as a device has them: views of one block."""
    packing = Packing([len(each) for each in rows], [each.shape[1] for each in rows],
                      arranged(data, [np.arange(len(each)) for each in rows], CPU))  # fmt: skip
    block = torch.empty(packing.num_bytes, dtype=torch.uint8)
    packing.put(block)
    values = [place.of(block).copy_(torch.from_numpy(each)) for place, each in zip(packing.values, rows, strict=True)]
    return values, packing.data(block), [place.of(block) for place in (*packing.timestamps, *packing.rows)]


def shape_of(size, others):
    settings = {key.rpartition("__")[2]: value for key, value in others.items()}
    return batches.Shape(
        entities=300, relations=20, edges=size, chunks=settings.get("chunks", 1),
        negatives=settings.get("count", 60), dimension=settings.get("dimension", 10),
    )  # fmt: skip


LINK_KERNELS = "queries", "query_gradients", "candidate_gradients", "end_gradients", "block_sums", "update_rows"


@pytest.mark.parametrize("case", LINKS)
def test_links(kinds, case):
    decoder, others = LINKS[case]
    config = batches.configure(decoder, shape=shape_of(SIZES[0], others), **others)
    for kinds.size in SIZES:
        shape = shape_of(kinds.size, others)
        batch = batches.draw(config, shape)
        with_order, data, _ = packed([batch.rows(config)], batch.data)
        for given in (data, map_arrays(batch.data, torch.from_numpy)):  # with an order of sums, or sorted there
            step = batch.step(config)
            step.compute(with_order, given, 0)
            step.close()
    kinds.check(LINK_KERNELS)


@pytest.mark.parametrize("layers", ["sage", "gat"])
def test_encoders(kinds, layers):
    config = test_encoded.configure(test_encoded.LAYERS[layers], test_encoded.INPUTS["rows"])
    encoder, update = config.encoder.resolved(test_encoded.WIDTH), Update.here(config.training.optimizer)
    generator, relations = np.random.default_rng(0), np.ones((3, test_encoded.WIDTH), np.float32)
    for kinds.size in SIZES:
        nodes = min(200, kinds.size + 1)
        sources = generator.integers(2 * nodes, size=3 * nodes)
        block = BlockData(np.arange(nodes + 1) * 3, sources)
        ends = generator.integers(nodes, size=(2, kinds.size))
        head = batches.EdgeBatch(
            heads=ends[0], tails=ends[1], relations=np.arange(kinds.size) % 2, relation_rows=np.array([0, 2]),
            negatives=generator.integers(nodes, size=(2, 1, 7)), chunk_offsets=(0, kinds.size),
        )  # fmt: skip
        data = EncodedBatch(head=head, blocks=(block,), inputs=generator.permutation(2 * nodes), features=None)
        values, data, _ = packed([np.ones((2 * nodes, encoder.embeddings), np.float32)], data)
        step = EncodedStep(
            make_encoder(encoder, encoder.embeddings, 1),
            LinkPredictionStep(config, 3, CPU, 1, relations, update.below()),
            encoder.embeddings, encoder.optimizer, update, config.seed, CPU,
        )  # fmt: skip
        step.compute(values, data, 0)
        step.close()
        update = Update.here(config.training.optimizer)
    kinds.check(LINK_KERNELS)


@pytest.mark.parametrize("layout", step_batches.LAYOUTS)
def test_clicks(kinds, layout):
    config = step_batches.configure(training__embedding_l2=0.1)
    for kinds.size in SIZES:
        batch = step_batches.draw(layout, True, kinds.size, keys=50)
        rows, data, _ = packed(batch.rows(config), batch.data)
        for given in (data, map_arrays(batch.data, torch.from_numpy)):
            step = batch.step(config)
            step.compute(rows, given, 0)
            step.close()
    kinds.check(["block_sums", "update_rows"])


@pytest.mark.parametrize("widths", [[5], [3, 1, 10]])
def test_validation_and_a_look_at_the_numbers(kinds, widths):
    replace, newer = replacing(CPU), None
    config = batches.configure("dot")
    for kinds.size in SIZES:
        rows = [np.ones((kinds.size, width), np.float32) for width in widths]
        values, _, others = packed(rows, batches.draw(config, batches.Shape(entities=kinds.size)).data)
        timestamps, ids = others[: len(widths)], others[len(widths) :]
        for table, width in enumerate(widths):
            if newer is not None:
                replace(newer[1][table], newer[0][table], 7, ids[table], timestamps[table], values[table], 0)
            replace(ids[table], values[table], 7, ids[table], timestamps[table], values[table], 0)
            is_sound(values[table], width - 1)
        newer = values, ids
    kinds.check(["replace_older", "look"])
