"""The newest values of rows, which replace older ones; see `pipeline.validation`."""

from marius_oac.kernels.cpu.jit import compiled


@compiled
def replace_older(newer_rows, newer_values, newer_timestamp, rows, timestamps, values):
    replaced, i, j = 0, 0, 0
    while i < rows.size and j < newer_rows.size:
        if rows[i] < newer_rows[j]:
            i += 1
        elif rows[i] > newer_rows[j]:
            j += 1
        else:
            if timestamps[i] < newer_timestamp:
                for k in range(values.shape[1]):  # a slice would cost a reference count, and more than the copy
                    values[i, k] = newer_values[j, k]
                timestamps[i] = newer_timestamp
                replaced += 1
            i += 1
            j += 1
    return replaced
