"""What pooling at the shards means, in lists and dicts: no arrays, nothing that is shared."""


def answered(values: list[list[float]], singles: int, sums: list[list[int]]) -> list[list[float]]:
    """What a node sends that has these values by number of key: of single keys, then sums."""
    return [values[number] for number in range(singles)] + [
        [sum(column) for column in zip(*(values[number] for number in each), strict=True)] for each in sums
    ]


def spread(gradients: list[list[float]], keys: int, singles: int, sums: list[list[int]]) -> list[list[float]]:
    """The gradient by each key, of those by what was sent."""
    total = [[0.0] * len(gradients[0]) for _ in range(keys)] if gradients else [[] for _ in range(keys)]
    for gradient, numbers in zip(gradients, [[number] for number in range(singles)] + sums, strict=True):
        for number in numbers:
            total[number] = [before + new for before, new in zip(total[number], gradient, strict=True)]
    return total


def sums_of(index: list[int], offsets: list[int]) -> list[list[int]]:
    return [index[first:last] for first, last in zip(offsets[:-1], offsets[1:], strict=True)]


def fits(keys: int, singles: list[int], index: list[int], offsets: list[int]) -> bool:
    """Whether these are the sums of a pull of so many keys."""
    if len(singles) != 1 or not 0 <= singles[0] <= keys or not offsets or offsets[0] != 0 or offsets[-1] != len(index):
        return False
    if any(first >= last for first, last in zip(offsets[:-1], offsets[1:], strict=True)):
        return False
    return all(0 <= number < keys for number in index) and set(range(singles[0], keys)) <= set(index)
