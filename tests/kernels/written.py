"""Sums of every kernel that has one, on made-up numbers: `python -m tests.kernels.written` prints their digests."""

import hashlib
import json
from functools import partial

import numpy as np

from marius_oac.kernels.cpu import bags, edges, losses, messages, own_scores, tiles
from marius_oac.kernels.cpu.decoders import COMPLEX_PRODUCT, INNER, L1, L2, MODULI
from marius_oac.kernels.cpu.jit import float_compiled
from marius_oac.kernels.cpu.row_updates import ROWWISE_ADAGRAD, Rule

SIZES = 500, 400, 78, 1
"""Negatives K, and dimensions D: the usual ones, and such as fill no vector."""


def numbers(*shape, stream=1):
    """float32 in [-4, 4), from integers alone: the same with every library."""
    count = np.arange(np.prod(shape), dtype=np.uint64)
    mixed = (count * np.uint64(0x9E3779B97F4A7C15) + np.uint64(stream)) * np.uint64(0xBF58476D1CE4E5B9)
    return ((mixed >> np.uint64(40)).astype(np.float32) / np.float32(1 << 21) - np.float32(4)).reshape(shape)


@float_compiled
def penalise(form, values, totals, gradients):
    """The penalties of rows, float64 [n], and their gradients."""
    for i in range(values.shape[0]):
        totals[i] = edges._add_penalty(form, 3, values[i], gradients[i])


def of_loss(code, count):
    scores, positives, found = numbers(40, count), numbers(40, stream=2), np.zeros(40)
    form = edges.Form(COMPLEX_PRODUCT, L2, edges.NO_PENALTY, False, True, np.float32(0))
    rule = losses.LossRule(code, *map(np.float32, (0.01, 1 / count, 0.5, 1.5)))
    nobody = np.full(40, -1)
    tiles.turn_tile(form, rule, scores, nobody, np.arange(count), positives, found)
    return scores, positives, found


def of_similarity(kind, dimension):
    queries, vectors, scores = numbers(40, dimension), numbers(9, dimension, stream=3), np.zeros((40, 9), np.float32)
    own_scores.score_own(kind, queries, vectors, np.tile(np.arange(9), (40, 1)), scores)
    return (scores,)


def of_penalty(kind, dimension):
    values, totals, gradients = numbers(40, dimension), np.zeros(40), np.zeros((40, dimension), np.float32)
    form = edges.Form(COMPLEX_PRODUCT, L2, kind, False, True, np.float32(0.003))
    penalise(form, values, totals, gradients)
    return totals, gradients


def of_rows(dimension):
    rows, penalties = np.abs(numbers(40, dimension + 1)), np.zeros(40)
    one = np.float32(1)
    rule = Rule(ROWWISE_ADAGRAD, np.float32(0.1), np.float32(1e-8), one, one, one, one)
    bags.update(rule, np.float32(0.01), 0, 40, numbers(40, dimension, stream=4), rows, penalties)
    return rows, penalties


def of_edges(width):
    rows, offsets, picks = numbers(40, 2 * width), np.array([0, 7, 40]), np.arange(40)[::-1].copy()
    products, weights = np.zeros((40, 2), np.float32), np.zeros((40, 2), np.float32)
    messages.dots(rows, numbers(2, 2 * width, stream=5), offsets, picks, 0, 2, products)
    messages.attend(products, numbers(2, 2), np.float32(0.2), offsets, picks, 0, 2, weights)
    return products, weights


def found():
    """The arrays of each kernel, by its name, of every size."""
    cases = {}

    def add(name, make, sizes=SIZES):
        cases[name] = [each for size in sizes for each in make(size)]

    for code, name in enumerate(("softmax", "logistic", "margin", "self-adversarial")):
        add(name, partial(of_loss, code))
    for kind, name in ((INNER, "inner product"), (L1, "L1"), (L2, "L2"), (MODULI, "moduli")):
        add(name, partial(of_similarity, kind), SIZES[:-1] if kind == MODULI else SIZES)
    for kind, name in ((edges.SQUARES, "squares"), (edges.CUBES, "cubes"), (edges.CUBED_MODULI, "cubed moduli")):
        add(name, partial(of_penalty, kind), SIZES[:-1] if kind == edges.CUBED_MODULI else SIZES)
    add("rows", of_rows)
    add("edges", of_edges)
    return cases


def digests():
    """The first digits of each kernel's SHA-256."""
    return {
        name: hashlib.sha256(b"".join(each.tobytes() for each in arrays)).hexdigest()[:16]
        for name, arrays in found().items()
    }


if __name__ == "__main__":
    print(json.dumps(digests()))
