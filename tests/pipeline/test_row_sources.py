"""Sources of rows in memory, on disk and on other nodes pass one suite, which finds the mistakes planted in them."""

from contextlib import ExitStack, contextmanager
from dataclasses import replace

import numpy as np
import pytest

from marius_oac.config.sections import OptimizerConfig, WorkersConfig
from marius_oac.errors import InputError
from marius_oac.models.compute.row_optimizers import RowOptimizer
from marius_oac.nodes.shards.exchange import RemoteSource
from marius_oac.nodes.shards.remote_rows import RemoteRows
from marius_oac.nodes.shards.routed import RoutedPlan
from marius_oac.nodes.shards.serving import ShardServer
from marius_oac.nodes.shards.shard import Shard
from marius_oac.nodes.shards.table import NumberedTable
from marius_oac.nodes.shards.values import ValueFormat
from marius_oac.nodes.transport.in_process import Network
from marius_oac.pipeline.rows import LocalRows, LocalSource
from marius_oac.runtime.channel import Closed
from marius_oac.storage.backing import IN_MEMORY, Backing
from marius_oac.storage.contract import RowLayout, backing_of
from marius_oac.storage.disk.files import Listing, PageFiles
from marius_oac.storage.disk.layout import FRAME_BYTES
from marius_oac.storage.disk.store import SsdStore
from marius_oac.storage.disk.tier import DiskTier
from marius_oac.storage.initial import RowInitial
from marius_oac.storage.memory import MemoryStore
from marius_oac.storage.placement import IdPlaces, Placement
from marius_oac.testing import row_sources
from marius_oac.testing.row_sources import World, check_row_source
from marius_oac.types import TableSpec
from tests.pipeline.toy import ToyPlanner, run_toy, toy_stores

TABLES = TableSpec("a", 60, 8), TableSpec("b", 30, 4)
PAGE, WIDE = 4096, RowLayout(256, 256)  # one row in a page
FRAMES = 48  # what four batches need at most, of 90 pages
NODES = 2


def zeros(name):
    return RowInitial("uniform", 0.0, 0, name)


def whole(store):
    rows = np.empty((store.num_rows, store.layout.width), np.float32)
    store.read(np.arange(store.num_rows), rows, np.empty(store.num_rows, np.int64))
    return rows


def local(stores, mode, exchange, waits=False):
    class Source(LocalSource):
        def begin(self, first, last, device, stop_requested):
            return exchange(self, device, stop_requested)

    return World(Source(stores, mode), TABLES, lambda: [whole(store) for store in stores], waits=waits)


@contextmanager
def in_memory(folder, mode="oac", exchange=LocalRows):
    yield local([MemoryStore(t.name, t.num_rows, RowLayout(3, 2), zeros(t.name)) for t in TABLES], mode, exchange)


@contextmanager
def on_disk(folder, mode="oac", exchange=LocalRows):
    rows = {table.name: table.num_rows for table in TABLES}
    files = PageFiles(folder, Listing.new(PAGE), "buffered", 4, create=True)
    with DiskTier(files, dict.fromkeys(rows, WIDE), rows, FRAMES * (PAGE + FRAME_BYTES), look_ahead=8) as tier:
        stores = [SsdStore(name, count, WIDE, zeros(name), tier) for name, count in rows.items()]
        try:
            yield local(stores, mode, exchange, waits=True)
        finally:
            tier.abort()


@contextmanager
def on_nodes(folder, mode="oac", exchange=RemoteRows, dimension=3):
    optimizer = RowOptimizer(OptimizerConfig(kind="sgd", learning_rate=1.0))
    placement, network = Placement.by_number(NODES), Network()
    places = [IdPlaces(table.num_rows, placement) for table in TABLES]
    stores = [
        [MemoryStore(t.name, each.num_rows(node), RowLayout(dimension, 0), zeros(t.name))
         for t, each in zip(TABLES, places, strict=True)]
        for node in range(NODES)
    ]  # fmt: skip
    shards = [Shard([NumberedTable(store, optimizer) for store in of_node], 1) for of_node in stores]

    def begin(first, last):
        for server, shard in zip(servers, shards, strict=True):
            server.begin(first, shard)

    class Source(RemoteSource):
        def begin(self, first, last, device, stop_requested):
            super().begin(first, last, device, stop_requested)
            self.exchange = exchange(self, first, stop_requested)
            return self.exchange

    def stored():
        for table, each, *of_nodes in zip(TABLES, places, *stores, strict=True):
            nodes, rows = each.find(np.arange(table.num_rows))
            found = [whole(store) for store in of_nodes]
            yield np.array([found[node][row] for node, row in zip(nodes, rows, strict=True)])

    with ExitStack() as stack:
        servers = [
            stack.enter_context(ShardServer(shard, [(network.server(f"node {n}", {0: "us"}), [0])], lambda error: None))
            for n, shard in enumerate(shards)
        ]
        lines = [network.client(f"node {node}", 0) for node in range(NODES)]
        formats = [ValueFormat(dimension)] * len(TABLES)
        source = stack.enter_context(Source(lines, formats, True, 64, begin, lambda: None))
        stack.callback(source.fail, Closed("the test"))
        yield World(
            source, TABLES, lambda: list(stored()),
            leave=lambda values, new: np.subtract(values, new, out=values),  # the gradient, at a learning rate of 1
            planned=lambda plan: RoutedPlan.of(plan, [each.route(plan.rows[t]) for t, each in enumerate(places)]),
            waits=True,
        )  # fmt: skip


MADE = {"memory": in_memory, "disk": on_disk, "nodes": on_nodes}
OTHER_ROWS = "computes with other rows of table"


def one_table(rows, batch):
    batch.plan = replace(batch.plan, rows=[batch.plan.rows[0], batch.plan.rows[1][:0]])
    LocalRows.write(rows, batch)


def kept(rows, batch):
    rows._backing, backing = IN_MEMORY, rows._backing
    LocalRows.write(rows, batch)
    rows._backing = backing


def doubled(rows, batch):
    for values in batch.staging.values:
        values *= 2
    RemoteRows.write(rows, batch)


def unpatched(rows, batch, safe_to_evict):
    pending = rows._pending[batch.batch_index]
    rows._wait(lambda: not pending.patches)


MISTAKES = {
    "it validates nothing": (in_memory, "validate", lambda *_: None, OTHER_ROWS),
    "it caches nothing": (in_memory, "computed", lambda *_: None, OTHER_ROWS),
    "it evicts what is still needed": (
        in_memory, "validate", lambda rows, batch, _: LocalRows.validate(rows, batch, batch.batch_index - 1), OTHER_ROWS
    ),
    "it writes one table": (in_memory, "write", one_table, OTHER_ROWS),
    "it writes nothing": (on_disk, "write", lambda rows, batch: rows._backing.release(batch.claim), OTHER_ROWS),
    "it ends no claim": (on_disk, "write", kept, "waits for ever"),
    "it is deaf": (on_disk, "abort", lambda rows: None, "still waits after `abort`"),
    "it never stops": (on_disk, "stops_before", lambda *_: False, "does not end when the user"),
    "it stops at once": (in_memory, "stops_before", lambda *_: True, "before anybody has asked"),
    "it uses no patch": (on_nodes, "validate", unpatched, OTHER_ROWS),
    "it adds gradients twice": (on_nodes, "write", doubled, OTHER_ROWS),
    "it hears no abort": (on_nodes, "abort", lambda rows: None, "still waits after `abort`"),
}  # fmt: skip


@pytest.mark.parametrize("made", MADE.values(), ids=MADE)
def test_sources_of_the_package_pass(tmp_path_factory, made):
    check_row_source(lambda: made(tmp_path_factory.mktemp("world")))


@pytest.mark.parametrize("made", [in_memory, on_disk])
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_so_do_those_that_validate_nothing(tmp_path_factory, made, mode):
    check_row_source(lambda: made(tmp_path_factory.mktemp("world"), mode))


@pytest.mark.parametrize("made, method, mistake, said", MISTAKES.values(), ids=MISTAKES)
def test_mistakes_are_found(tmp_path_factory, monkeypatch, made, method, mistake, said):
    if "wait" in said:  # then nothing else comes before it
        monkeypatch.setattr(row_sources, "PATIENCE", 0.6)
    wrong = type("Wrong", (RemoteRows if made is on_nodes else LocalRows,), {method: mistake})
    with pytest.raises(AssertionError, match=said):
        check_row_source(lambda: made(tmp_path_factory.mktemp("world"), exchange=wrong))


class Recording(Backing):
    """Claims are batch numbers; what is called is told, and whether pages of the batch would be held."""

    look_ahead = 3

    def __init__(self):
        self.told, self.held, self.aborted = [], set(), False

    def announce(self, batch_index, rows):
        assert [each.size for each in rows] == [12, 6]
        self.told.append(("announce", batch_index))
        return batch_index

    def fetch(self, claim):
        self.told.append(("fetch", claim))
        self.held.add(claim)

    def wait(self, claim):
        assert claim in self.held

    def release(self, claim):
        self.held.remove(claim)

    def abort(self):
        self.aborted = True


@pytest.mark.parametrize("mode", ["sync", "oac", "async-delta"])
def test_rows_are_announced_and_fetched_in_plan_order_and_held_until_they_are_written(monkeypatch, mode):
    backing, planner, waited = Recording(), ToyPlanner(batches=20), []
    stores = toy_stores(planner)

    def probe(stage, number):
        assert stage not in ("read", "upload", "compute", "write") or number in backing.held
        if stage == "wait":
            waited.append(number)

    monkeypatch.setattr(MemoryStore, "backing", backing)
    settings = {"mode": mode, "workers": WorkersConfig(plan=2, read=2, write=2)}
    *tables, _, _ = run_toy(planner, probe=probe, stores=stores, **settings)
    for stage in ("announce", "fetch"):
        assert [number for name, number in backing.told if name == stage] == list(range(20))
    assert sorted(waited) == list(range(20)) and backing.held == set() and not backing.aborted
    if mode != "async-delta":
        assert tuple(tables) == run_toy(ToyPlanner(batches=20), mode="sync", stores=toy_stores(planner))[:2]


def test_what_brings_rows_hears_of_an_error(monkeypatch):
    backing = Recording()
    monkeypatch.setattr(MemoryStore, "backing", backing)

    def probe(stage, number):
        if (stage, number) == ("compute", 4):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_toy(ToyPlanner(batches=20), probe=probe)
    assert backing.aborted


def test_stores_share_what_brings_their_rows(monkeypatch):
    stores = toy_stores(ToyPlanner())
    assert backing_of(stores) is backing_of([]) is IN_MEMORY
    stores[1].backing = Recording()
    both = backing_of(stores)
    assert both.look_ahead == 3 and LocalSource(stores, "oac").look_ahead == 3


def test_of_several_backings_a_batch_has_a_claim_of_each():
    class Own(Recording):
        def __init__(self, size):
            super().__init__()
            self.size = size

        def announce(self, batch_index, rows):
            assert [each.size for each in rows] == [self.size]
            return batch_index

        def metrics(self):
            return {"size": self.size}

    planner = ToyPlanner(batches=20)
    stores, backings = toy_stores(planner), [Own(12), Own(6)]
    for store, backing in zip(stores, backings, strict=True):
        store.backing = backing
    both = backing_of(stores)
    claim = both.announce(5, planner.assign_rows(planner.plan(5)).rows)
    both.fetch(claim)
    assert [backing.held for backing in backings] == [{5}, {5}]
    both.wait(claim)
    both.release(claim)
    assert not any(backing.held for backing in backings) and both.metrics() == {"size": 18}
    both.abort()
    assert all(backing.aborted for backing in backings)
    with pytest.raises(InputError, match="no table is known"):
        both.keep(np.zeros(1, np.int64))
