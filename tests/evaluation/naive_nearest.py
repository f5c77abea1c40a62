"""The most similar rows, one at a time, in plain Python."""

import math


def nearest(table, row, count):
    """[(row, similarity)] of a list of lists."""

    def length(vector):
        return math.sqrt(math.fsum(each * each for each in vector))

    def similarity(other):
        product = math.fsum(a * b for a, b in zip(table[row], other, strict=True))
        lengths = length(table[row]) * length(other)
        return product / lengths if lengths else 0.0

    found = [(number, similarity(other)) for number, other in enumerate(table) if number != row]
    return sorted(found, key=lambda pair: -pair[1])[:count]
