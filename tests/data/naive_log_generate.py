"""What an example of a generated click log is, in Python integers and floats, an example and a key at a time."""

import math

from tests.data.naive_batches import bits_at, mix, stream_key

LONGEST = {"tags": 5, "history": 20}


def unit(bits: int) -> float:
    return (bits >> 11) / 2**53


def zipf(uniform: float, size: int, skew: float) -> int:
    """The rank x - 1 below which a share `uniform` of the mass of x ** -skew over [1, size + 1) lies."""
    if abs(1 - skew) < 1e-9:
        return min(int((size + 1) ** uniform), size) - 1
    power = 1 - skew
    return min(int((uniform * ((size + 1) ** power - 1) + 1) ** (1 / power)), size) - 1


def key(spec, column: str, rank: int, day: int) -> int:
    """A signed integer of 64 bits."""
    born = unit(bits_at(stream_key(spec.seed, f"log ages {column}"), rank))
    generation = math.floor(day * spec.new_keys + born)
    bits = bits_at(stream_key(spec.seed, f"log keys {column}"), rank + (generation << 40))
    return bits - (1 << 64) if bits >> 63 else bits


def factors(spec, key: int, day: int) -> list[float]:
    bits = mix((key % (1 << 64)) ^ stream_key(spec.seed, "log factors"))
    angles = bits / 2**64, (bits >> 16) % (1 << 24) / 2**24
    speed = bits % (1 << 16) / 2**15 - 1

    def cosine(turns):
        """Of straight lines through cos(0) = 1 and cos(pi) = -1."""
        return 4 * abs(turns % 1 - 0.5) - 1

    turned = [int(angle * 2**24) / 2**24 + speed * day * spec.drift for angle in angles]
    return [cosine(turn + quarter) for turn in turned for quarter in (0, 0.25)]


def values(spec, name: str, size: int, column: str, day: int, i: int) -> list[int]:
    longest = LONGEST[name]
    length = int(unit(bits_at(stream_key(spec.seed, f"log {name} lengths", day), i)) * (longest + 1))
    draws = stream_key(spec.seed, f"log {name}", day)
    ranks = [zipf(unit(bits_at(draws, i * longest + k)), size, spec.skew) for k in range(length)]
    return [key(spec, column, rank, day) for rank in ranks]


def example(spec, day: int, i: int) -> dict:
    columns = range(spec.categorical)
    draws = stream_key(spec.seed, "log keys", day)
    uniforms = [unit(bits_at(draws, i * spec.categorical + c)) for c in columns]
    keys = [key(spec, f"c{c}", zipf(uniforms[c], spec.vocabulary_sizes[c], spec.skew), day) for c in columns]
    draws = stream_key(spec.seed, "log numbers", day)
    words = [bits_at(draws, i * spec.numeric + j) for j in range(spec.numeric)]
    numbers = [(sum(word >> s & 0xFFFF for s in (0, 16, 32, 48)) - 131070) * 3**0.5 / 65536 for word in words]
    tags = values(spec, "tags", 1000, "tags", day, i) if spec.lists else []
    history = values(spec, "history", spec.vocabulary_sizes[0], "c0", day, i) if spec.lists else []
    return {"keys": keys, "numbers": numbers, "tags": tags, "history": history,
            "logit": logit(spec, day, keys, numbers, tags, history)}  # fmt: skip


def logit(spec, day, keys, numbers, tags, history) -> float:
    """Without the bias."""

    def inner(x, y):
        return sum(a * b for a, b in zip(x, y, strict=True))

    found = [factors(spec, each, day) for each in keys]
    count = len(keys)
    total = sum(each[0] for each in found) * (3 / count) ** 0.5
    pairs = [inner(found[a], found[b]) for a in range(count) for b in range(a)]
    total += sum(pairs) * 0.7 / (max(1, len(pairs)) * 4 / 9) ** 0.5
    effect = 0.5 / (spec.numeric + 1) ** 0.5
    total += effect * sum(number * (-1) ** j for j, number in enumerate(numbers))
    total += effect * numbers[0] * numbers[1] if len(numbers) > 1 else 0
    if tags:
        mean = sum(factors(spec, each, day)[0] for each in tags) / len(tags)
        total += mean * 0.5 * 3  # the root of the mean length's inverse times the variance
    recency = ((1 - 0.49) * 9 / 4) ** 0.5
    for each in reversed(history):
        total += recency * inner(found[0], factors(spec, each, day))
        recency *= 0.7
    return total
