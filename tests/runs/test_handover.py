"""Rows of a checkpoint that other processes go on with: each file is read once, and every row comes to its owner."""

import threading
from contextlib import ExitStack

import numpy as np
import pytest

from marius_oac.errors import InputError
from marius_oac.nodes.groups.thread_group import ThreadGroup
from marius_oac.nodes.sharded.peers import ClusterPeers
from marius_oac.nodes.spread import handover as handovers
from marius_oac.nodes.spread import numbered
from marius_oac.nodes.spread.contract import Part
from marius_oac.nodes.spread.handover import Handover
from marius_oac.nodes.spread.key_move import shard_of_rows
from marius_oac.nodes.spread.spread import spread
from marius_oac.runs.checkpoints.retention import Checkpoints
from marius_oac.runtime.files import blocks, checked
from marius_oac.runtime.machine.binding import UNBOUND
from marius_oac.storage.memory import MemoryStore
from marius_oac.storage.placement import FEWEST_SHARDS, IdPlaces, Placement
from marius_oac.storage.snapshots import SavedTable
from marius_oac.tasks.ctr.task import start_ctr_task
from marius_oac.tasks.link_prediction.task import GraphTask
from tests.click_logs import ctr_config, small_log
from tests.graphs import tiny_config
from tests.nodes.worlds import together
from tests.run_folders import flip_a_byte

DRAW = np.random.default_rng(6)
TO = [  # processes of the group, ranks of those that carry rows, and weights of these
    (1, [0], [1.0]),
    (2, [0, 1], [1.0, 1.0]),
    (4, [0, 1, 2, 3], [1.0, 1.0, 1.0, 1.0]),
    (5, [1, 2, 4], [3.0, 1.0, 2.0]),
]


def placement(weights):
    places = np.random.default_rng(len(weights)).choice(len(weights), FEWEST_SHARDS, p=np.array(weights) / sum(weights))
    return Placement(places, len(weights))


class Clicks:
    """Tables of keys, some of which wait for their rows, and some are dropped."""

    def __init__(self, folder, memory):
        config = ctr_config(small_log(folder / "day.parquet"), "keys.admit_after=2", "keys.drop_after=1",
                            "keys.capacity=20000", *memory)  # fmt: skip
        self.tables = start_ctr_task(config)[0].tables()
        self.keys = DRAW.integers(-(2**62), 2**62, 6000)

    def fill(self, rows, tables):
        """Keys of this process's shards get rows, if they come twice; a tenth is dropped again."""
        for number, table in enumerate(rows._key_tables):
            vocabularies = (self.keys % 5 + number).astype(np.uint16)
            own = (
                rows.part.placement.nodes[shard_of_rows(vocabularies, self.keys, rows.part.placement.num_shards)]
                == rows.part.own
            )
            mine, vocabularies = self.keys[own], vocabularies[own]
            checks = (mine & 0xFFFF).astype(np.uint32)
            for times in (1 + (mine % 3 > 0), 1 + (mine % 7 == 0)):
                found = table.find(vocabularies, mine, checks)
                table.admit(vocabularies, mine, checks, found, times, distinct=True)
                table.seen_in(found[mine % 10 > 0], int(times[0]) + 2)
            table.drop_unseen(2)

    def named(self, rows, stores):
        """Of each key what is kept of it, and its row, by vocabulary and key; and the keys in order."""
        found, order = {}, []
        for table, store in zip(rows._key_tables, stores, strict=True):
            arrays = table.arrays()
            free = set(arrays["index.free"].tolist())
            kept = np.array([row for row in range(arrays["index.keys"].size) if row not in free], np.int64)
            values, timestamps = np.empty((kept.size, store.layout.width), np.float32), np.empty(kept.size, np.int64)
            store.read(kept, values, timestamps)
            for place, row in enumerate(kept.tolist()):
                key = store.name, int(arrays["index.vocabularies"][row]), int(arrays["index.keys"][row])
                about = int(arrays["index.checks"][row]), int(arrays["last_file"][row])
                found[key] = *about, values[place].tobytes(), int(timestamps[place])
                order.append(key)
            for place, key in enumerate(arrays["waiting.keys"].tolist()):
                about = int(arrays["waiting.checks"][place]), int(arrays["seen"][place])
                found["waits", store.name, int(arrays["waiting.vocabularies"][place]), key] = about
            found.setdefault("dropped", 0)
            found["dropped"] += int(arrays["dropped"][0])
        return found, order


class Graph:
    """A table of numbered rows."""

    def __init__(self, graph, memory):
        self.tables = GraphTask(tiny_config(graph, *memory), graph).tables()

    def fill(self, rows, tables):
        pass

    def named(self, rows, stores):
        found, order = {}, []
        for store in stores:
            every = np.arange(store.num_rows)
            values, timestamps = np.empty((every.size, store.layout.width), np.float32), np.empty(every.size, np.int64)
            store.read(every, values, timestamps)
            ids = rows.places.ids_on(rows.part.own, every).tolist()
            found |= {(store.name, each): (values[row].tobytes(), int(timestamps[row])) for row, each in enumerate(ids)}
        return found, order


def saved(world, folder, before, name):
    """Parts of a checkpoint, and what each of them has."""
    parts, had = [], []
    for place in range(before.num_nodes):
        with ExitStack() as stack:
            rows = spread(world.tables, Part(before, place))
            where = folder / name / str(place)
            where.mkdir(parents=True)
            tables = rows.make_tables(stack, where, UNBOUND)
            stores = [table.store for table in tables]
            world.fill(rows, tables)
            for store in stores:
                for first in range(0, store.num_rows, 100):
                    size = min(100, store.num_rows - first)
                    values = DRAW.normal(size=(size, store.layout.width)).astype(np.float32)
                    store.load(first, DRAW.integers(0, 2**40, size), values)
            checkpoints = Checkpoints(where / "checkpoints")
            checkpoints.save(10, stores, {}, {}, 1, rows.state_arrays())
            parts.append(checkpoints)
            had.append(world.named(rows, stores))
    return parts, had


def taken(world, parts, before, group, carriers, after, folder):
    """What one process has then."""
    place = carriers.index(group.rank) if group.rank in carriers else None
    rows = spread(world.tables, Part(after, place))
    with ExitStack() as stack:
        opened = [each.open(as_read=True) for each in parts]
        folder.mkdir(exist_ok=True)
        tables = [] if place is None else rows.make_tables(stack, folder, UNBOUND)
        stores = [table.store for table in tables]
        rows.take(opened, before, stores, Handover(group, carriers, ClusterPeers(group).agreed))
        return None if place is None else world.named(rows, stores)


@pytest.fixture
def small_blocks(monkeypatch):
    """So that small tables have many blocks; returns the bytes that each thread reads."""
    read = {}
    real = checked.CheckedFile._checked

    def reads(self, block, end):
        name = threading.current_thread().name
        read[name] = read.get(name, 0) + end - block * self.block_bytes
        return real(self, block, end)

    monkeypatch.setattr(blocks, "BLOCK_BYTES", 256)
    monkeypatch.setattr(handovers, "ROWS_PER_BLOCK", 299)
    monkeypatch.setattr(checked.CheckedFile, "_checked", reads)
    return read


@pytest.mark.parametrize("memory", [(), ("storage.memory=1MiB", "storage.path=pages")], ids=["memory", "disk"])
@pytest.mark.parametrize("kind", ["clicks", "graph"])
def test_every_row_comes_to_its_owner_and_is_read_once(kind, memory, graph, tmp_path, small_blocks):
    memory = tuple(each.replace("pages", str(tmp_path / "pages")) for each in memory)
    world = Clicks(tmp_path, memory) if kind == "clicks" else Graph(graph, memory)
    before = placement([1.0, 2.0, 1.0])
    parts, had = saved(world, tmp_path, before, "before")
    every = {key: about for found, _ in had for key, about in found.items() if key != "dropped"}
    assert len(every) >= 199
    for number, (size, carriers, weights) in enumerate(TO):
        after = placement(weights)
        small_blocks.clear()
        members = ThreadGroup.members(size)

        def work(group, number=number, carriers=carriers, after=after):
            return taken(world, parts, before, group, carriers, after, tmp_path / f"{number} {group.rank}")

        now = [each for each in together(members, work) if each is not None]
        assert {key: about for found, _ in now for key, about in found.items() if key != "dropped"} == every
        assert sum(len(found) - ("dropped" in found) for found, _ in now) == len(every)
        if kind == "clicks":
            assert [found["dropped"] for found, _ in now] == [
                sum(found["dropped"] for found, _ in had), *[0] * (len(now) - 1)]  # fmt: skip
            order = [key for _, keys in had for key in keys]
            for place, (found, keys) in enumerate(now):
                assert keys == [key for name in dict.fromkeys(name for name, *_ in order) for key in order
                                if key[0] == name and key in found]  # fmt: skip
                owners = shard_of_rows(
                    np.array([key[1] for key in keys], np.uint16), np.array([key[2] for key in keys]), FEWEST_SHARDS
                )
                assert (after.nodes[owners] == place).all()
        if not memory and kind == "clicks":
            whole = sum(each.stat().st_size for part in parts for each in part.folder.rglob("*.npy"))
            assert max(small_blocks.values()) <= 1.2 * whole / len(carriers)


@pytest.mark.parametrize("memory", [(), ("storage.memory=1MiB", "storage.path=pages")], ids=["memory", "disk"])
def test_each_process_reads_its_own_numbered_rows(memory, graph, tmp_path, small_blocks, monkeypatch):
    memory = tuple(each.replace("pages", str(tmp_path / "pages")) for each in memory)
    monkeypatch.setattr(numbered, "ROWS_PER_BLOCK", 7)  # less than a shard has
    monkeypatch.setattr(Handover, "send", lambda *_: pytest.fail("rows were exchanged"))
    world, before = Graph(graph, memory), few_shards([1, 0, 2, 1, 0, 2, 2, 1])
    parts, had = saved(world, tmp_path, before, "before")
    every = {key: about for found, _ in had for key, about in found.items()}
    monkeypatch.setattr(MemoryStore, "_fill", lambda self: pytest.fail("rows that are loaded were filled before"))
    table = parts[0].open().table("entities")
    read = []
    kind, real = type(table), type(table).read
    monkeypatch.setattr(kind, "read", lambda self, which: read.append(which.size) or real(self, which))
    for number, nodes in enumerate(([0] * 8, [1, 0, 3, 1, 0, 2, 2, 3], [0, 2, 0, 2, 0, 3, 0, 4])):
        after, carriers = few_shards(nodes), [1, 2, 3, 5, 6][: max(nodes) + 1]  # 1 of the last has no shard
        members = ThreadGroup.members(7)

        def work(group, number=number, carriers=carriers, after=after):
            where = tmp_path / f"{number} {group.rank}"
            return taken(world, parts, before, group, carriers, after, where)

        now = [each for each in together(members, work) if each is not None]
        assert [len(found) for found, _ in now] == [
            IdPlaces(len(every), after).num_rows(place) for place in range(len(carriers))
        ]
        assert {key: about for found, _ in now for key, about in found.items()} == every
        assert sum(read) == len(every) and max(read) <= 7
        read.clear()


def few_shards(nodes):
    return Placement(np.array(nodes), max(nodes) + 1)


@pytest.mark.parametrize("kind", ["clicks", "graph"])
def test_a_timestamp_that_is_none_is_refused(kind, graph, tmp_path, small_blocks, monkeypatch):
    world, before = Clicks(tmp_path, ()) if kind == "clicks" else Graph(graph, ()), placement([1.0, 1.0])
    parts, _ = saved(world, tmp_path, before, "before")
    real = SavedTable.read
    monkeypatch.setattr(SavedTable, "read", lambda self, which: (real(self, which)[0], real(self, which)[1] - 2**41))
    (alone,) = ThreadGroup.members(1)
    with pytest.raises(InputError, match="has a timestamp that is none"):
        taken(world, parts, before, alone, [0], placement([1.0]), tmp_path / "now")


def test_damage_in_own_rows_that_one_process_finds_ends_all(graph, tmp_path, small_blocks):
    world, before, after = Graph(graph, ()), few_shards([0, 1, 0, 1]), few_shards([0, 1, 2, 0])
    parts, _ = saved(world, tmp_path, before, "before")
    path = next(parts[0].folder.rglob("entities.values.npy"))
    with path.open("r+b") as file:
        file.seek(-9, 2)  # in the third shard, which the third process reads
        old = file.read(1)
        file.seek(-9, 2)
        file.write(bytes([old[0] ^ 1]))
    with pytest.raises(InputError, match=rf"node rank 2: .*{path.name}: is damaged: its checksum"):
        together(
            ThreadGroup.members(3),
            lambda group: taken(world, parts, before, group, [0, 1, 2], after, tmp_path / f"now {group.rank}"),
        )


def test_damage_that_one_process_finds_ends_all(tmp_path, small_blocks):
    world, before, after = Clicks(tmp_path, ()), placement([1.0, 1.0]), placement([1.0, 1.0, 1.0])
    parts, _ = saved(world, tmp_path, before, "before")
    path = max(parts[1].folder.rglob("*.values.npy"), key=lambda each: each.stat().st_size)
    flip_a_byte(path)  # in its middle, which the second process reads
    with pytest.raises(InputError, match=rf"node rank 1: .*{path.name}: is damaged: its checksum"):
        together(ThreadGroup.members(3), lambda group: taken(
            world, parts, before, group, [0, 1, 2], after, tmp_path / f"now {group.rank}"))  # fmt: skip


@pytest.mark.parametrize("count", [0, 1, 2, 3, 599, 600, 601, 899, 900, 901])
def test_blocks_are_all_rows_and_as_many_for_each(count, monkeypatch):
    monkeypatch.setattr(handovers, "ROWS_PER_BLOCK", 100)
    every = [list(Handover(group, [0, 2, 3], lambda read: read()).blocks(count)) for group in ThreadGroup.members(4)]
    assert len(set(map(len, every))) == 1 and not any(map(len, every[1]))
    assert [row for own in every for block in own for row in block] == list(range(count))
    assert max((len(block) for own in every for block in own), default=0) <= 100


def test_parts_that_lack_rows_of_their_placement_are_refused(graph, tmp_path):
    world, other = Graph(graph, ()), placement([1.0, 2.0, 3.0])
    parts, _ = saved(world, tmp_path, placement([3.0, 2.0, 1.0]), "before")
    (alone,) = ThreadGroup.members(1)
    with pytest.raises(InputError, match="entities has not the rows that belong to each node"):
        taken(world, parts, other, alone, [0], placement([1.0]), tmp_path / "now")
