"""86 million rows of 100 floats in host memory, trained for a while with each setting of workers."""

from __future__ import annotations

import functools

from benchmarks.gpu.graphs import skewed_edges
from benchmarks.gpu.measured import Trained
from benchmarks.gpu.part import Missing, Part, Table, once
from benchmarks.gpu.place import free_memory
from marius_oac.config.link_prediction import Config
from marius_oac.models.link_prediction.step import entity_width
from marius_oac.storage.contract import RowLayout
from tests.graphs import workers

SECONDS = 300
TABLES = [
    Table("big table", "86 million rows of 100 floats in host memory",
          "ComplEx with batches of 50,000 edges in 10 chunks and 1,000 negatives per chunk and side. Each setting "
          "trains for 10 seconds. If too little memory is free, the table has fewer rows.",
          {"optimizer": "row optimizer", "million_rows": "million rows", "gibibytes": "GiB", "mode": "mode",
           "workers": "workers a stage", "in_flight": "in flight", "examples_per_second": "edges/s",
           "busy": "compute stream busy", "binds": "what binds", "stages": "ms a batch"}),
]  # fmt: skip
ROWS, RELATIONS = 86_000_000, 14_824
SHARE = 0.75
"""Of the free memory that the table may take."""
SETTINGS = (
    ("oac", 8, 16),
    ("oac", 4, 16),
    ("sync", 1, 1),
    ("oac", 1, 8),
    ("async", 8, 16),
    ("oac", 2, 8),
    ("oac", 8, 32),
)


def run(part: Part) -> None:
    for optimizer, settings in (("rowwise_adagrad", SETTINGS), ("adagrad", SETTINGS[:1])):
        _table(part, optimizer, part.place.pick(settings, settings[:2]))


@functools.cache
def _room() -> int:
    """Bytes for a table, the same for the plan and the measurement."""
    return int(SHARE * free_memory())


def _table(part: Part, optimizer: str, settings: tuple) -> None:
    place = part.place
    size, count, seconds = place.pick((50_000, 1_000, 10.0), (500, 20, 0.3))
    config = Config.build(
        {
            "data": {"path": "none"},
            "model": {"decoder": "complex", "dimension": 100},
            "training": {
                "batch_size": size,
                "negatives": {"count": count, "chunks": 10},
                "optimizer": {"kind": optimizer},
            },
        }
    )
    layout = RowLayout(*entity_width(config))
    rows = min(place.pick(ROWS, 50_000), _room() // layout.row_bytes)
    table = {"optimizer": optimizer, "million_rows": rows / 1e6, "gibibytes": rows * layout.row_bytes / (1 << 30)}

    def filled() -> Trained:
        if part.left() < (least := place.pick(45, 0)):
            raise Missing(f"out of time: {part.left():.0f} s were left, and filling the table takes a while: {least}")
        return Trained(place, config, skewed_edges(rows, RELATIONS, place.pick(10_000_000, 20_000)), rows, RELATIONS)

    with once(filled) as trained:
        for mode, many, several in settings:
            where = table | {"mode": mode, "workers": many, "in_flight": several}
            overrides = (f"pipeline.mode={mode}", f"pipeline.in_flight={several}", *workers(many))
            part.measure("big table", where, lambda more=overrides: trained().measured(seconds, *more), seconds + 2)
