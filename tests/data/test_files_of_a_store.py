"""Edges in several files of an object store: as from files, each copied for as long as it is read."""

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from marius_oac.prepare import reading
from tests.data.written_edges import graph, refused


@pytest.fixture
def store():
    """Puts files into fsspec's store in memory."""
    MemoryFileSystem.store.clear()
    yield lambda name, content: fsspec.filesystem("memory").pipe(name, content)
    MemoryFileSystem.store.clear()


EDGES = [b"".join(b"a%d\tr\tb%d\n" % (i % 7, i % 11 + part) for i in range(50)) for part in range(3)]


def test_a_folder_and_a_pattern_of_a_store(store, tmp_path, monkeypatch):
    (tmp_path / "edges.tsv").write_bytes(b"".join(EDGES))
    for number, content in enumerate(EDGES):
        store(f"/bucket/edges/part-{number}.tsv", content)
    store("/bucket/edges/_SUCCESS", b"")
    store("/bucket/other/x.tsv", b"x\tr\ty\n")
    expected, copies = graph(tmp_path / "g", source=str(tmp_path / "edges.tsv"))[0], []

    def read_edges(file):
        copies.append(len(list(file.path.parent.iterdir())))
        return read(file)

    read = reading.read_edges
    monkeypatch.setattr(reading, "read_edges", read_edges)
    there = "memory://bucket/edges/"
    for source in (there, f"{there}*.tsv", [f"{there}part-{number}.tsv" for number in range(3)]):
        found, sources = graph(tmp_path / "g", source=source)
        assert found == expected and sources["all"] == source
    assert set(copies) == {1}, "one copy at a time"
    assert refused(tmp_path, f"{there}*.csv") == f"{there}*.csv: no file has such a name"
    assert refused(tmp_path, "memory://bucket/") == (
        "memory://bucket/: has a folder in it, edges: name the folders whose files are meant"
    )
    pattern = "memory://*/edges/"
    assert refused(tmp_path, pattern) == f"{pattern}: a pattern is understood behind the last / alone"
    assert refused(tmp_path, there[:-1]) == f"{there[:-1]}: is a folder: write it with a / at its end"
    (tmp_path / "two.tsv").write_bytes(EDGES[1] + EDGES[2])
    found, _ = graph(tmp_path / "g", source=f"{there}part-[12].tsv")
    assert found == graph(tmp_path / "g", source=tmp_path / "two.tsv")[0]
    assert refused(tmp_path, "memory://bucket/*") == "memory://bucket/*: edges is a folder, not a file"
    late = [there, "memory://bucket/none.tsv"]
    monkeypatch.setattr(reading, "read_edges", None)
    assert refused(tmp_path, late) == "memory://bucket/none.tsv: no such file", "before the others are read"


def test_a_folder_of_a_store_is_looked_at_anew(store, tmp_path):
    """Listings are kept in the process; an object of the folder's own name is no file of it."""
    store("/b/e/0.tsv", EDGES[0])
    system = fsspec.filesystem("memory")
    listed_now, known = system.ls, {}

    def ls(path, detail):
        found = known.setdefault(path, listed_now(path, detail=detail))
        return [{"name": f"{path}/", "type": "file", "size": 0}, *found]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MemoryFileSystem, "ls", lambda self, path, detail: ls(path, detail))
        patch.setattr(MemoryFileSystem, "invalidate_cache", lambda self, path=None: known.pop(path, None))
        first = graph(tmp_path / "g", source="memory://b/e/")[0]
        store("/b/e/1.tsv", EDGES[1])
        assert graph(tmp_path / "g", source="memory://b/e/")[0] != first
    store("/b/e/a#b.tsv", EDGES[1])
    assert refused(tmp_path, "memory://b/e/") == "memory://b/e/: no address has a name with # or ? or :: in it: a#b.tsv"


def test_one_file_of_a_store(store, tmp_path, monkeypatch, caplog):
    """What is found out about it is told by its address; the room that its graph needs is known when it is here."""
    store("/b/e.csv", b"source,target,weight\na,b,1\nc,d,2\n")
    rooms = []
    monkeypatch.setattr(reading, "check_room", lambda paths, out: rooms.append([each.name for each in paths]))
    graph(tmp_path / "g", source="memory://b/e.csv")
    assert rooms == [[], ["e.csv"]]
    assert "memory://b/e.csv: left out: 'weight' (--columns)" in caplog.text


def test_a_faulty_line_is_told_by_the_address_of_its_file(store, tmp_path):
    store("/b/e/0.tsv", EDGES[0])
    store("/b/e/1.tsv", b"a\tr\tb\na\tr\n")
    assert refused(tmp_path, "memory://b/e/") == "memory://b/e/1.tsv:2: 3 columns are expected, 2 found"
    store("/b/e/1.tsv", b"head\trelation\ttail\na\tr\tb\n")
    assert refused(tmp_path, "memory://b/e/") == (
        "memory://b/e/1.tsv:1: column names where memory://b/e/0.tsv has none, or an edge (--no-header)"
    )


def test_a_file_that_is_named_twice(store, tmp_path):
    store("/b/0.tsv", EDGES[0])
    assert refused(tmp_path, ["memory://b/0.tsv", "memory://b/*"]) == "memory://b/0.tsv: is named twice"
