"""Files of edges, of several makes, and the graphs that are prepared from them."""

import gzip
import json
import os
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from marius_oac.errors import InputError
from marius_oac.prepare.dgl.prepare import prepare_source
from marius_oac.prepare.prepare import PrepareRequest

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


def graph(out, **request):
    """The files of the graph, and what its manifest says of the sources."""
    prepare_source(PrepareRequest(out=out, **request))
    files = {each.name: each.read_bytes() for each in out.iterdir() if each.name != "graph.json"}
    sources = json.loads((out / "graph.json").read_text("utf-8"))["sources"]
    shutil.rmtree(out)
    return files, sources


def refused(out, source, **request):
    with pytest.raises(InputError) as error:
        prepare_source(PrepareRequest(out=out / "g", source=source, **request))
    assert not any(each == "g" or ".part" in each for each in os.listdir(out))
    return str(error.value).replace(f"{out}/", "")
