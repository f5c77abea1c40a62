"""Graph encoders by their papers' formulas, in loops over Python floats: the oracle of the tests.

A block is (offsets, sources, num_inputs), lists; values are lists of lists.
"""

import math
import random


def draw_block(seed, outputs, extra_inputs, most_edges):
    """Outputs of 0 to `most_edges` edges, repeated ones and loops among them."""
    generator = random.Random(seed)
    inputs = outputs + extra_inputs
    offsets, sources = [0], []
    for _ in range(outputs):
        sources += [generator.randrange(inputs) for _ in range(generator.randint(0, most_edges))]
        offsets.append(len(sources))
    return offsets, sources, inputs


def draw_blocks(seed, layers, outputs, extra_inputs, most_edges):
    """Blocks of an encoder, from the outermost to the innermost."""
    blocks = []
    for number in range(layers):
        blocks.insert(0, draw_block(seed + number, outputs, extra_inputs, most_edges))
        outputs = blocks[0][2]
    return blocks


def neighbourhoods(block):
    offsets, sources, _ = block
    return [sources[first:last] for first, last in zip(offsets[:-1], offsets[1:], strict=True)]


def product(matrix, vector):
    return [sum(w * x for w, x in zip(row, vector, strict=True)) for row in matrix]


def mean(vectors, width):
    return [sum(vector[j] for vector in vectors) / len(vectors) if vectors else 0.0 for j in range(width)]


def added(*vectors):
    return [sum(numbers) for numbers in zip(*vectors, strict=True)]


def sage(aggregator, own, neighbours, bias, values, block):
    """Hamilton et al. 2017, Algorithm 1, lines 4 and 5, where W is [own | neighbours]; `gcn`: equation 2."""
    width, results = len(values[0]), []
    for node, sources in enumerate(neighbourhoods(block)):
        around = [values[source] for source in sources]
        if aggregator == "gcn":
            results.append(added(product(neighbours, mean([values[node], *around], width)), bias))
            continue
        together = values[node] + mean(around, width)
        matrix = [left + right for left, right in zip(own, neighbours, strict=True)]
        results.append(added(product(matrix, together), bias))
    return results


def leaky(x):
    return x if x > 0 else 0.2 * x


def gat(matrix, source, destination, bias, merge, attend_to_self, values, block):
    """Velickovic et al. 2018, equations 1 to 6; a^T = [destination | source], one for each head."""
    heads, width, results = len(source), len(source[0]), []
    for node, sources in enumerate(neighbourhoods(block)):
        around = [node, *sources] if attend_to_self else sources
        found = []
        for head in range(heads):
            own = matrix[head * width : (head + 1) * width]
            projected = [product(own, values[j]) for j in around]
            a = destination[head] + source[head]
            here = product(own, values[node])
            e = [leaky(sum(x * y for x, y in zip(a, here + there, strict=True))) for there in projected]
            top = max(e, default=0.0)
            alpha = [math.exp(x - top) / sum(math.exp(y - top) for y in e) for x in e]
            sums = [sum(w * there[j] for w, there in zip(alpha, projected, strict=True)) for j in range(width)]
            found.append(sums)
        if merge == "concat":
            results.append(added([x for sums in found for x in sums], bias))
        else:
            results.append(added(mean(found, width), bias))
    return results


def relu(x):
    return max(x, 0.0)


def elu(x):
    return x if x > 0 else math.exp(x) - 1
