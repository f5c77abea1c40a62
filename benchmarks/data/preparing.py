"""Peak memory and speed of preparing a generated graph.

    python -m benchmarks.data.preparing --edges 100000000 --format tsv  # or tsv.gz, parquet, npy

Generates the graph (nodes = edges / 5, 1,000 relations, string names) into --folder in chunks, prepares it in a process
of its own, and prints that process's peak resident memory (which the bound of 4 GiB is about), seconds and edges/s,
beside the time that merely reading and decompressing the file takes: the physical limit.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import shutil
import tempfile
import time
from pathlib import Path

from benchmarks.generate.graph import GeneratedGraph, write_graph
from benchmarks.machine import machine
from marius_oac.data.reading.text import read_pieces
from marius_oac.prepare.prepare import PrepareRequest, prepare

GIB = 1 << 30
BOUND_GIB = 4.0


def _generate(spec: GeneratedGraph, path: Path) -> None:
    write_graph(spec, path)


def _prepare(source: Path, out: Path, answer: multiprocessing.SimpleQueue) -> None:
    start = time.perf_counter()
    summary = prepare(PrepareRequest(source=str(source), out=out))
    seconds = time.perf_counter() - start
    answer.put((seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / GIB, str(summary)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--edges", type=int, default=100_000_000)
    parser.add_argument("--nodes", type=int, help="default: edges / 5")
    parser.add_argument("--format", default="tsv", choices=["tsv", "tsv.gz", "csv", "parquet", "npy"])
    parser.add_argument("--folder", type=Path, help="where to put files of some GB (default: a temporary folder)")
    arguments = parser.parse_args()
    nodes = arguments.nodes or max(64, arguments.edges // 5)
    spec = GeneratedGraph(num_nodes=nodes, num_edges=arguments.edges, num_relations=1000, seed=1)
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        source = Path(name) / f"generated.{arguments.format}"
        generator = context.Process(target=_generate, args=(spec, source))
        generator.start()
        generator.join()
        start = time.perf_counter()
        size = sum(len(piece) for piece in read_pieces(source))
        reading = time.perf_counter() - start
        answer = context.SimpleQueue()
        worker = context.Process(target=_prepare, args=(source, Path(name) / "graph", answer))
        worker.start()
        worker.join()
        if worker.exitcode or answer.empty():
            raise SystemExit(f"preparing failed with exit code {worker.exitcode}")
        seconds, peak, summary = answer.get()
        disk = source.stat().st_size / GIB
        shutil.rmtree(Path(name) / "graph")
    print(summary)
    print(machine())
    print(f"file {disk:.2f} GiB, read alone {reading:.1f} s ({size / GIB:.2f} GiB of data)")
    print(f"prepare {seconds:.1f} s, {arguments.edges / seconds:,.0f} edges/s, {seconds / reading:.1f} x reading")
    print(f"peak memory {peak:.2f} GiB of {BOUND_GIB:g} GiB allowed: {'kept' if peak < BOUND_GIB else 'BROKEN'}")


if __name__ == "__main__":
    main()
