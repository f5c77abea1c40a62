"""Kernels of the row optimizers: a row `value | state` is updated in place from the gradient of its value.

Formulas and sources are in `models.compute.row_optimizers`.
"""

from typing import NamedTuple

import numpy as np

from marius_oac.kernels.cpu.jit import float_compiled, float_inlined
from marius_oac.kernels.cpu.sums import dot

SGD, ADAGRAD, ROWWISE_ADAGRAD, ADAM, PASS_THROUGH = range(5)
_ONE = np.float32(1)


class Rule(NamedTuple):
    """One batch's update as the kernel needs it; the corrections are adam's, 1 elsewhere."""

    code: int
    rate: np.float32
    epsilon: np.float32
    beta1: np.float32
    beta2: np.float32
    first_correction: np.float32
    second_correction: np.float32


@float_inlined
def update_row(row, gradient, rule):
    """Updates `row` [D + state] from `gradient` [D]."""
    dimension = gradient.size
    if rule.code == PASS_THROUGH:
        for j in range(dimension):
            row[j] = gradient[j]
    elif rule.code == SGD:
        for j in range(dimension):
            row[j] -= rule.rate * gradient[j]
    elif rule.code == ADAGRAD:
        for j in range(dimension):
            total = row[dimension + j] + gradient[j] * gradient[j]
            row[dimension + j] = total
            row[j] -= rule.rate * gradient[j] / (np.sqrt(total) + rule.epsilon)
    elif rule.code == ROWWISE_ADAGRAD:
        total = row[dimension] + dot(gradient, gradient) / np.float32(dimension)
        row[dimension] = total
        rate = rule.rate / (np.sqrt(total) + rule.epsilon)
        for j in range(dimension):
            row[j] -= rate * gradient[j]
    else:
        for j in range(dimension):
            first = rule.beta1 * row[dimension + j] + (_ONE - rule.beta1) * gradient[j]
            second = rule.beta2 * row[2 * dimension + j] + (_ONE - rule.beta2) * gradient[j] * gradient[j]
            row[dimension + j] = first
            row[2 * dimension + j] = second
            scale = np.sqrt(second * rule.second_correction) + rule.epsilon
            row[j] -= rule.rate * (first * rule.first_correction) / scale


@float_compiled
def update_rows(rows, gradients, rule):
    """Updates rows float32 [n, D + S], values and state of S floats, by gradients float32 [n, D]."""
    for i in range(rows.shape[0]):
        update_row(rows[i], gradients[i], rule)
