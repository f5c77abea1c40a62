"""Which checkpoint a run over nodes goes on from, and what becomes of the others."""

import itertools
import shutil
from contextlib import nullcontext
from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
import pytest

from marius_oac.errors import CheckpointError, ConfigError, InputError
from marius_oac.nodes.groups.thread_group import ThreadGroup
from marius_oac.nodes.launch.cluster import Place
from marius_oac.nodes.launch.launch import local_cluster
from marius_oac.nodes.sharded.peers import ClusterPeers
from marius_oac.nodes.sharded.place import name_of
from marius_oac.nodes.training import cluster as node_training
from marius_oac.nodes.training.cluster import _before
from marius_oac.runs.checkpoints.parts import Joined, Layout, drop_after, layout_name, open_whole
from marius_oac.runs.checkpoints.pins import Missing
from marius_oac.runs.checkpoints.retention import START, Checkpoints, read_saved, write_saved
from marius_oac.runs.compare import _difference
from marius_oac.runs.folder.position import Position
from marius_oac.runs.loop import TrainingLoop
from marius_oac.runs.task import Schedule
from marius_oac.storage.placement import Placement
from marius_oac.training import local
from tests.graphs import tiny_config
from tests.nodes.worlds import together

NOW = "2-now"  # the layout of the processes a and b
OPENED = "opened"


@pytest.fixture(autouse=True)
def opened(monkeypatch):
    def open_parts(self, name, run, pinned=False, as_read=False):
        assert run == "id"
        return OPENED, self.path.name, name

    monkeypatch.setattr(Layout, "open", open_parts)


def write(folder, layouts, saved=None):
    """Folders of checkpoints: {layout: {node: [numbers]}}, and what all have saved, as said by the node."""
    for layout, nodes in layouts.items():
        for node, numbers in nodes.items():
            if node in (saved or {}):
                (folder / "nodes" / layout / node).mkdir(parents=True)
                write_saved(folder / "nodes" / layout / node, saved[node] and f"{saved[node]:010d}")
            for number in numbers:
                path = folder / "nodes" / layout / node / "checkpoints" / f"{number:010d}"
                path.mkdir(parents=True)
                (path / "manifest.json").write_text("")
            (folder / "nodes" / layout / node / "checkpoints").mkdir(parents=True, exist_ok=True)
    return folder


def chosen(folders, checkpoint=None):
    """What processes a and b, each with a folder of its own or both with one, go on from."""

    def choose(group):
        run = folders[group.rank]
        part = run / "nodes" / NOW / group.names[group.rank]
        return _before(run, part, SimpleNamespace(peers=ClusterPeers(group)), checkpoint, "id")

    one, other = together(ThreadGroup.members(2, names=["a", "b"]), choose)
    assert one == other
    return one


def test_a_layout_is_who_and_where():
    """Else a run would go on with the rows of another node, or begin anew, where names or their order change."""
    halves = Placement.by_number(2).nodes
    every = {layout_name(names, [1, 1], halves) for names in (["a", "b"], ["b", "a"], ["a", "c"])}
    every |= {layout_name(["a", "b"], [1, 2], halves), layout_name(["a", "b"], [1, 1], 1 - halves)}
    assert len(every) == 5 and all(name.startswith("2-") for name in every)
    nodes = [SimpleNamespace(name=name, processes=2) for name in ("a", "a-1")]
    places = [SimpleNamespace(cluster=SimpleNamespace(nodes=nodes), rank=rank) for rank in range(4)]
    assert len(set(map(name_of, places))) == 4


def test_the_newest_that_all_have_is_gone_on_from(tmp_path):
    run = write(tmp_path / "run", {NOW: {"a": [10, 20, 30], "b": [10, 20]}, "1-x": {"c": [15]}})
    assert chosen([run, run]) is None
    write(tmp_path / "run", {"3-y": {"c": [25], "d": [25, 35], "e": [25]}})  # 35 was never finished
    assert chosen([run, run]) == (OPENED, "3-y", "0000000025")
    assert chosen([run, run], "0000000015") == (OPENED, "1-x", "0000000015")
    assert chosen([run, run], "0000000020") is None
    assert chosen([run, run], "0000000099") is None  # which `restore` then misses


def test_progress_whose_parts_are_elsewhere_is_not_forgotten(tmp_path):
    runs = [write(tmp_path / name, {NOW: {name: [10]}, "3-y": {f"{name}2": [20]}}) for name in "ab"]
    with pytest.raises(InputError, match=r"node a, b: .*0000000020.*copy.*--checkpoint"):
        chosen(runs)
    assert chosen(runs, "0000000010") is None
    alone = [write(tmp_path / "lead", {}), write(tmp_path / "second", {"3-y": {"c": [20]}})]
    with pytest.raises(InputError, match="0000000020"):  # although the first process knows of nothing
        chosen(alone)


def test_a_run_does_not_start_again_because_a_disk_was_lost(tmp_path):
    runs = [write(tmp_path / "a", {NOW: {"a": [10, 20]}}), write(tmp_path / "b", {})]
    with pytest.raises(InputError, match="node b: its part of the run is gone"):
        chosen(runs)
    write(tmp_path / "b", {NOW: {"b": []}})  # what is in the part is gone
    with pytest.raises(InputError, match=r"node b: lacks checkpoint 0000000020.*--checkpoint start"):
        chosen(runs)
    assert chosen(runs, START) is None


def test_a_run_does_not_start_again_because_the_folder_of_all_parts_was_lost(tmp_path):
    """The first process has noted beside it what all had."""
    parts = {NOW: {"a": [10, 20], "b": [10, 20]}}
    run = write(tmp_path / "run", parts, dict.fromkeys("ab", 20))
    write_saved(run, "0000000020")
    assert chosen([run, run]) is None
    shutil.rmtree(run / "nodes")
    with pytest.raises(InputError, match=r"node a, b: lacks checkpoint 0000000020.*--checkpoint start"):
        chosen([run, run])
    assert chosen([run, run], START) is None


def test_where_an_earlier_version_noted_nothing_a_common_checkpoint_is_gone_on_from(tmp_path):
    runs = [write(tmp_path / "a", {NOW: {"a": [10, 20]}}), write(tmp_path / "b", {NOW: {"b": [10]}})]
    assert chosen(runs) is None
    shutil.rmtree(runs[0] / "nodes" / NOW / "a" / "checkpoints" / "0000000010")
    with pytest.raises(InputError, match=r"node b: lacks checkpoint 0000000020"):
        chosen(runs)


def test_a_node_that_lost_its_checkpoints_is_named_for_other_nodes_too(tmp_path):
    """Who goes on instead of them would remove what is left of theirs."""
    parts = {"c": [30], "d": [30], "e": []}
    run = write(tmp_path / "run", {NOW: {"a": [10], "b": [10]}, "3-y": parts}, dict.fromkeys("cde", 30))
    with pytest.raises(InputError, match=r"node a, b: checkpoint 0000000030 was written by other nodes.*not whole"):
        chosen([run, run])
    before = write(tmp_path / "before", {NOW: {"a": [10], "b": [10]}, "3-y": parts})
    with pytest.raises(InputError, match=r"node a, b: checkpoint 0000000030"):
        chosen([before, before])
    assert chosen([run, run], "0000000010") is None


def test_a_run_that_was_trained_without_nodes_goes_on_so(tmp_path):
    run = write(tmp_path / "run", {NOW: {"a": [], "b": []}})
    path = run / "checkpoints" / "0000000010"
    path.mkdir(parents=True)
    (path / "manifest.json").write_text("")
    for checkpoint in (None, START, "0000000010"):
        with pytest.raises(InputError, match="was trained without nodes"):
            chosen([run, run], checkpoint)


@dataclass(frozen=True)
class Node:
    """What a node has: checkpoints, and what it noted that all have."""

    names: tuple[int, ...] = ()
    saved: int = 0

    def after(self, step, number, keep):
        """When it has done a step of saving checkpoint `number`."""
        match step:
            case "write":
                return replace(self, names=(*self.names, number))
            case "note":
                return replace(self, saved=number)
            case "remove":
                return replace(self, names=self.names[-keep:])


def crashes(count, keep, numbers=(10, 20, 30)):
    """Every state that nodes can be in when all end while they save checkpoints one after the other."""
    states = {(Node(),) * count}
    at_rest = (Node(),) * count
    for number in numbers:
        written = [(at_rest[0], at_rest[0].after("write", number, keep))] * count
        states |= set(itertools.product(*written))
        all_have = written[0][1]
        noted = all_have.after("note", number, keep)
        states |= set(itertools.product((all_have, noted, noted.after("remove", number, keep)), repeat=count))
        at_rest = (noted.after("remove", number, keep),) * count
    return sorted(states, key=str)


DISASTERS = {
    "all of its checkpoints are gone": lambda node: replace(node, names=()),
    "the newest is gone": lambda node: replace(node, names=node.names[:-1]),
    "all is gone": lambda node: Node((), -1),
    "a backup was restored": lambda node: Node((10,), 10) if node.saved > 10 else node,
}


def gone_on_from(folder, state):
    """The number of the checkpoint that two nodes go on from, 0: they start; or what they say."""
    runs = []
    for name, node in zip("ab", state, strict=False):
        saved = {name: node.saved or ""} if node.saved >= 0 else None
        runs.append(write(folder / name, {NOW: {name: node.names}}, saved))
    try:
        assert chosen(runs) is None
    except InputError as error:
        return str(error)
    return max(set.intersection(*(set(node.names) for node in state)), default=0)


@pytest.mark.parametrize("keep", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_whatever_a_crash_while_saving_leaves_is_gone_on_from_and_whatever_is_lost_is_named(tmp_path, keep):
    """Model-checked: every state of two nodes that a crash can leave, alone and with a loss on one of the nodes."""
    states = crashes(2, keep)
    assert len(states) > 20 and (Node((10, 20), 10), Node((10,), 10)) in states
    for number, state in enumerate(states):
        found = gone_on_from(tmp_path / f"{number}", state)
        newest = max(max(node.names, default=0) for node in state)
        assert found == (newest if all(newest in node.names for node in state) else max(node.saved for node in state))
        for what, disaster in DISASTERS.items():
            hurt = (state[0], disaster(state[1]))
            said = gone_on_from(tmp_path / f"{number} {what}", hurt)
            noted = max(node.saved for node in hurt)
            assert said == found if hurt == state else isinstance(said, str) or said >= noted, (state, what, said)
            if isinstance(said, str):
                assert f"node b: lacks checkpoint {noted:010d}" in said


def test_a_crash_while_a_run_is_taken_back_stands_in_nobodys_way(tmp_path):
    """All note where the run is taken back to before any removes what is later."""
    whole = Node((10, 20, 30), 30)
    noted = replace(whole, saved=10)
    removing = (noted, Node((10, 20), 10), Node((10,), 10))
    states = [*itertools.product((whole, noted), repeat=2), *itertools.product(removing, repeat=2)]
    for number, state in enumerate(states):
        expected = max(set.intersection(*(set(node.names) for node in state)))
        assert gone_on_from(tmp_path / f"{number}", state) == expected


def test_later_checkpoints_of_other_layouts_go_when_a_run_is_told_anew(tmp_path):
    """And what names them: else a verification would miss them, and their nodes could not go on."""
    run = write(tmp_path / "run", {NOW: {"a": [10, 20]}, "2-y": {"c": [10, 20, 30], "d": [10, 30]}}, {"c": 30, "d": 10})
    (c, d) = (Checkpoints(run / "nodes" / "2-y" / name / "checkpoints") for name in "cd")
    c.mark_best("0000000020")
    d.mark_best("0000000010")
    drop_after(run, 10, run / "nodes" / NOW)
    noted = [(read_saved(part.folder.parent), part.best()) for part in (c, d)]
    assert noted == [(None, None), ("0000000010", "0000000010")]
    left = [f"{path.parents[1].name} {int(path.name)}" for path in run.glob("nodes/*/*/checkpoints/[0-9]*")]
    assert sorted(left) == ["a 10", "a 20", "c 10", "d 10"]


def test_several_processes_may_remove_the_same_checkpoints(tmp_path, monkeypatch):
    run = write(tmp_path / "run", {"1-y": {"c": [10, 20]}})
    real = Checkpoints.names
    monkeypatch.setattr(Checkpoints, "names", lambda self: [*real(self), "0000000030"])  # which another one removes
    drop_after(run, 10, run)
    assert [path.name for path in run.glob("nodes/*/*/checkpoints/*")] == ["0000000010"]


def test_the_best_is_that_of_the_newest_layout(tmp_path):
    run = write(tmp_path / "run", {"1-a": {"a": [10]}, "1-b": {"b": [20, 30]}})
    with pytest.raises(CheckpointError, match="no best"):
        open_whole(run, "id", "best")
    Checkpoints(run / "nodes" / "1-b" / "b" / "checkpoints").mark_best("0000000020")
    assert open_whole(run, "id", "best") == (OPENED, "1-b", "0000000020")
    assert open_whole(run, "id", "0000000010") == (OPENED, "1-a", "0000000010")
    assert open_whole(run, "id") == (OPENED, "1-b", "0000000030")
    for other in ("0000000099", ""):  # no name is none, and not the newest one's
        with pytest.raises(Missing, match=f"checkpoint '{other}': the parts of all nodes must lie here"):
            open_whole(run, "id", other)


def test_other_nodes_take_over_no_more_than_is_asked_for():
    loop = object.__new__(TrainingLoop)
    loop.schedule, loop.config = Schedule([10]), SimpleNamespace(training=SimpleNamespace(epochs=1))
    with pytest.raises(ConfigError, match="epochs"):
        loop.take_over(SimpleNamespace(extra=Position(batch_index=20).dump(), batch_index=20, path="checkpoint"))


def test_what_was_best_and_the_patience_of_other_nodes_are_theirs():
    """The best checkpoint is a part of their layout; with their patience a run would stop for it."""
    loop, calls = object.__new__(TrainingLoop), []
    before = Position(batch_index=10, best=0.5, best_epoch=1, worse=2, first_loss=1.5, device="cpu")
    checkpoint = SimpleNamespace(extra=before.dump(), batch_index=10, path="checkpoint")
    loop.schedule, loop.peers = Schedule([10, 20]), SimpleNamespace(wait=None)
    task = SimpleNamespace(
        take_over=lambda whole, parts: calls.append((whole, parts)), check_data_from=lambda batch: calls.append(batch)
    )
    loop.session = SimpleNamespace(task=task, home=task, parts="parts", stores=[], check_device=lambda device: device)
    loop.folder = SimpleNamespace(
        checkpoints=SimpleNamespace(keep_for=lambda stores: None), rewind=lambda batch, wait: calls.append(batch)
    )
    loop.take_over(checkpoint)
    assert calls == [10, (checkpoint, "parts"), 10]
    assert loop.position == replace(before, best=-1.0, best_epoch=0, worse=0)
    task.take_over = lambda whole, parts: int("no model")
    with pytest.raises(CheckpointError, match="checkpoint: invalid literal"):
        loop.take_over(checkpoint)


def test_rows_of_several_parts_are_compared_as_one():
    parts = [np.arange(6, dtype=np.float32).reshape(2, 3), np.ones((4, 3), np.float32)]
    ours, theirs = Joined(parts), Joined([parts[0], 2 * parts[1]])
    assert ours.size == 18 and ours.nbytes == 72  # what an export says of a table before it is written
    found = _difference("rows", ours, theirs)
    assert (found.rows, found.differing, found.first, found.largest) == (6, 4, 2, 1.0)


def test_who_is_started_again_is_not_taken_back_once_more(tmp_path, monkeypatch):
    """torchrun gives a node that it starts again the arguments that it had before."""
    (group,) = ThreadGroup.members(1)

    class Place:
        attempt = 1

    class Opened:
        def __enter__(self):
            return group

        def __exit__(self, *_):
            pass

    monkeypatch.setattr(node_training, "open_group", lambda place: Opened())
    monkeypatch.setattr(node_training, "_resumed", lambda *arguments: "went on")
    with pytest.raises(InputError, match="--checkpoint 0000000010: a node was lost and started again"):
        node_training.resume_on_nodes(tmp_path, Place, checkpoint="0000000010")
    assert node_training.resume_on_nodes(tmp_path, Place) == "went on"
    Place.attempt = 0
    assert node_training.resume_on_nodes(tmp_path, Place, checkpoint="0000000010") == "went on"


def test_disk_space_is_that_of_the_processs_own_folder(tmp_path, graph, monkeypatch):
    """Not of the current one, which may hold millions of files that have nothing to do with the run."""
    (group,) = ThreadGroup.members(1)
    cluster = local_cluster(1)
    monkeypatch.setenv("MARIUS_OAC_SECRET", "0" * 64)
    monkeypatch.setattr(node_training, "open_group", lambda place: nullcontext(group))
    seen = []

    def plan(task, path):
        seen.append(path)
        raise InputError("enough")

    monkeypatch.setattr(local, "plan_memory", plan)
    with pytest.raises(InputError, match="enough"):
        node_training.train_on_nodes(tiny_config(graph), Place(cluster, cluster.nodes[0], 0, 0, None), tmp_path / "run")
    (folder,) = seen
    assert folder.parts[:-2] == (tmp_path / "run" / "nodes").parts and folder.name == "node0"
