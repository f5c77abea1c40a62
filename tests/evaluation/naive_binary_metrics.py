"""Metrics of predictions as one would define them, with fractions and pairs: the oracle of `ClickMetrics`."""

import math
from fractions import Fraction


def auc(labels, probabilities) -> Fraction:
    """Of all pairs of a positive and a negative example, the share that is in order; ties count one half."""
    positive = [Fraction(float(p)) for y, p in zip(labels, probabilities, strict=True) if y == 1]
    negative = [Fraction(float(p)) for y, p in zip(labels, probabilities, strict=True) if y == 0]
    wins = sum(Fraction((p > q) * 2 + (p == q), 2) for p in positive for q in negative)
    return Fraction(wins, len(positive) * len(negative))


def log_loss(labels, probabilities) -> float:
    clipped = [min(max(float(p), 2.0**-24), 1 - 2.0**-24) for p in probabilities]
    return math.fsum(-math.log(p if y else 1 - p) for y, p in zip(labels, clipped, strict=True)) / len(labels)


def normalized_entropy(labels, probabilities) -> float:
    mean = [sum(map(float, labels)) / len(labels)] * len(labels)
    return log_loss(labels, probabilities) / log_loss(labels, mean)


def calibration(labels, probabilities) -> Fraction:
    return sum(Fraction(float(p)) for p in probabilities) / sum(Fraction(float(y)) for y in labels)
