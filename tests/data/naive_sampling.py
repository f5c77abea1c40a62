"""What neighbourhoods and samples of them mean, in Python integers, lists and sets."""

from tests.data.naive_batches import WORD, bits_at, integer, mix, stream_key


def entries(edges: list[list[int]], num_nodes: int, num_relations: int, direction: str) -> list[list[tuple]]:
    """For each node its entries: neighbour, relation where there are any, number of the edge."""
    found: list[list[tuple]] = [[] for _ in range(num_nodes)]
    for number, (head, *relation, tail) in enumerate(edges):
        if direction != "out":
            found[tail].append((head, *relation, number))
        if direction != "in":
            shift = num_relations if direction == "both" else 0
            found[head].append((tail, *(each + shift for each in relation), number))
    return found


def fold(key: int, counter: int) -> int:
    return mix(bits_at(key, counter) ^ WORD)


def draw(key: int, node: int, own: list[tuple], fanout: int, excluded: set[int]) -> list[tuple]:
    kept = [entry for entry in own if entry[-1] not in excluded]
    if fanout == -1 or len(own) <= fanout:
        return kept
    node_key = fold(key, node)
    if len(own) > 2 * fanout:
        chosen: list[tuple] = []
        for number in range(4 * fanout + 16):
            entry = own[integer(node_key, number, len(own))]
            # by identity: several edges may connect the same nodes
            if entry[-1] not in excluded and all(entry is not other for other in chosen):
                chosen.append(entry)
            if len(chosen) == fanout:
                return chosen
    node_key = fold(node_key, 0)
    reservoir = kept[:fanout]
    for seen in range(fanout, len(kept)):
        place = integer(node_key, seen, seen + 1)
        if place < fanout:
            reservoir[place] = kept[seen]
    return reservoir


def blocks(every, fanouts, seed, seeds, epoch, batch, excluded):
    """Layers as (input nodes, output nodes, entries of each output node), the one next to the rows first."""
    key, nodes, layers = stream_key(seed, "neighbors", epoch, batch), list(seeds), []
    for layer in reversed(range(len(fanouts))):
        drawn = [draw(fold(key, layer), node, every[node], fanouts[layer], excluded) for node in nodes]
        new = {entry[0] for own in drawn for entry in own} - set(nodes)
        layers.insert(0, (nodes + sorted(new), nodes, drawn))
        nodes = nodes + sorted(new)
    return layers
