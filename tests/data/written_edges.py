"""Files of edges, of several makes."""

import gzip

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

NAMES = ("source", "relation", "target")


def written(path, kind, edges, header=False):
    """Writes rows of numbers, as one make of files."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "npy":
        np.save(path, np.array(edges, np.int64).reshape(-1, 3))
    elif kind == "parquet":
        columns = [pa.array([edge[at] for edge in edges], pa.int64()) for at in range(3)]
        pq.write_table(pa.table(dict(zip(NAMES, columns, strict=True))), path)
    else:
        lines = [",".join(NAMES)] * header + [",".join(map(str, edge)) for edge in edges]
        content = "".join(f"{line}\n" for line in lines).encode()
        path.write_bytes(gzip.compress(content) if kind == "csv.gz" else content)
    return path
