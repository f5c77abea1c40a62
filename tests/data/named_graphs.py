"""A graph whose names are hard to get right, for tests of files that name nodes."""

from pathlib import Path

from marius_oac.data.graphs.graph import Graph
from marius_oac.prepare.prepare import PrepareRequest, prepare

NAMES = [
    *"abcdefgh",
    "A b",
    "é",
    "e\u0301",
    "'",
    '"',
    "nan",
    "NULL",
    "0",
    "00",
    "1",
    "10",
    "2",
    "ß",
    "日本",
    "\U0001f600",
    " a",
]


def named_graph(folder: Path, names: list[str] = NAMES) -> Graph:
    """A ring over the names."""
    folder.mkdir(parents=True, exist_ok=True)
    ring = zip(names, names[1:] + names[:1], strict=True)
    (folder / "edges.tsv").write_text("".join(f"{head}\t{tail}\n" for head, tail in ring), "utf-8")
    prepare(
        PrepareRequest(source=str(folder / "edges.tsv"), out=folder / "graph", valid_fraction=0.0, test_fraction=0.0)
    )
    return Graph.open(folder / "graph")
