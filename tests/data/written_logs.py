"""Small click logs that tests write and read."""

import gzip

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from marius_oac.config.ctr import LogConfig
from marius_oac.data.logs.columns import LogBlock
from marius_oac.data.logs.files import BlockReader, scan_files
from marius_oac.errors import InputError

HEADER = "label,x,c,b\n"
ROWS = "0,1.5,red,a|b\n1,2,,\n1,0.5,blue,c\n"


def config(**keys):
    default = {"numeric": ["x"], "categorical": ["c"], "multi_valued": ["b"]}
    return LogConfig(train="x", **(default | keys))


def write(path, content):
    data = content if isinstance(content, bytes) else content.encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return str(path)


def write_parquet(path, rows_per_group=1000, **columns):
    pq.write_table(pa.table(columns), path, row_group_size=rows_per_group)
    return str(path)


def read(path, schema, with_labels=True, block_rows=1000):
    files = scan_files([str(path)], schema, with_labels)
    with BlockReader(files, schema, with_labels) as reader:
        blocks = -(-files[0].rows // block_rows)
        return LogBlock.join([reader.block(0, number, block_rows) for number in range(blocks)])


def refused(path, schema, said, with_labels=True):
    """Scanning or reading says this, in one line that names the file."""
    with pytest.raises(InputError) as caught:
        read(path, schema, with_labels)
    assert said in str(caught.value), str(caught.value)
    where, _, line = caught.value.where.partition(f"{path}:")
    assert (where == str(path) or not where and line.isdigit()) and "\n" not in str(caught.value)
