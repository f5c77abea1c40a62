"""Features of nodes against a dictionary; what is wrong with a file; memory."""

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marius_oac.data.graphs import features as node_features
from marius_oac.data.graphs import node_lookup as node_names
from marius_oac.data.graphs.features import open_features
from marius_oac.data.graphs.node_lookup import NodeLookup
from marius_oac.errors import InputError
from marius_oac.runs.export import export
from tests.data.named_graphs import NAMES, named_graph


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return named_graph(tmp_path_factory.mktemp("named"))


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(node_features, "CHUNK_BYTES", 100)
    monkeypatch.setattr(node_features, "BATCH_ROWS", 5)
    monkeypatch.setattr(node_names, "STREAM_ROWS", 3)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "run" / "features"


def by_name(graph, features):
    return dict(zip(graph.node_names(range(graph.num_nodes)), features, strict=True))


def random_features(width=3, names=NAMES, seed=0):
    return dict(zip(names, np.random.default_rng(seed).standard_normal((len(names), width)), strict=True))


def write(path, rows, kind=None, column="features", **options):
    """rows: {name: features} or [(name, features)]"""
    rows = list(rows.items() if isinstance(rows, dict) else rows)
    lists = pa.array([None if values is None else list(values) for _, values in rows], kind or pa.list_(pa.float32()))
    pq.write_table(pa.table({"name": pa.array([name for name, _ in rows]), column: lists}), path, **options)
    return path


unknown = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=3)


@settings(deadline=None, max_examples=25)
@given(names=st.lists(st.sampled_from(NAMES) | unknown, max_size=60), cuts=st.lists(st.integers(0, 60), max_size=4))
def test_names_are_looked_up_exactly(graph, tmp_path_factory, names, cuts):
    with NodeLookup(graph, tmp_path_factory.mktemp("lookup")) as lookup:
        for start, end in zip([0, *sorted(cuts)], [*sorted(cuts), 60], strict=True):
            lookup.add(pa.array(names[start:end], pa.string()))
        ids = np.full(lookup.rows, 7)
        lookup.find(ids)
    numbers = {name: i for i, name in enumerate(graph.node_names(range(graph.num_nodes)))}
    assert ids.tolist() == [numbers.get(name, -1) for name in names]


KINDS = [make(value) for value in (pa.float32(), pa.float64())
         for make in (pa.list_, pa.large_list, lambda value: pa.list_(value, 3))]  # fmt: skip


@settings(deadline=None, max_examples=25)
@given(
    order=st.permutations([*NAMES, "unknown", "other"]),
    kind=st.sampled_from(KINDS),
    column=st.sampled_from(["features", "embedding"]),
    group=st.integers(1, 40),
)
def test_every_row_finds_its_node(graph, tmp_path_factory, order, kind, column, group):
    folder, rows = tmp_path_factory.mktemp("features"), random_features(names=order)
    path = write(folder / "a.parquet", rows, kind, column, row_group_size=group)
    found = open_features(path, graph, folder / "laid")
    assert isinstance(found, np.memmap) and not found.flags.writeable
    assert found.dtype == np.float32 and found.shape == (len(NAMES), 3)
    for name, values in by_name(graph, found).items():
        assert np.array_equal(values, rows[name].astype(np.float32))
    assert sorted(file.name for file in (folder / "laid").iterdir()) == ["features.json", "features.npy"]


def test_what_was_exported_comes_back(graph, tmp_path, folder):
    table = np.random.default_rng(1).standard_normal((graph.num_nodes, 7)).astype(np.float32)
    export({"nodes": table}, {"nodes": graph.node_names}, "parquet", tmp_path / "out")
    assert np.array_equal(open_features(tmp_path / "out" / "nodes.parquet", graph, folder), table)


@pytest.mark.parametrize("names", [pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())])
def test_kinds_of_names(graph, tmp_path, folder, names):
    rows = random_features()
    table = pq.read_table(write(tmp_path / "a.parquet", rows))
    pq.write_table(table.set_column(0, "name", pa.array(NAMES).cast(names)), tmp_path / "a.parquet")
    for name, values in by_name(graph, open_features(tmp_path / "a.parquet", graph, folder)).items():
        assert np.array_equal(values, rows[name].astype(np.float32))


def test_integers_are_names_too(tmp_path, folder):
    graph = named_graph(tmp_path / "numbers", ["0", "7", "12"])
    values = pa.array([[12.0], [0.0], [7.0]])
    pq.write_table(pa.table({"name": pa.array([12, 0, 7]), "features": values}), tmp_path / "a.parquet")
    found = by_name(graph, open_features(tmp_path / "a.parquet", graph, folder))
    assert {name: values.tolist() for name, values in found.items()} == {"0": [0.0], "7": [7.0], "12": [12.0]}


def test_rows_of_no_node_are_left_out_aloud(graph, tmp_path, folder, capsys):
    rows = random_features(names=[*NAMES[:9], "x", *NAMES[9:], "y", "z"])
    open_features(write(tmp_path / "a.parquet", rows), graph, folder)
    said = f"note: {tmp_path}/a.parquet: 3 rows are left out, the graph has no such nodes: 'x' for one\n"
    assert capsys.readouterr().err == said
    open_features(tmp_path / "a.parquet", graph, folder)
    assert capsys.readouterr().err == ""


def test_they_are_laid_out_once_and_again_if_need_be(graph, tmp_path, folder, capsys):
    path = write(tmp_path / "a.parquet", random_features())
    first = np.array(open_features(path, graph, folder))
    inode = (folder / "features.npy").stat().st_ino
    assert np.array_equal(open_features(path, graph, folder), first)
    assert (folder / "features.npy").stat().st_ino == inode and capsys.readouterr().err == ""

    write(path, random_features(seed=1))
    second = np.array(open_features(path, graph, folder))
    assert not np.array_equal(second, first)
    assert capsys.readouterr().err.endswith("or file, or is of another version; the features are laid out again\n")
    with open(folder / "features.npy", "r+b") as file:
        file.seek(200)
        file.write(b"\x55")
    assert np.array_equal(open_features(path, graph, folder), second)
    assert "features.npy is damaged; the features are laid out again" in capsys.readouterr().err

    other = named_graph(tmp_path / "other", NAMES[::2])
    assert len(open_features(path, other, folder)) == len(NAMES[::2])
    assert "belongs to another graph" in capsys.readouterr().err


def changed(at, values):
    return [(name, values if i == at else row) for i, (name, row) in enumerate(random_features().items())]


GOOD = list(random_features().items())


@pytest.mark.parametrize(
    "rows, message",
    [
        (
            GOOD[:4] + GOOD[5:],
            rf"a.parquet: 1 of the graph's {len(NAMES)} nodes have no features: '{NAMES[4]}' for one",
        ),
        (
            GOOD + [("unknown", [1, 2, 3])] + [GOOD[6]],
            rf"row {len(NAMES) + 2}: node 'g' has features already, in row 7",
        ),
        ([*GOOD[:3], GOOD[1], *GOOD[3:]], "row 4: node 'b' has features already, in row 2"),
        (changed(6, [1, 2]), r"a.parquet: row 7 has 2 features, those before have 3"),
        (changed(6, []), "row 7 has 0 features, those before have 3"),
        (changed(0, []), "row 1 has no features"),
        (changed(0, None), "row 1 has no features"),
        (changed(11, None), "row 12 has no features"),
        (changed(11, [1, None, 2]), r"row 12 has no value for feature 1 \(counted from 0\)"),
        (changed(11, [1, 2, np.nan]), r"row 12 has nan for feature 2 \(counted from 0\): a finite 32-bit float"),
        (changed(3, [-np.inf, 2, 1]), "row 4 has -inf for feature 0"),
        (changed(3, [1, 1e39, 1]), r"row 4 has 1e\+39 for feature 1"),
        ([*GOOD[:7], ("", [1, 2, 3]), *GOOD[7:]], "row 8 has an empty 'name'"),
        ([*GOOD[:7], (None, [1, 2, 3]), *GOOD[7:]], "row 8 has no value in column 'name'"),
        ([], "the file has no features"),
    ],
)
def test_rows_that_are_wrong(graph, tmp_path, folder, rows, message):
    path = write(tmp_path / "a.parquet", rows, pa.list_(pa.float64()))
    if not rows:
        pq.write_table(pa.table({"name": pa.array([], pa.string()), "features": pa.array([], KINDS[0])}), path)
    with pytest.raises(InputError, match=message):
        open_features(path, graph, folder)
    assert not folder.parent.exists() or list(folder.parent.iterdir()) == []


@pytest.mark.parametrize(
    "columns, message",
    [
        (
            {"name": ["a"], "f0": [1.0]},
            r"columns 'name' and 'features' \(or 'embedding'\) are needed; there are 'name', 'f0'",
        ),
        ({"node": ["a"], "features": [[1.0]]}, "are needed; there are 'node', 'features'"),
        (
            {"name": ["a"], "features": [1.0]},
            "column 'features' holds double: lists of 32- or 64-bit floats are needed",
        ),
        ({"name": ["a"], "features": [[1]]}, r"column 'features' holds list<element: int64>: lists of"),
        ({"name": ["a"], "features": [["1"]]}, "lists of 32- or 64-bit floats are needed"),
        ({"name": [1.5], "features": [[1.0]]}, "ids must be integers, not float64"),
        ({"name": [True], "features": [[1.0]]}, r"column 'name' holds bool: names \(strings\) or ids"),
        ({"name": [-1], "features": [[1.0]]}, "row 1: id -1 is negative"),
    ],
)
def test_columns_that_are_wrong(graph, tmp_path, folder, columns, message):
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    with pytest.raises(InputError, match=message):
        open_features(tmp_path / "a.parquet", graph, folder)


def test_files_that_are_none(graph, tmp_path, folder):
    path = tmp_path / "a.parquet"
    for content, message in ((None, "no such file"), (b"", "the file is empty"), (b"PAR1 not", "not a Parquet file")):
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(InputError, match=f"a.parquet: {message}"):
            open_features(path, graph, folder)
    with pytest.raises(InputError, match="is a folder, not a file"):
        open_features(tmp_path, graph, folder)
    write(path, random_features(), row_group_size=4)
    content = bytearray(path.read_bytes())
    content[4 : len(content) // 2] = bytes(len(content) // 2 - 4)
    path.write_bytes(content)
    with pytest.raises(InputError, match="a.parquet: not a Parquet file, or a damaged one: "):
        open_features(path, graph, folder)


MEMORY = """
import sys
from pathlib import Path
import numpy as np
from marius_oac.data.graphs import features
from marius_oac.data.graphs.graph import Graph
features.CHUNK_BYTES = 1 << 20
peak = lambda: int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) << 10
folder, graph = Path(sys.argv[1]), Graph.open(sys.argv[2])
features.open_features(folder / "small.parquet", graph, folder / "small")
before = peak()
features.open_features(folder / "large.parquet", graph, folder / "large")
print(peak() - before)
"""


@pytest.mark.slow
def test_memory_is_bounded(tmp_path):
    names = [f"node {i:04}" for i in range(2000)]
    graph = named_graph(tmp_path / "named", names)
    for size, width in (("small", 4), ("large", 16_384)):
        features = np.random.default_rng(0).standard_normal(2000 * width, np.float32)
        lists = pa.FixedSizeListArray.from_arrays(pa.array(features), width)
        table = pa.table({"name": np.random.default_rng(1).permutation(names), "features": lists})
        pq.write_table(table, tmp_path / f"{size}.parquet", row_group_size=2000, use_dictionary=False)
    assert (tmp_path / "large.parquet").stat().st_size > 100 << 20
    command = [sys.executable, "-c", MEMORY, str(tmp_path), str(graph.path)]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert int(answer.stdout) < 40 << 20
