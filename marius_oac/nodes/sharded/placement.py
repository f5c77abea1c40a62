"""Which process carries which virtual shards: packed by the look-ups of the batches to come, or by the hash alone.

"Profiling the cost of embedding lookup in advance, and then solve a bin packing problem" (ShadowSync, Zheng et al.,
section 3.1): a first pass plans some batches, every process its own share of each, as it will in training, and counts
the rows that these look up in each virtual shard. All processes get the sums, so all pack alike. The placement is saved
with every checkpoint and holds as long as the nodes stay the same; with other nodes, or other `shards`, batches are
measured from where the run goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from marius_oac.config.cluster import ClusterConfig
from marius_oac.config.task import TaskConfig
from marius_oac.data.batches.rank_slice import with_share
from marius_oac.errors import InputError, NodeLost, size_text
from marius_oac.nodes.launch.cluster import names
from marius_oac.nodes.sharded.home import NodesHome
from marius_oac.nodes.shards.packing import LookupCost, Packed, even, heaviest, pack
from marius_oac.runs.checkpoints.parts import Layout, saved_packings
from marius_oac.runs.checkpoints.retention import START
from marius_oac.runtime.console import logger
from marius_oac.runtime.progress import Progress
from marius_oac.storage.contract import RowLayout
from marius_oac.storage.placement import Placement
from marius_oac.storage.sizes import page_bytes

MOST_BATCHES, MOST_EXAMPLES = 200, 1 << 20
"""Of the pass that measures. By benchmarks/nodes/packing.py ten batches come within 0.2 % of what a hundred find."""
_BY_ROWS = 0.01
"""What the rows of a shard count beside its look-ups: shards that no measured batch asks for are spread by them."""


def agreed_packing(
    home: NodesHome,
    config: TaskConfig,
    cluster: ClusterConfig,
    run: Path | None = None,
    checkpoint: str | None = None,
) -> Packed:
    """Returns the placement of rows: the saved one if a run continues on the same nodes, else a measured one.
    Collective.

    Args:
        config: the run's, as all processes have it.
        run: its folder, if it goes on; `checkpoint`: from which, if one is named.

    Raises:
        InputError: the rows don't fit into the nodes' budgets; or batches can't be read here or on another node.
    """
    first = 0
    if run is not None:
        saved = _saved(home, run, checkpoint)
        if saved is not None:
            return saved
        first = min(_position(home, run, checkpoint), home.task.schedule.last)
        home.peers.agreed(lambda: home.task.check_data_from(first))
    budgets = _Budgets.of(home, config, cluster)
    unmeasured = _packed(home, budgets, None)
    if config.nodes.packing == "even" or unmeasured.num_nodes == 1:
        return Packed(unmeasured)
    count = max(1, min(MOST_BATCHES, MOST_EXAMPLES // config.training.batch_size))
    batches = range(first, min(first + count, home.task.schedule.last))
    measured = home.peers.agreed(lambda: measure(home, batches).tolist())
    costs = np.array(home.peers.gather(measured), np.float64).sum(axis=0)
    if not costs.any():  # nothing is left to be trained
        return Packed(unmeasured)
    placement, weights = _packed(home, budgets, costs), home.carried
    by_hash, packed = (heaviest(costs, each.nodes, weights) for each in (unmeasured, placement))
    if home.peers.leads:
        logger.info(
            f"rows over nodes: by the look-ups of {len(batches)} batches the heaviest node has {packed:.2f} of the "
            f"mean (by the hash alone {by_hash:.2f})"
        )
    return Packed(placement, len(batches), by_hash, packed)


def measure(home: NodesHome, batches: Sequence[int]) -> np.ndarray:
    """Bytes of the values that a process's part of some batches looks up in each virtual shard, int64 [V]."""
    found = np.zeros(home.placement.num_shards, np.int64)
    if not home.peers.trains:
        return found
    costs = [LookupCost(found.size) for _ in home.rows.formats]
    with ExitStack() as stack:
        told = Progress("measuring look-ups", "batches", len(batches)) if home.peers.leads else None
        progress = stack.enter_context(told) if told else None
        planner = with_share(home.rows.planner(stack), home.share)
        for number in batches:
            for cost, shards in zip(costs, home.rows.shards(planner.plan(number)), strict=True):
                cost.add(shards)
            if progress:
                progress.add(1)
    for values, cost in zip(home.rows.formats, costs, strict=True):
        found += values.nbytes * cost.lookups
    return found


def _packed(home: NodesHome, budgets: _Budgets, costs: np.ndarray | None) -> Placement:
    """As `_Budgets.packed`. If there is no room, which all processes find, they leave together: the group's store is
    held by one of them, and the slower ones would take one that left at once for lost."""
    try:
        return budgets.packed(costs)
    except InputError:
        with suppress(NodeLost):  # the lack of room is the error to report
            home.peers.wait()
        raise


def _saved(home: NodesHome, run: Path, checkpoint: str | None) -> Packed | None:
    """The placement with which these processes last trained this run, from the layout with the newest checkpoints; any
    of them may have lost its own part."""
    own = saved_packings(run, home.group.names, home.weights, home.group.names[home.group.rank])
    found = [each for every in home.peers.gather(own) for each in every]
    named = [each for each in found if checkpoint in each["checkpoints"]] or found
    if not named or checkpoint == START:
        return None
    best = max(named, key=lambda each: (each["checkpoints"][-1], each["layout"]))
    batches, by_hash, packed = best["figures"]
    return Packed(Placement(np.array(best["nodes"]), len(home.carried)), int(batches), by_hash, packed)


def _position(home: NodesHome, run: Path, checkpoint: str | None) -> int:
    """The batch that these processes, which are new, continue with."""
    if checkpoint == START:
        return 0
    here = [name for layout in Layout.all(run) for name in layout.names()]
    every = [name for each in home.peers.gather(here) for name in each]
    return max((int(name) for name in every if name == checkpoint), default=max(map(int, every), default=0))


@dataclass(frozen=True)
class _Budgets:
    """The rows of all tables, and how many of them each process has room for.

    Attributes:
        weights: float [n], what share of the look-ups each should take. names: of the processes.
        rows: int64 [V], of each virtual shard; all 1 if they are unknown before training.
        row_bytes: of a row on disk, with its copies in checkpoints.
        disk: most rows of each by its `disk`, int64 [n]. memory: the same by memory, or None where none is limited.
    """

    weights: Sequence[float]
    names: Sequence[str]
    rows: np.ndarray
    row_bytes: float
    disk: np.ndarray
    memory: np.ndarray | None

    @classmethod
    def of(cls, home: NodesHome, config: TaskConfig, cluster: ClusterConfig) -> _Budgets:
        nodes = [node for node in cluster.nodes for _ in range(node.processes)]
        carriers = [rank for rank, node in enumerate(nodes) if node.shards]
        called = [names(cluster)[rank] for rank in carriers]
        known = home.rows.known()
        if known is None:
            num_shards = home.placement.num_shards
            rows = np.ones(num_shards, np.int64)
            return cls(home.carried, called, rows, 0.0, np.full(len(carriers), num_shards), None)
        rows, layout = known
        page_rows, page, copies = _paged(config, layout)
        room = {"memory": np.full(len(carriers), rows.sum()), "disk": np.full(len(carriers), rows.sum())}
        for place, node in enumerate(nodes[rank] for rank in carriers):
            memory = (node.memory and node.memory // node.processes) or config.storage.memory
            disk = node.disk and node.disk // node.processes
            for key, budget, of_row in (("memory", memory, 1), ("disk", disk, copies)):
                if budget is not None:
                    room[key][place] = min(room[key][place], budget // (of_row * page) * page_rows)
        limited = (room["memory"] < rows.sum()).any()
        row_bytes = copies * page / page_rows
        return cls(home.carried, called, rows, row_bytes, room["disk"], room["memory"] if limited else None)

    def packed(self, costs: np.ndarray | None) -> Placement:
        """Packs shards of such costs, float64 [V], or None: each the same.

        Nobody gets more rows than its memory holds if there is a way, and more than its disk in no case.
        """
        if costs is None and self.memory is None and (self.disk >= self.rows.sum()).all():
            return even(self.weights, self.rows.size)
        if costs is None:
            costs = np.ones(self.rows.size)
        else:
            costs = costs + _BY_ROWS * costs.mean() * self.rows / self.rows.mean()
        self._check()
        if self.memory is not None:
            try:
                most = np.minimum(self.memory, self.disk)
                return Placement(pack(costs, self.rows, most.tolist(), self.weights), len(self.weights))
            except InputError:  # some rows will lie on disk
                pass
        return Placement(pack(costs, self.rows, self.disk.tolist(), self.weights, self.names), len(self.weights))

    def _check(self) -> None:
        total = int(self.rows.sum())
        if total <= self.disk.sum():
            return
        weights = np.asarray(self.weights)
        lacking = total * weights / weights.sum() - self.disk
        worst = int(lacking.argmax())
        lack, all_lack = (f"{rows:,.0f} rows ({size_text(int(rows * self.row_bytes))})"
                          for rows in (lacking[worst], total - self.disk.sum()))  # fmt: skip
        raise InputError(
            f"has room for {self.disk[worst]:,} rows and their copies in checkpoints; of {total:,} rows it should take "
            f"{lack} more, and all nodes together lack room for {all_lack}",
            f"node {self.names[worst]}: disk",
        )


def _paged(config: TaskConfig, layout: RowLayout) -> tuple[int, int, int]:
    """Rows of a page, its bytes, and how many of it there are on disk: as many as `plan_memory` plans, the one in the
    table, one for each checkpoint that is kept, and one for the checkpoint that is being written."""
    size = page_bytes(config.storage, [layout])
    return size // layout.row_bytes, size, config.checkpoint.keep + 2
