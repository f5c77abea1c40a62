"""What partition orderings, sorted edges and their batches mean, in Python lists and sets."""

from tests.data import naive_batches as naive


def beta(partitions: int, buffer: int) -> list[set[int]]:
    """Buffer states: `buffer` - 1 partitions stay until they have met all that are not done, then they are done."""
    stay, elastic_worker = list(range(buffer - 1)), buffer - 1
    away = list(range(buffer, partitions))
    states = [{*stay, elastic_worker}]
    while away:
        passed = []
        for visitor in away:
            passed.append(elastic_worker)
            elastic_worker = visitor
            states.append({*stay, elastic_worker})
        for place in range(min(len(stay), len(passed))):
            stay[place] = passed.pop(0)
            states.append({*stay, elastic_worker})
        away = passed
    return states


def partition_of(node: int, num_nodes: int, partitions: int) -> int:
    return max(part for part in range(partitions) if part * num_nodes // partitions <= node)


def bucket_of(edge, num_nodes: int, partitions: int) -> tuple[int, int]:
    return partition_of(edge[0], num_nodes, partitions), partition_of(edge[-1], num_nodes, partitions)


def state_of(states: list[set[int]], bucket: tuple[int, int], partitions: int, key: int | None) -> int:
    """The first state that holds a bucket, or with a key one drawn."""
    holding = [s for s, held in enumerate(states) if held >= set(bucket)]
    return holding[0 if key is None else naive.integer(key, bucket[0] * partitions + bucket[1], len(holding))]


def epoch(config, number: int) -> tuple[list[set[int]], dict[tuple[int, int], int]]:
    """The buffer states of an epoch, and the state of each bucket."""
    ordering = config.training.ordering
    partitions, kind = ordering.partitions, ordering.kind
    key = naive.stream_key(config.seed, "ordering", number)
    shuffled = sorted(range(partitions), key=lambda part: naive.bits_at(key, part) >> 11)
    groups = (ordering.logical or 2 * partitions // ordering.buffer) if kind == "comet" else partitions
    size = partitions // groups
    states = [
        {shuffled[size * group + i] for group in held for i in range(size)}
        for held in beta(groups, ordering.buffer // size)
    ]
    key = naive.stream_key(config.seed, "bucket states", number) if kind == "comet" else None
    buckets = [(i, j) for i in range(partitions) for j in range(partitions)]
    return states, {bucket: state_of(states, bucket, partitions, key) for bucket in buckets}


def batches(edges, num_nodes: int, num_relations: int, config, number: int) -> list[tuple]:
    """All batches of an epoch: (state, examples in order, negatives [side][chunk][k]), all as original ids."""
    partitions = config.training.ordering.partitions
    states, chosen = epoch(config, number)
    every = sorted(edges, key=lambda edge: bucket_of(edge, num_nodes, partitions))
    found = []
    for s, held in enumerate(states):
        mine = [edge for edge in every if chosen[bucket_of(edge, num_nodes, partitions)] == s]
        examples = naive.examples(mine, num_relations, config.model.reciprocal)
        key = naive.stream_key(config.seed, "shuffle", number, s)
        count = -(-len(examples) // config.training.batch_size)
        among = [edge for edge in every if set(bucket_of(edge, num_nodes, partitions)) <= held]
        nodes = [node for node in range(num_nodes) if partition_of(node, num_nodes, partitions) in held]
        for batch in range(count):
            places = range(batch * len(examples) // count, (batch + 1) * len(examples) // count)
            drawn = [examples[naive.permuted(place, len(examples), key)] for place in places]
            negatives = _negatives(config, number, len(found), len(drawn), among, nodes)
            found.append((s, drawn, negatives))
    return found


def _negatives(config, number, batch, size, among, nodes) -> list[list[list[int]]]:
    settings, position = config.training.negatives, 0
    key = naive.stream_key(config.seed, "negatives", number, batch)
    sides = []
    for _ in range(1 if config.model.reciprocal else 2):
        chunks = []
        for _ in range(min(settings.chunks, size)):
            chunk = []
            for k in range(settings.count):
                if k < round(settings.count * settings.degree_fraction):
                    end = naive.integer(key, position, 2 * len(among))
                    chunk.append(among[end // 2][-1 if end % 2 else 0])
                else:
                    chunk.append(nodes[naive.integer(key, position, len(nodes))])
                position += 1
            chunks.append(chunk)
        sides.append(chunks)
    return sides


def fewest_swaps(partitions, buffer):
    """A lower bound for any order (OSDI 2021, section 4): a swap brings at most C - 1 new pairs together."""
    pairs = partitions * (partitions - 1) // 2 - buffer * (buffer - 1) // 2
    return -(-pairs // (buffer - 1))
