"""Which checkpoint a run over nodes goes on from, and what becomes of the others."""

from dataclasses import asdict
from types import SimpleNamespace

import numpy as np
import pytest

from marius_oac.checkpoint import Checkpoints
from marius_oac.compare import _difference
from marius_oac.errors import CheckpointError, ConfigError, InputError
from marius_oac.node_crew import NodeCrew
from marius_oac.node_saved import Joined, Layout, drop_after, layout_name, open_whole
from marius_oac.node_training import _before, name_of
from marius_oac.nodes.shards import Placement
from marius_oac.nodes.thread_group import ThreadGroup
from marius_oac.task import Road
from marius_oac.training_loop import Position, TrainingLoop
from tests.nodes.worlds import together

NOW = "2-now"  # the layout of the processes a and b
OPENED = "opened"


@pytest.fixture(autouse=True)
def opened(monkeypatch):
    monkeypatch.setattr(Layout, "open", lambda self, name: (OPENED, self.path.name, name))


def write(folder, layouts):
    """Folders of checkpoints: {layout: {node: [numbers]}}."""
    for layout, nodes in layouts.items():
        for node, numbers in nodes.items():
            for number in numbers:
                (folder / "nodes" / layout / node / "checkpoints" / f"{number:010d}").mkdir(parents=True)
            (folder / "nodes" / layout / node / "checkpoints").mkdir(parents=True, exist_ok=True)
    return folder


def chosen(folders, checkpoint=None):
    """What processes a and b, each with a folder of its own or both with one, go on from."""

    def choose(group):
        run = folders[group.rank]
        part = run / "nodes" / NOW / group.names[group.rank]
        return _before(run, part, SimpleNamespace(crew=NodeCrew(group)), checkpoint)

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
    write(tmp_path / "b", {NOW: {"b": []}})  # there, but killed before its first checkpoint
    assert chosen(runs) is None


def test_later_checkpoints_of_other_layouts_go_when_a_run_is_told_anew(tmp_path):
    run = write(tmp_path / "run", {NOW: {"a": [10, 20]}, "2-y": {"c": [10, 20, 30], "d": [10, 30]}})
    drop_after(run, 10, run / "nodes" / NOW)
    left = [f"{path.parents[1].name} {int(path.name)}" for path in run.glob("nodes/*/*/checkpoints/*")]
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
        open_whole(run, "best")
    (run / "nodes" / "1-b" / "b" / "checkpoints" / "best.json").write_text('{"name": "0000000020"}')
    assert open_whole(run, "best") == (OPENED, "1-b", "0000000020")
    assert open_whole(run, "0000000010") == (OPENED, "1-a", "0000000010")
    assert open_whole(run) == (OPENED, "1-b", "0000000030")


def test_other_nodes_take_over_no_more_than_is_asked_for():
    loop = object.__new__(TrainingLoop)
    loop.road, loop.config = Road([10]), SimpleNamespace(training=SimpleNamespace(epochs=1))
    with pytest.raises(ConfigError, match="epochs"):
        loop.take_over(SimpleNamespace(extra=asdict(Position(sequence=20))))


def test_rows_of_several_parts_are_compared_as_one():
    parts = [np.arange(6, dtype=np.float32).reshape(2, 3), np.ones((4, 3), np.float32)]
    ours, theirs = Joined(parts), Joined([parts[0], 2 * parts[1]])
    assert ours.size == 18
    found = _difference("rows", ours, theirs)
    assert (found.rows, found.differing, found.first, found.largest) == (6, 4, 2, 1.0)
