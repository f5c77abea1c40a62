"""Counts of better and equal candidates in blocks of scores, and columns of known answers; see `evaluation.ranks`."""

import numpy as np

from marius_oac.kernels.cpu.jit import compiled

BETTER, EQUAL, KNOWN_BETTER, KNOWN_EQUAL, NAN = range(5)
"""Rows of the counts of a block of queries, int64 [5, n]. The first four don't count the answer itself."""


@compiled
def count(scores, true, own_offsets, own_columns, known_offsets, known_columns, width, counts):
    for i in range(true.size):
        row, answer = scores[i, :width], true[i]
        better, equal, worse = 0, 0, 0
        for j in range(width):
            score = row[j]
            better += score > answer
            equal += score == answer
            worse += score < answer
        counts[NAN, i] += width - better - equal - worse + (answer != answer)
        for k in range(own_offsets[i], own_offsets[i + 1]):
            score = row[own_columns[k]]
            better -= score > answer
            equal -= score == answer
        for k in range(known_offsets[i], known_offsets[i + 1]):
            score = row[known_columns[k]]
            counts[KNOWN_BETTER, i] += score > answer
            counts[KNOWN_EQUAL, i] += score == answer
        counts[BETTER, i] += better
        counts[EQUAL, i] += equal


@compiled
def find_in_range(groups, own, starts, ids, queries, first, last, columns, offsets):
    """Counts the columns in `offsets`, and writes them to `columns` unless it is empty. `find_among` does the same."""
    total = 0
    for i in range(queries.size):
        query = queries[i]
        known = ids[starts[groups[query]] : starts[groups[query] + 1]]
        for k in range(np.searchsorted(known, first), np.searchsorted(known, last)):
            if known[k] != own[query]:
                if columns.size:
                    columns[total] = known[k] - first
                total += 1
        offsets[i + 1] = total


@compiled
def find_among(groups, own, starts, ids, queries, candidates, columns, offsets):
    total = 0
    for i in range(queries.size):
        query = queries[i]
        known = ids[starts[groups[query]] : starts[groups[query] + 1]]
        at = 0
        for j in range(candidates.size):
            candidate = candidates[j]
            if j == 0 or candidate != candidates[j - 1]:
                at += np.searchsorted(known[at:], candidate)
                if at == known.size:
                    break
            if known[at] == candidate and candidate != own[query]:
                if columns.size:
                    columns[total] = j
                total += 1
        offsets[i + 1] = total
