"""A tile of scores before, between and after its two matrix products, as kernels that Python calls.

`lanes` runs whole batches and has these functions in it. They are called one by one where a library makes the products
that kernels cannot call.
"""

from marius_oac.kernels.cpu import edges
from marius_oac.kernels.cpu.jit import float_compiled, float_inlined
from marius_oac.kernels.cpu.losses import differentiate


@float_inlined
def differentiate_scores(form, loss, scores, targets, negatives, positives, losses):
    """Turns the scores of a tile's edges, [R, K], and their `positives`, [R], into gradients; see `losses`.

    `targets` [R] are the edges' own ends and `negatives` [K] the candidates, if they are sampled, in local indices.
    """
    if form.sampled:
        edges.leave_out_targets(scores, targets, negatives)
    else:
        edges.take_targets(scores, targets, positives)
    differentiate(loss, scores, positives, losses)
    if not form.sampled:
        edges.put_targets(scores, targets, positives)


@float_compiled
def open_tile(form, rows, batch_edges, work, s, start, stop):
    """See `edges.open_tile`."""
    edges.open_tile(form, rows, batch_edges, work, s, start, stop)


@float_compiled
def turn_tile(form, loss, scores, targets, negatives, positives, losses):
    """See `differentiate_scores`."""
    differentiate_scores(form, loss, scores, targets, negatives, positives, losses)


@float_compiled
def close_tile(form, rows, batch_edges, work, s, start, stop):
    """See `edges.close_tile`."""
    edges.close_tile(form, rows, batch_edges, work, s, start, stop)


@float_compiled
def invert(first_keys, second_keys, third_keys, first, places):
    """See `edges.invert`."""
    edges.invert(first_keys, second_keys, third_keys, first, places)
