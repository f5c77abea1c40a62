"""What the streams, the shuffle, the batches and the filters mean, in Python integers, dicts and sets."""

import hashlib

WORD = (1 << 64) - 1
ROUNDS = 6


def mix(state: int) -> int:
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & WORD
    return state ^ (state >> 31)


def bits_at(key: int, position: int) -> int:
    return mix((key + (position + 1) * 0x9E3779B97F4A7C15) & WORD)


def stream_key(seed: int, name: str, *counters: int) -> int:
    key = int.from_bytes(hashlib.sha256(f"{seed} {name}".encode()).digest()[:8], "little")
    for counter in counters:
        key = mix(bits_at(key, counter) ^ WORD)
    return key


def integer(key: int, position: int, bound: int) -> int:
    return (bits_at(key, position) * bound) >> 64


def permuted(position: int, size: int, key: int) -> int:
    bits = (size - 1).bit_length()
    low_bits = (bits + 1) // 2
    x = position
    while True:
        low, high = x % (1 << low_bits), x >> low_bits
        for i in range(0, ROUNDS, 2):
            high ^= mix(bits_at(key, i) ^ low) % (1 << (bits // 2))
            low ^= mix(bits_at(key, i + 1) ^ high) % (1 << low_bits)
        x = (high << low_bits) + low
        if x < size:
            return x


def examples(edges: list[list[int]], num_relations: int, reciprocal: bool) -> list[tuple]:
    """All training examples (head, relation or None, tail), in the order that the shuffle numbers."""
    forward = [(edge[0], edge[1] if len(edge) == 3 else None, edge[-1]) for edge in edges]
    return forward + [(t, r + num_relations, h) for h, r, t in forward] if reciprocal else forward


def batch(edges, num_nodes, num_relations, config, batch_index) -> tuple[list[tuple], list[list[list[int]]]]:
    """The examples of a batch in order, and its negatives [side][chunk][k], all as original ids."""
    every = examples(edges, num_relations, config.model.reciprocal)
    size = config.training.batch_size
    epoch, index = divmod(batch_index, -(-len(every) // size))
    shuffle = stream_key(config.seed, "shuffle", epoch)
    places = range(index * size, min((index + 1) * size, len(every)))
    drawn = [every[permuted(place, len(every), shuffle)] for place in places]
    key, position = stream_key(config.seed, "negatives", epoch, index), 0
    settings = config.training.negatives
    by_degree = round(settings.count * settings.degree_fraction)
    negatives = []
    for _ in range(1 if config.model.reciprocal else 2):
        chunks = []
        for _ in range(min(settings.chunks, len(drawn))):
            chunk = []
            for k in range(settings.count):
                if k < by_degree:
                    end = integer(key, position, 2 * len(edges))
                    chunk.append(edges[end // 2][-1 if end % 2 else 0])
                else:
                    chunk.append(integer(key, position, num_nodes))
                position += 1
            chunks.append(chunk)
        negatives.append(chunks)
    return drawn, negatives


def other_answers(edge_sets, queries, related: bool, tails: bool) -> list[list[int]]:
    """For each query the sorted other true tails (or heads)."""

    def split(edge):
        given, asked = (edge[0], edge[-1]) if tails else (edge[-1], edge[0])
        return (given, edge[1] if related else None), asked

    known: dict[tuple, set[int]] = {}
    for edges in edge_sets:
        for edge in edges:
            pair, answer = split(edge)
            known.setdefault(pair, set()).add(answer)
    return [sorted(known.get(pair, set()) - {own}) for pair, own in map(split, queries)]
