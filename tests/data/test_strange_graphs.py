"""What `prepare` makes of files of edges of other make, without a flag: the graph that they mean, or a line says where
it is a guess."""

import collections
import logging
import os
import shutil

import numpy as np
import pytest

from marius_oac.data.prepare.edge_file import ReadOptions
from marius_oac.data.prepare.prepare import PrepareRequest, prepare
from marius_oac.errors import InputError
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
