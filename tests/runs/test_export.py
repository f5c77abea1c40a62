"""What is exported is read back equal, with its names, by the formats' own libraries."""

import resource
import tracemalloc

import numpy as np
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import load_file

from marius_oac.errors import InputError
from marius_oac.runs import export as module
from marius_oac.runs.export import FORMATS, export

TABLES = {"entities": (1000, 6), "relations": (3, 4)}


def named(table):
    return lambda ids: [f"{table} ä{i}" for i in ids]


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("rows_at_once", [7, 1 << 16])
def test_formats_read_back_equal(tmp_path, monkeypatch, format, rows_at_once):
    monkeypatch.setattr(module, "_ROWS", rows_at_once)
    tables = {
        name: np.random.default_rng(0).standard_normal(shape).astype(np.float32) for name, shape in TABLES.items()
    }
    np.save(tmp_path / "mapped.npy", tables["entities"])
    given = tables | {"entities": np.load(tmp_path / "mapped.npy", mmap_mode="r")}
    export(given, {name: named(name) for name in tables}, format, tmp_path / "deep" / "out")
    out = tmp_path / "deep" / "out"
    for name, values in tables.items():
        table = pq.read_table(out / (f"{name}.parquet" if format == "parquet" else f"{name}.names.parquet"))
        assert table.column("name").to_pylist() == named(name)(range(len(values)))
        if format == "parquet":
            found = np.array(table.column("embedding").to_pylist(), np.float32)
        elif format == "npy":
            found = np.load(out / f"{name}.npy", mmap_mode="r", allow_pickle=False)
        else:
            content = (out / "embeddings.safetensors").read_bytes()
            assert int.from_bytes(content[:8], "little") % 8 == 0  # so that numbers lie where they can be mapped
            found = load_file(out / "embeddings.safetensors")[name]
        assert found.dtype == np.float32 and np.array_equal(found, values)
    assert sorted(path.name for path in (tmp_path / "deep").iterdir()) == ["out"]


@pytest.mark.parametrize("format", FORMATS)
def test_a_large_table_is_written_in_bounded_memory(tmp_path, format):
    np.lib.format.open_memmap(tmp_path / "values.npy", "w+", np.float32, (400_000, 16)).flush()
    values = np.load(tmp_path / "values.npy", mmap_mode="r")
    tracemalloc.start()
    export({"t": values}, {"t": lambda ids: ["x"] * len(ids)}, format, tmp_path / "out")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < values.nbytes // 2


@pytest.mark.parametrize("format", FORMATS)
def test_a_disk_that_is_full_is_named_and_nothing_is_left(tmp_path, format):
    """A file of more than 1 MiB can't be written here."""
    tables = {"t": np.random.default_rng(0).random((60_000, 16), np.float32)}
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limit[1]))
    try:
        with pytest.raises(InputError, match="out: can't be written: .*File too large"):
            export(tables, {"t": lambda ids: ["x"] * len(ids)}, format, tmp_path / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert not list(tmp_path.iterdir())


def test_bad_input_writes_nothing(tmp_path):
    tables = {"t": np.zeros((2, 2), np.float32)}
    with pytest.raises(InputError, match="format: one of safetensors, npy, parquet is needed, not 'csv'"):
        export(tables, {"t": named("t")}, "csv", tmp_path / "out")
    (tmp_path / "there").write_text("mine")
    with pytest.raises(InputError, match="there: exists already"):
        export(tables, {"t": named("t")}, "npy", tmp_path / "there")

    def broken(ids):
        raise InputError("no names")

    for format in FORMATS:
        with pytest.raises(InputError, match="no names"):
            export(tables, {"t": broken}, format, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["there"]
