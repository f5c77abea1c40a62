"""Waits on a generated graph: prepare, evaluation, a prediction, and its checkpoints (`checkpoints`)."""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import torch

from benchmarks.generate.graph import GeneratedGraph, write_graph
from benchmarks.waits import checkpoints
from benchmarks.waits.measured import Wait, files_in, read_files, size_of, write_bytes
from marius_oac.config.task import build_config
from marius_oac.data.graphs.graph import Graph
from marius_oac.prepare.prepare import PrepareRequest, prepare
from marius_oac.runtime.files.atomic import sync
from marius_oac.tasks.trained import Question
from marius_oac.training.local import train
from marius_oac.training.trained import evaluate_run, predict_run

DIMENSION = 100
RELATIONS = 1000
FRACTION = 0.001
QUERIES = 1000  # scored at once by the plain way


def waits(folder: Path, edges: int, stack: ExitStack) -> list[Wait]:
    """The rows of a graph of so many edges and a fifth as many nodes."""
    text, graph, run = folder / "graph.tsv", folder / "graph", folder / "run"
    request = {"source": str(text), "test_fraction": FRACTION, "valid_fraction": FRACTION}
    if not (folder / "other").exists():
        write_graph(GeneratedGraph(num_nodes=edges // 5, num_edges=edges, num_relations=RELATIONS, seed=1), text)
        prepare(PrepareRequest(out=graph, **request))
        config = build_config({
            "data": {"path": str(graph)}, "model": {"dimension": DIMENSION}, "evaluation": {"every": 0},
            "training": {"epochs": 1, "batch_size": 50_000},
        })  # fmt: skip
        train(config, run)
        shutil.copytree(run, folder / "other")
    session = stack.enter_context(checkpoints.opened(run))
    return [
        _prepare(text, graph, edges, lambda out: prepare(PrepareRequest(out=out, **request))),
        *checkpoints.waits("graph", run, folder / "other", session, folder, stack),
        *_asked(Graph.open(graph), run),
    ]


def _prepare(text: Path, graph: Path, edges: int, ours) -> Wait:
    written, size = write_bytes(size_of(files_in(graph))), read_files([text])

    def limit(path: Path) -> None:
        size(path)
        written(path)

    def plain(path: Path) -> None:
        """In memory: no bound, no checks, no checksums, no names that train lacks."""
        path.mkdir()
        names = ["head", "relation", "tail"]
        table = pa_csv.read_csv(text, pa_csv.ReadOptions(column_names=names), pa_csv.ParseOptions(delimiter="\t"))
        nodes = pa.chunked_array([*table["head"].chunks, *table["tail"].chunks])
        ids, relations = (
            _numbered(nodes, path / "nodes.parquet"),
            _numbered(table["relation"], path / "relations.parquet"),
        )
        every = np.stack([ids[:edges], relations, ids[edges:]], axis=1)
        order = np.random.default_rng(0).permutation(edges)
        drawn = int(FRACTION * edges)
        for split, part in (
            ("valid", order[:drawn]),
            ("test", order[drawn : 2 * drawn]),
            ("train", order[2 * drawn :]),
        ):
            np.save(path / f"{split}.npy", every[np.sort(part)])
            sync(path / f"{split}.npy")

    return Wait("graph: prepare, TSV", ours, limit, "read, and as many bytes written and flushed", edges / 1e6,
                "M edges", plain, "pyarrow in memory")  # fmt: skip


def _numbered(names: pa.ChunkedArray, path: Path) -> np.ndarray:
    """Numbers in the order of the names, int32 [n]; writes the names."""
    coded = names.dictionary_encode().combine_chunks()
    if isinstance(coded, pa.ChunkedArray):
        coded = coded.chunk(0)
    order = pc.sort_indices(coded.dictionary).to_numpy()
    place = np.empty(len(order), np.int32)
    place[order] = np.arange(len(order), dtype=np.int32)
    pq.write_table(pa.table({"name": coded.dictionary.take(pa.array(order))}), path)
    sync(path)
    return place[coded.indices.to_numpy()]


def _asked(graph: Graph, run: Path) -> list[Wait]:
    """Evaluation and a prediction with the run's ComplEx."""
    from marius_oac.runs.folder.folder import RunFolder

    saved = RunFolder.open(run).checkpoint()
    entities = torch.from_numpy(np.array(saved.array("entities", "values")))
    relations = saved.dense()["relations"]
    edges = torch.from_numpy(np.array(graph.edges("test"), np.int64))
    half, scores = DIMENSION // 2, 2.0 * len(edges) * len(entities)
    queries, out = torch.randn(2 * len(edges), DIMENSION), torch.empty(QUERIES, len(entities))
    truth = {}
    for side, (given, asked) in enumerate(((2, 0), (0, 2))):
        for split in ("train", "valid", "test"):
            for edge in np.array(graph.edges(split)[:200_000]):
                truth.setdefault((side, edge[given], edge[1]), []).append(edge[asked])

    def products(_: Path) -> None:
        for first in range(0, len(queries), QUERIES):
            part = queries[first : first + QUERIES]
            torch.mm(part, entities.T, out=out[: len(part)])

    def query(anchor: torch.Tensor, relation: torch.Tensor, conjugate: bool) -> torch.Tensor:
        a, b, c, d = anchor[:, :half], anchor[:, half:], relation[:, :half], relation[:, half:DIMENSION]
        d = -d if conjugate else d
        return torch.cat((a * c - b * d, a * d + b * c), dim=1)

    def plain(_: Path) -> None:
        for side, (given, asked) in enumerate(((2, 0), (0, 2))):
            for first in range(0, len(edges), QUERIES):
                part = edges[first : first + QUERIES]
                found = query(entities[part[:, given]], relations[part[:, 1]], side == 0) @ entities.T
                true = found.gather(1, part[:, asked, None])
                for row, edge in enumerate(part.tolist()):
                    found[row, truth.get((side, edge[given], edge[1]), [])] = -torch.inf
                1 / (1 + (found > true).sum(1) + 0.5 * (found == true).sum(1))

    def matrix_vector(_: Path) -> None:
        torch.mv(entities, queries[0])

    head, relation = graph.node_names(np.array([0]))[0], graph.relation_names(np.array([0]))[0]

    def topk(_: Path) -> None:
        names = pq.read_table(graph.path / "nodes.parquet")["name"]
        number = names.index(head).as_py()
        found = query(entities[number, None], relations[:1], False) @ entities.T
        names.take(pa.array(torch.topk(found[0], 10).indices.numpy())).to_pylist()

    ask = Question(head=head, relation=relation, top=10)
    return [
        Wait("graph: eval, filtered", lambda _: evaluate_run(run), products, "the products of all scores", scores / 1e9,
             "G scores", plain, "torch, 1,000 queries at once"),
        Wait("graph: predict, 10 tails", lambda _: predict_run(run, ask), matrix_vector,
             "one product with all entities", len(entities) / 1e6, "M entities", topk,
             "torch.topk, entities in memory"),
    ]  # fmt: skip
