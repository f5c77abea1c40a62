"""Runs whose rows lie on disk: one row fills a page, so that a small graph has many, and 10 % of them hold a batch."""

from pathlib import Path

from marius_oac.config.link_prediction import Config
from marius_oac.storage.disk.layout import FRAME_BYTES
from tests.click_logs import ctr_config, small_log
from tests.graphs import NODES, tiny_config

PAGE = 4096
WIDE = ("model.dimension=256", "storage.page=4096")  # with the optimizer's state, a row is longer than half a page
NARROW = ("model.dimension=100", "storage.page=4096")  # five rows in a page
USERS, DAYS = 40, 4


def budget(pages: int) -> str:
    """An override: memory for so many pages."""
    return f"storage.memory={pages * (PAGE + FRAME_BYTES)}"


def share(percent: int, pages: int = NODES) -> str:
    """An override: memory for a part of the table."""
    return budget(max(1, pages * percent // 100))


def graph_config(graph, *overrides: str) -> Config:
    """Batches of 4 edges with 2 x 4 negatives, 16 rows at most; 200 batches in an epoch."""
    small = ("training.batch_size=4", "training.negatives.count=4", "training.negatives.chunks=1",
             "training.epochs=1", "evaluation.every=0")  # fmt: skip
    return tiny_config(graph, *WIDE, *small, *overrides)


def days(folder: Path) -> list[Path]:
    """A click log of a file a day, each with users of its own: 160 of them, and 42 other keys."""
    return [small_log(folder / f"day_{n}.parquet", rows=60, seed=n, new=USERS * n) for n in range(DAYS)]


def clicks_config(files, *overrides: str, **splits) -> Config:
    """Batches of 4 examples, 17 rows at most; 60 batches in an epoch."""
    once = ("training.batch_size=4", "training.epochs=1")
    return ctr_config(files, *WIDE, *once, *overrides, network="fm", **splits)


def bits(summary: dict) -> dict:
    """What must be equal: tables, dense parameters, and everything that follows from them."""
    timing = ("seconds", "per_second", "rss", "machine", "replaced", "refused", "cache", "disk.")
    return {key: value for key, value in summary.items() if not any(part in key for part in timing)}


def page_files(run: Path) -> list[Path]:
    return sorted((run / "tables").glob("*.pages"))
