"""The newest values of rows, which replace older ones; see `pipeline.validation`."""

import numpy as np

from marius_oac.kernels.cpu.jit import compiled


@compiled
def replace_older(newer_rows, newer_values, newer_timestamp, rows, timestamps, values):
    # No branch tells which of the two lists goes on: it would be guessed wrongly for every other row.
    most = min(rows.size, newer_rows.size)  # within the loop `replaced` is less: it is at most i, and at most j
    places, sources = np.empty(most, np.int64), np.empty(most, np.int64)
    replaced, i, j = 0, 0, 0
    while i < rows.size and j < newer_rows.size:
        row, newer = rows[i], newer_rows[j]
        places[replaced], sources[replaced] = i, j
        replaced += (row == newer) & (timestamps[i] < newer_timestamp)
        i += row <= newer
        j += newer <= row
    for k in range(replaced):
        place, source = places[k], sources[k]
        for column in range(values.shape[1]):  # a slice would cost a reference count, and more than the copy
            values[place, column] = newer_values[source, column]
        timestamps[place] = newer_timestamp
    return replaced
