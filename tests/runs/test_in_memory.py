"""Checkpoints that stay in memory: when they are possible, and that they hold what one on disk does."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from marius_oac.errors import CheckpointError
from marius_oac.nodes.groups.thread_group import ThreadGroup
from marius_oac.runs.checkpoints.retention import Checkpoints
from marius_oac.runs.folder.position import Position
from marius_oac.runs.sharded import in_memory
from marius_oac.runs.sharded.checkpoint import PLACE, PLACEMENT, ShardedCheckpoint
from marius_oac.runs.sharded.in_memory import Held, InMemoryCheckpoint, hold
from marius_oac.runs.sharded.peers import ClusterPeers
from marius_oac.storage.contract import RowLayout
from marius_oac.storage.initial import RowInitial
from marius_oac.storage.mapped import MappedStore
from marius_oac.storage.memory import MemoryStore
from tests.nodes.worlds import together

LAYOUT = RowLayout(2, 1)
MIB = 1 << 20


class Plan:
    """In place of a memory plan."""

    def __init__(self, size):
        self.size = size

    def total(self, place, mapped=True):
        assert place == "host" and not mapped
        return self.size


def session_of(group, stores, plan=None):
    arrays = {PLACE: np.array([group.rank]), PLACEMENT: np.arange(4, dtype=np.int32) % group.size}
    task = SimpleNamespace(peers=ClusterPeers(group), memory_plan=plan, state_arrays=lambda: arrays)
    step = SimpleNamespace(dense_state=lambda: {"w": torch.arange(6.0).reshape(2, 3).t() + group.rank})
    return SimpleNamespace(task=task, step=step, stores=stores)


def store_of(rank, rows=5):
    store = MemoryStore("t", rows, LAYOUT, RowInitial("normal", 1.0, rank, "t"))
    store.commit(np.array([rank]), np.full((1, 3), rank, np.float32), rank)
    return store


def test_it_is_the_checkpoint_that_would_lie_on_disk(tmp_path):
    position = Position(device="cpu", batch_index=11)

    def work(group):
        store = store_of(group.rank)
        session = session_of(group, [store])
        held, folder = hold(session, 11, position.dump(), 0), Checkpoints(tmp_path / str(group.rank))
        state = session.step.dense_state(), position.dump()
        folder.save(11, [store], *state, 1, session.task.state_arrays())
        store.close()
        return held, folder.open()

    found = together(ThreadGroup.members(2), work)
    parts = [part for _, part in found]
    disk = ShardedCheckpoint.of(parts, parts)
    for held, _ in found:  # all know all parts
        memory = InMemoryCheckpoint.load(held.about[::-1])
        assert (memory.batch_index, memory.extra) == (disk.batch_index, disk.extra) == (11, position.dump())
        assert (memory.placement.nodes == disk.placement.nodes).all() and memory.tables() == disk.tables() == ["t"]
        assert memory.dense().keys() == disk.dense().keys()
        assert all(torch.equal(tensor, disk.dense()[name]) for name, tensor in memory.dense().items())
        for mine, theirs in zip(memory.parts, disk.parts, strict=True):
            assert mine.arrays().keys() == theirs.arrays().keys() and mine.tables() == theirs.tables()
            assert all(np.array_equal(array, mine.arrays()[name]) for name, array in theirs.arrays().items())
            assert mine.has(PLACE) and not mine.has("t.values") and theirs.has(PLACE)
            with pytest.raises(CheckpointError, match="has no t.keys"):
                mine.part("t", "keys")
            for one, other in zip(mine.table("t").read(slice(None)), theirs.table("t").read(slice(None)), strict=True):
                assert one.tobytes() == other.tobytes()
    for held, _ in found:
        held.close()
        assert not held._memory


def test_a_part_without_rows_is_none_of_its_parts():
    arrays = {PLACE: np.array([-1])}
    serves = Held(3, [], {}, {}, arrays), Held(3, [], {}, {}, {PLACE: np.array([0])})
    assert [part.about for part in InMemoryCheckpoint.load([each.part for each in serves]).parts] == [serves[1].part]


@pytest.mark.parametrize(
    ("free", "joining", "besides", "held"),
    [(2 * MIB, 0, 0, False), (3 * MIB, 0, 0, True), (5 * MIB, 2, MIB, True), (4 * MIB, 2, MIB, False)],
)
def test_rows_are_held_where_memory_has_room_for_them_once_more(free, joining, besides, held, monkeypatch, caplog):
    """And for the processes that join; the least that any process finds free counts."""
    monkeypatch.setattr(in_memory.cgroups, "free_memory", lambda: free)
    said = []
    monkeypatch.setattr(in_memory.logger, "info", said.append)
    rows = MIB // LAYOUT.row_bytes

    def work(group):
        with store_of(group.rank, rows) as store:
            plan = Plan(store.nbytes + besides) if group.rank else None
            found = hold(session_of(group, [store], plan), 3, {}, joining)
            if found:
                found.close()
            return found is not None

    assert together(ThreadGroup.members(2), work) == [held, held]
    assert said == ([] if held else [said[0]]) and all("a checkpoint on disk" in line for line in said)


@pytest.mark.parametrize("on_disk", [True, False])
def test_all_go_through_the_disk_where_one_of_them_must(on_disk, tmp_path, monkeypatch):
    """One has its rows in a file, or may not read the memory of another."""
    answers, closed = iter([True, True, True, on_disk]), []
    monkeypatch.setattr(Held, "close", lambda held: closed.append(held))
    monkeypatch.setattr(in_memory, "may_read", lambda pid: next(answers))

    def work(group):
        initial = RowInitial("normal", 1.0, 0, "t")
        file = on_disk and group.rank
        with MappedStore(tmp_path, "t", 5, LAYOUT, initial) if file else store_of(group.rank) as store:
            return hold(session_of(group, [store]), 3, {}, 0)

    assert together(ThreadGroup.members(2), work) == [None, None]
    assert len([*answers]) == (4 if on_disk else 0) and len(closed) == (0 if on_disk else 2)
