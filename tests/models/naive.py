"""The models by their formulas, in loops over Python and NumPy scalars (float64): the oracle of the tests."""

import math

import numpy as np

HEAD, TAIL = 0, 1


def complex_of(x):
    half = len(x) // 2
    return x[:half] + 1j * x[half:]


def floats_of(z):
    return np.concatenate((z.real, z.imag))


def query(decoder, anchor, relation, side):
    if decoder == "dot":
        return anchor
    if decoder == "distmult":
        return anchor * relation
    if decoder == "transe":
        return anchor + relation if side == TAIL else anchor - relation
    z = complex_of(relation) if decoder == "complex" else np.exp(1j * relation)
    return floats_of(complex_of(anchor) * (z if side == TAIL else z.conj()))


def similarity(decoder, norm, q, candidate):
    if decoder == "transe":
        return -float((abs(q - candidate) ** norm).sum() ** (1 / norm))
    if decoder == "rotate":
        return -float(sum(abs(z) for z in complex_of(q) - complex_of(candidate)))
    return float(sum(x * y for x, y in zip(q, candidate, strict=True)))


def softplus(x):
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


def edge_loss(kind, margin, temperature, positive, negatives, count):
    if kind == "softmax":
        top = max([positive, *negatives])
        return top + math.log(sum(math.exp(x - top) for x in [positive, *negatives])) - positive
    if kind == "logistic":
        return softplus(-positive) + sum(softplus(x) for x in negatives) / count
    if kind == "margin":
        return sum(max(0.0, margin - positive + x) for x in negatives) / count
    weights = [math.exp(temperature * (x - max(negatives))) for x in negatives]
    others = sum(w / sum(weights) * softplus(x + margin) for w, x in zip(weights, negatives, strict=True))
    return softplus(-(positive + margin)) + others


def penalty(kind, decoder, row):
    if kind == "l2":
        return float(sum(x * x for x in row))
    return float(sum(abs(z) ** 3 for z in (complex_of(row) if decoder == "complex" else row)))


def chunk_of(offsets, edge):
    return next(c for c in range(len(offsets) - 1) if offsets[c] <= edge < offsets[c + 1])


def batch_loss(config, values, relations, data):
    """The loss of a batch: values [n, D], relations [m, Dr], the data of an edge planner."""
    model, training = config.model, config.training
    sides = [TAIL] if model.reciprocal else [HEAD, TAIL]
    total, size = 0.0, len(data.heads)
    for i in range(size):
        head, tail = data.heads[i], data.tails[i]
        relation = None if relations is None else relations[data.relations[i]]
        for s, side in enumerate(sides):
            anchor, target = (head, tail) if side == TAIL else (tail, head)
            q = query(model.decoder, values[anchor], relation, side)
            if training.negatives.all:
                drawn, count = range(len(values)), max(len(values) - 1, 1)
            else:
                drawn = data.negatives[s][chunk_of(data.chunk_offsets, i)]
                count = len(drawn)
            candidates = [k for k in drawn if k != target]
            positive = similarity(model.decoder, model.norm, q, values[target])
            negatives = [similarity(model.decoder, model.norm, q, values[k]) for k in candidates]
            loss = training.loss
            total += edge_loss(loss.kind, loss.margin, loss.temperature, positive, negatives, count) / (
                size * len(sides)
            )
        if training.regularization.kind != "none":
            factors = [values[head], values[tail]] + ([] if relation is None else [relation])
            each = sum(penalty(training.regularization.kind, model.decoder, row) for row in factors)
            total += training.regularization.weight / size * each
    return total


def optimize(config, rows, gradients, step):
    """The row optimizers on rows [n, D + state], step from 1; returns the new rows."""
    rows, (count, width) = np.array(rows, np.float64), gradients.shape
    for i in range(count):
        for j in range(width):
            g, rate, epsilon = gradients[i, j], config.learning_rate, config.epsilon
            if config.kind == "sgd":
                rows[i, j] -= rate * g
            elif config.kind == "adagrad":
                rows[i, width + j] += g * g
                rows[i, j] -= rate * g / (math.sqrt(rows[i, width + j]) + epsilon)
            elif config.kind == "rowwise_adagrad":
                if j == 0:
                    rows[i, width] += sum(x * x for x in gradients[i]) / width
                rows[i, j] -= rate * g / (math.sqrt(rows[i, width]) + epsilon)
            else:
                m = rows[i, width + j] = config.beta1 * rows[i, width + j] + (1 - config.beta1) * g
                v = rows[i, 2 * width + j] = config.beta2 * rows[i, 2 * width + j] + (1 - config.beta2) * g * g
                m, v = m / (1 - config.beta1**step), v / (1 - config.beta2**step)
                rows[i, j] -= rate * m / (math.sqrt(v) + epsilon)
    return rows
