"""What `prepare` makes of files of edges of other make, without a flag: the graph that they mean, or a line says where
it is a guess."""

import collections
import logging
import os
import shutil

import numpy as np
import pytest

from marius_oac.data.reading.edge_file import ReadOptions
from marius_oac.errors import InputError
from marius_oac.prepare.prepare import PrepareRequest, prepare
from tests.data.strange_graphs import write_graph

PLAIN = ReadOptions(header=False, delimiter="\t", comment="", quotes=False)
WHOLE = {"valid_fraction": 0.0, "test_fraction": 0.0}


def fingerprint(source, out, read):
    try:
        return prepare(PrepareRequest(source=str(source), out=out, read=read, **WHOLE)).fingerprint
    finally:
        shutil.rmtree(out, ignore_errors=True)


def meant(folder, edges):
    """The fingerprint of the graph with these edges."""
    columns = tuple(map(str, range(len(edges[0]))))
    if isinstance(edges[0][0], int):
        np.save(folder / "clean.npy", np.array(edges))
        return fingerprint(folder / "clean.npy", folder / "graph", ReadOptions(columns=columns))
    (folder / "clean.tsv").write_text("".join("\t".join(edge) + "\n" for edge in edges), "utf-8", newline="")
    return fingerprint(folder / "clean.tsv", folder / "graph", ReadOptions(**{**vars(PLAIN), "columns": columns}))


def outcome(folder, strange, caplog):
    """ "read", "asked" or "wrong", and what was said."""
    expected = meant(folder, strange.edges)
    caplog.clear()
    with caplog.at_level(logging.WARNING, "marius_oac"):
        try:
            found = fingerprint(strange.path, folder / "graph", ReadOptions())
        except InputError as error:
            return "asked", [str(error)]
    said = [record.getMessage().removeprefix(f"{strange.path}: ") for record in caplog.records]
    left = [part.partition(" (")[0] for line in said if line.startswith("left out: ")
            for part in line.removeprefix("left out: ").split("), ")]  # fmt: skip
    asked = [line for line in said if not line.startswith("left out: ")]
    if found != expected and not asked and set(left) <= set(strange.others):
        return "wrong", said
    return ("asked", said) if asked or found != expected else ("read", said)


def head(path):
    with open(path, "rb") as file:
        return file.read(150)


def test_some_graphs_of_other_make(tmp_path, caplog):
    for seed in range(6):
        kind, said = outcome(tmp_path, write_graph(tmp_path, seed, 300), caplog)
        assert kind != "wrong", (seed, said)


@pytest.mark.slow
def test_a_hundred_graphs_of_other_make(tmp_path, caplog, capsys):
    counts = collections.Counter()
    first = int(os.environ.get("FIRST", "0"))
    for seed in range(first, first + int(os.environ.get("GRAPHS", "100"))):
        strange = write_graph(tmp_path, seed, 3000)
        kind, said = outcome(tmp_path, strange, caplog)
        counts[kind] += 1
        if kind == "wrong" or os.environ.get("SHOW"):
            with capsys.disabled():
                print(seed, kind, strange.path.name, said, strange.edges[:2], head(strange.path), sep="\n   ")
    with capsys.disabled():
        print(dict(counts))
    assert counts["wrong"] == 0 and counts["read"] >= 0.85 * counts.total(), counts


FACT = "Q{} P{} Q{}"
CLEAN = {
    "tsv": ("\t", FACT, ""), "csv": (",", FACT, ""), "names.csv": (",", FACT, "head relation tail"),
    "txt": ("\t", FACT, ""), "blanks.txt": (" ", FACT, ""), "numbers.tsv": ("\t", "{} {} {}", ""),
    "numbers.txt": (" ", "{} {} {}", ""), "zeros.txt": ("\t", "{:08d} _r{} {:08d}", ""),
    "semicolons.csv": (";", FACT, ""), "spo.tsv": ("\t", "{} p{} {}", "subject predicate object"),
    "kinds.tsv": ("\t", "u{} likes{} i{}", ""), "uri.tsv": ("\t", "http://x/{} http://x/p/{} http://x/{}", ""),
    "quoted.csv": (",", '"d;{}" "{}" "d;{}"', ""), "pairs.csv": (",", "{} {}", ""), "uv.csv": (",", "n{} n{}", "u v"),
    "pairs.names.csv": (",", "{} {}", "source target"), "pairs.edges": (" ", "{} {}", ""),
    "pairs.tsv": ("\t", "node-{} node-{}", ""), "pairs.dat": ("|", "a{} a{}", ""),
    "snap.txt": ("\t", "{} {}", "# Nodes: 4 # Edges: 5"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", CLEAN)
def test_clean_files_are_read_without_a_word(tmp_path, caplog, name):
    mark, line, names = CLEAN[name]
    draw = np.random.default_rng(11)
    ends, kinds = draw.integers(0, 4000, (20_000, 2)).tolist(), draw.integers(0, 25, 20_000).tolist()
    triples = line.count("{") == 3
    rows = [line.format(*(head, kind, tail) if triples else (head, tail)).split(" ")
            for (head, tail), kind in zip(ends, kinds, strict=True)]  # fmt: skip
    path = tmp_path / f"g.{name}"
    path.write_text("".join(mark.join(row) + "\n" for row in [names.split(" ")] * bool(names) + rows))
    edges = [[field.strip('"') for field in row] for row in rows]
    found = fingerprint(path, tmp_path / "graph", ReadOptions())
    assert not caplog.records and found == meant(tmp_path, edges)
