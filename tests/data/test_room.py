"""What prepare says of the disk beforehand."""

import gzip
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from marius_oac.errors import InputError
from marius_oac.prepare import room
from marius_oac.prepare.prepare import PrepareRequest, prepare

LINES = [f"node{i}\trelation\tnode{i * 7 % 3000}\n" for i in range(40_000)]


@pytest.fixture
def free(monkeypatch):
    """Sets the free bytes of every disk."""
    return lambda size: monkeypatch.setattr(shutil, "disk_usage", lambda _: (1 << 50, 0, size))


def test_edges_are_counted_or_estimated(tmp_path):
    (tmp_path / "g.tsv").write_text("".join(LINES))
    with gzip.open(tmp_path / "g.tsv.gz", "wt") as file:
        file.write("".join(LINES))
    np.save(tmp_path / "g.npy", np.zeros((40_000, 3), np.int64))
    pq.write_table(pa.table({"head": np.zeros(40_000), "tail": np.zeros(40_000)}), tmp_path / "g.parquet")
    for name, least in (("g.npy", 40_000), ("g.parquet", 40_000), ("g.tsv", 20_000), ("g.tsv.gz", 0)):
        found = room.needed([tmp_path / name])
        assert found.likely == pytest.approx(40_000 * 24, rel=0.05)
        assert found.least == pytest.approx(least * 16, rel=0.05)
    both = room.needed([tmp_path / "g.npy", tmp_path / "g.parquet"])
    assert both == (80_000 * 16, 80_000 * 24)


def test_many_edges_need_hashes_and_room_for_names(tmp_path, monkeypatch):
    monkeypatch.setattr(room, "SORTED_EDGES", 1000)
    (tmp_path / "g.tsv").write_text("".join(LINES))
    size = (tmp_path / "g.tsv").stat().st_size
    assert room.needed([tmp_path / "g.tsv"]).likely == pytest.approx(40_000 * 28 + size, rel=0.05)


def test_what_can_not_be_read_needs_nothing(tmp_path):
    for name, content in (("a.npy", b"no"), ("a.parquet", b"no"), ("a.tsv.gz", b"no"), ("a.tsv", b"no")):
        (tmp_path / name).write_bytes(content)
        assert room.needed([tmp_path / name]) == (0, 0)
    assert room.needed([tmp_path / "missing.tsv"]) == (0, 0)


def test_a_disk_that_is_too_small_ends_it_at_once(tmp_path, free):
    np.save(tmp_path / "g.npy", np.zeros((100_000, 3), np.int64))
    free(1_599_999)
    with pytest.raises(InputError, match=r"deep/g: at least 1.6 MB of disk are needed meanwhile, 1.6 MB are free"):
        prepare(PrepareRequest(source=str(tmp_path / "g.npy"), out=tmp_path / "deep" / "g"))
    assert [path.name for path in tmp_path.iterdir()] == ["g.npy"]
    free(1_600_000)
    room.check_room([tmp_path / "g.npy"], tmp_path / "g")


def test_what_is_no_disk_is_not_too_small(tmp_path, monkeypatch):
    np.save(tmp_path / "g.npy", np.zeros((1000, 3), np.int64))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: (0, 0, 0))
    room.check_room([tmp_path / "g.npy"], tmp_path / "g")


@pytest.mark.parametrize(("left", "said"), [(1 << 40, False), (20_000, True)])
def test_much_is_said_in_one_line(tmp_path, free, caplog, left, said):
    np.save(tmp_path / "g.npy", np.zeros((1000, 3), np.int64))
    free(left)
    with caplog.at_level("INFO", "marius_oac"):
        room.check_room([tmp_path / "g.npy"], tmp_path / "g")
    assert [record.getMessage() for record in caplog.records] == (
        [f"{tmp_path}/g: about 0.0 MB of disk are needed meanwhile, 0.0 MB are free"] if said else []
    )
