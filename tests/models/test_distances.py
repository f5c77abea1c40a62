"""Tiled distances and their gradient against the formulas written out; what they hold at once."""

import gc
import weakref

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from marius_oac.models.link_prediction import distances as module
from marius_oac.models.link_prediction.distances import TILE_BYTES, TILES, distances

SHAPES = [((7, 4), (5, 4)), ((3, 7, 6), (3, 5, 6)), ((1, 2), (1, 2)), ((2, 1, 3, 4), (2, 1, 2, 4)), ((0, 4), (5, 4))]


def naive(kind, queries, candidates):
    difference = queries.unsqueeze(-2) - candidates.unsqueeze(-3)
    if kind == "moduli":
        half = difference.shape[-1] // 2
        return (difference[..., :half] ** 2 + difference[..., half:] ** 2).sqrt().sum(-1)
    return difference.abs().sum(-1) if kind == "l1" else (difference**2).sum(-1).sqrt()


@pytest.mark.parametrize("tile", [1, 100, 700, 1 << 20])
@pytest.mark.parametrize("shapes", SHAPES)
@pytest.mark.parametrize("kind", ["l1", "l2", "moduli"])
def test_values_and_gradients_are_those_of_the_formulas(monkeypatch, kind, shapes, tile):
    monkeypatch.setattr(module, "TILE_BYTES", tile)
    generator = torch.Generator().manual_seed(1)
    inputs = [torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True) for shape in shapes]
    found, expected = distances(kind, *inputs), naive(kind, *inputs)
    weights = torch.randn(expected.shape, generator=generator, dtype=torch.float64)
    assert torch.allclose(found, expected, rtol=1e-12)
    pairs = zip(*(torch.autograd.grad((each * weights).sum(), inputs) for each in (found, expected)), strict=True)
    assert all(torch.allclose(*pair, rtol=1e-10) for pair in pairs)


@pytest.mark.parametrize("kind", ["l1", "l2", "moduli"])
def test_where_both_are_equal_nothing_pulls(kind):
    point = torch.ones(1, 4, requires_grad=True)
    found = distances(kind, point, torch.ones(3, 4))
    found.sum().backward()
    assert not found.any() and not point.grad.any()


class Held(TorchDispatchMode):
    """Counts the bytes of the tensors that operations make, while they live; `most` at once."""

    def __init__(self):
        super().__init__()
        self.bytes = self.most = 0
        self._known = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, list | tuple) else [result]:
            if isinstance(tensor, torch.Tensor):
                self._count(tensor.untyped_storage())
        return result

    def _count(self, storage):
        key, size = storage._cdata, storage.nbytes()
        if key not in self._known:
            self._known.add(key)
            self.bytes += size
            self.most = max(self.most, self.bytes)
            weakref.finalize(storage, self._free, key, size)

    def _free(self, key, size):
        self._known.discard(key)
        self.bytes -= size


@pytest.mark.slow
def test_what_is_held_is_some_tiles():
    queries, candidates = torch.randn(2000, 64, requires_grad=True), torch.randn(600, 64)
    for kind in ("l1", "l2", "moduli"):
        gc.collect()
        with Held() as held:
            distances(kind, queries, candidates).sum().backward()
        scores = 2000 * 600 * 4
        assert TILE_BYTES <= held.most <= TILES[kind] * TILE_BYTES + 4 * scores, kind
