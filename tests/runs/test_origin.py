"""A checkpoint of another run, or of another moment, is never taken for one of this run, however whole its files."""

import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from marius_oac import train
from marius_oac.errors import CheckpointError, InputError
from marius_oac.nodes.groups.thread_group import ThreadGroup
from marius_oac.nodes.sharded.peers import ClusterPeers
from marius_oac.nodes.training.cluster import _opened
from marius_oac.runs.checkpoints.origin import Origin, apart, new_token
from marius_oac.runs.checkpoints.parts import PACKING, PLACE
from marius_oac.runs.checkpoints.retention import Checkpoints
from marius_oac.runs.folder.folder import RunFolder
from marius_oac.runs.loop import TrainingLoop
from marius_oac.runs.verification import verify
from marius_oac.storage.placement import Placement
from tests.graphs import tiny_config
from tests.hostile import reseal_checkpoint
from tests.nodes.worlds import together
from tests.run_folders import contents, says
from tests.runs.test_checkpoint import table

NAME, LAYOUT = "0000000010", "2-ab"


@pytest.fixture(scope="module")
def pair(graph, tmp_path_factory):
    """Two runs of one graph that differ in the learning rate; not to be changed."""
    folder = tmp_path_factory.mktemp("pair")
    keys = ("training.epochs=1", "evaluation.max_edges=10", "checkpoint.every_batches=10", "checkpoint.keep=2")
    for name, rate in (("one", 0.1), ("other", 0.2)):
        train(tiny_config(graph, *keys, f"training.optimizer.learning_rate={rate}"), folder / name)
    return folder


@pytest.fixture
def mixed(pair, tmp_path):
    """The first run with the second one's checkpoints."""
    run = shutil.copytree(pair / "one", tmp_path / "run")
    shutil.rmtree(run / "checkpoints")
    shutil.copytree(pair / "other" / "checkpoints", run / "checkpoints")
    return run


COMMANDS = {
    "eval": (), "export": ("--out", "exported"), "predict": ("--head", "n1", "--relation", "r0"),
    "resume": ("--set", "training.epochs=2"),
}  # fmt: skip


@pytest.mark.parametrize("words", COMMANDS)
def test_no_command_takes_a_checkpoint_of_another_run(mixed, tmp_path, monkeypatch, command, words):
    monkeypatch.chdir(tmp_path)
    before = contents(mixed)
    code, _, err = command(words, mixed, *COMMANDS[words])
    assert code == 2 and says(err, f"{mixed}/checkpoints/", ": is a checkpoint of another run")
    assert contents(mixed) == before and not (tmp_path / "exported").exists()


def test_nor_do_compare_and_verify(mixed, pair, command):
    code, _, err = command("compare", pair / "one", mixed)
    assert code == 2 and says(err, "is a checkpoint of another run")
    names = Checkpoints(mixed / "checkpoints").names()
    code, out, _ = command("verify", mixed)
    assert code == 2 and len(names) == len(out) - 1 > 1
    for name, line in zip(names, out[1:], strict=True):
        assert line == f"  damaged: {mixed}/checkpoints/{name}: is a checkpoint of another run"


def test_a_foreign_checkpoint_beside_the_runs_own_is_refused_and_its_own_offered(pair, tmp_path, command):
    run = shutil.copytree(pair / "one", tmp_path / "run")
    first, last = Checkpoints(run / "checkpoints").names()
    shutil.rmtree(run / "checkpoints" / last)
    shutil.copytree(pair / "other" / "checkpoints" / last, run / "checkpoints" / last)
    code, _, err = command("resume", run, "--set", "training.epochs=2")
    assert code == 2 and says(err, "is a checkpoint of another run; the one before it: --checkpoint " + first)
    assert command("resume", run, "--checkpoint", first)[0] == 0 and verify(run).sound


def test_a_copy_of_a_run_and_of_its_own_checkpoints_is_this_run(pair, tmp_path, command):
    run = shutil.copytree(pair / "one", tmp_path / "elsewhere")
    shutil.rmtree(run / "checkpoints")
    shutil.copytree(pair / "one" / "checkpoints", run / "checkpoints")
    assert verify(run).sound and command("eval", run)[0] == 0


def test_a_checkpoint_of_another_batch_under_this_name_is_refused(pair, tmp_path, command):
    run = shutil.copytree(pair / "one", tmp_path / "run")
    first, last = Checkpoints(run / "checkpoints").names()
    shutil.rmtree(run / "checkpoints" / last)
    shutil.copytree(run / "checkpoints" / first, run / "checkpoints" / last)
    for words in (("eval", run), ("resume", run, "--set", "training.epochs=2")):
        code, _, err = command(*words)
        assert code == 2 and says(err, f"{last}/manifest.json: is that of checkpoint {first}")
    assert not verify(run).sound


def test_two_runs_of_one_configuration_have_the_same_bits_and_other_names(graph, tmp_path):
    """The random names decide nothing."""
    runs = [train(tiny_config(graph, "training.epochs=1", "evaluation.every=0"), tmp_path / name) for name in "ab"]
    one, other = (RunFolder.open(run.path) for run in runs)
    assert one.about.id != other.about.id and one.about.id == one.checkpoint().origin.run
    ours, theirs = (folder.checkpoint() for folder in (one, other))
    assert ours.digest == theirs.digest and ours.origin.session != theirs.origin.session
    assert (ours.origin.part, ours.origin.number, ours.origin.parts) == ("", 0, 1)


class Nodes:
    """A run of nodes a and b with a checkpoint of each; all of one moment, unless a test makes it otherwise."""

    def __init__(self, graph, tmp_path):
        self.folder = RunFolder.create(tmp_path / "run", tiny_config(graph), "abc", over_nodes=True)
        self.id, self.session = self.folder.about.id, new_token()
        for number in (0, 1):
            self.save(number)

    def path(self, number):
        return self.folder.path / "nodes" / LAYOUT / "ab"[number]

    def save(self, node, alike=True, name=10, dense=1.0, where=None, extra=None, shards=None, **origin):
        """Saves a part, in the place of what is there."""
        path = where or self.path(node)
        shutil.rmtree(path, ignore_errors=True)
        if node and not where:
            about = self.folder.config, "abc"
            RunFolder.create(path, *about, over_nodes=True, id=origin.get("run", self.id))
        part = Checkpoints(path / "checkpoints", run=self.id, part=f"{LAYOUT}/{'ab'[node]}")
        known = {"session": self.session, "number": node, "parts": 2} | origin
        part.origin = part.origin.model_copy(update=known)
        nodes = Placement.by_number(2, 8).nodes if shards is None else shards
        arrays = {"nodes.placement": nodes, PACKING: np.zeros(3), PLACE: np.array([node])}
        part.save(name, [table()], {"w": torch.tensor([dense])}, extra or {}, 1, arrays, alike=alike)

    def said(self):
        """What `eval` and `resume` would be told, and a verification's lines."""
        with pytest.raises(CheckpointError) as error:
            RunFolder.open(self.folder.path).checkpoint()
        return str(error.value), verify(self.folder.path).damaged


@pytest.fixture
def nodes(graph, tmp_path):
    return Nodes(graph, tmp_path)


def test_parts_of_one_moment_are_one_checkpoint(nodes):
    assert RunFolder.open(nodes.folder.path).checkpoint().batch_index == 10
    assert not [line for line in verify(nodes.folder.path).damaged if "checkpoint" in line]


WRONG = {
    "of another run": ({"run": "0" * 16}, "is a checkpoint of another run"),
    "an older part of this name": ({"session": "0" * 16}, "was saved at another start of the run than that of part 0"),
    "of another number of parts": ({"parts": 3}, "is one of another number of parts than that of part 0"),
    "the same part twice": ({"number": 0}, "is one of 2 parts, and here are the parts 0, 0"),
    "other dense parameters": ({"dense": 2.0}, "has other dense parameters than part 0, which had the same"),
    "other placement": ({"shards": np.arange(8, dtype=np.int32)[::-1] % 2},
                        "has another placement of rows than that of part 0"),
    "another best value": ({"extra": {"best": 0.5}}, "has another loss or best value than that of part 0"),
    "patience": ({"extra": {"worse": 1}}, "has another loss or best value than that of part 0"),
    "first loss": ({"extra": {"first_loss": 1.0}}, "has another loss or best value than that of part 0"),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_a_part_that_does_not_belong_to_the_others_is_named(nodes, what):
    change, why = WRONG[what]
    nodes.save(1, **change)
    said, damaged = nodes.said()
    assert why in said and any(why in line and "/checkpoints/" in line for line in damaged), (said, damaged)


def test_dense_parameters_that_differed_may_differ(nodes):
    """Replicas, and running statistics of batch norms."""
    for number in (0, 1):
        nodes.save(number, alike=False, dense=float(number))
    assert RunFolder.open(nodes.folder.path).checkpoint().batch_index == 10
    assert not [line for line in verify(nodes.folder.path).damaged if "checkpoint" in line]


def test_two_nodes_whose_folders_are_exchanged_are_named(nodes):
    one, other = nodes.path(0), nodes.path(1)
    (one / "checkpoints").rename(one / "aside")
    (other / "checkpoints").rename(one / "checkpoints")
    (one / "aside").rename(other / "checkpoints")
    said, damaged = nodes.said()
    assert f"is the part of {LAYOUT}/b, and lies where that of {LAYOUT}/a belongs" in said
    for mine, its in ("ab", "ba"):
        assert f"{nodes.path('ab'.index(mine))}/checkpoints/{NAME}: is the part of {LAYOUT}/{its}" in "\n".join(damaged)


def test_a_nodes_folder_of_another_run_is_named(nodes):
    nodes.save(1, run="0" * 16)
    damaged = verify(nodes.folder.path).damaged
    assert f"{nodes.path(1)}/run.json: is of another run than that of the first node" in damaged


def test_a_node_that_has_lost_its_run_json_is_named(nodes):
    (nodes.path(1) / "run.json").unlink()
    assert f"{nodes.path(1)}/run.json: is missing" in verify(nodes.folder.path).damaged
    assert RunFolder.open(nodes.folder.path).checkpoint()  # it needs none


def test_with_parts_elsewhere_those_at_hand_are_compared(nodes):
    shutil.rmtree(nodes.path(1))
    assert not [line for line in verify(nodes.folder.path).damaged if "checkpoint" in line]


def loop_of(path, group, id):
    """What `restore` needs of a loop, on node a or b."""
    folder = SimpleNamespace(checkpoints=Checkpoints(path, run=id, part=f"{LAYOUT}/{'ab'[group.rank]}"))
    loop = object.__new__(TrainingLoop)
    loop.folder, loop.peers = folder, ClusterPeers(group)
    return loop


@pytest.mark.parametrize("what", ["an older part of this name", "other dense parameters", "patience"])
def test_processes_that_each_open_their_own_part_compare_them(nodes, what):
    """No process sees the other's folder; all of them refuse."""
    nodes.save(1, **WRONG[what][0])
    errors = []

    def restore(group):
        try:
            loop_of(nodes.path(group.rank) / "checkpoints", group, nodes.id).restore(None)
        except CheckpointError as error:
            errors.append(str(error))

    together(ThreadGroup.members(2, names=["a", "b"]), restore)
    assert errors == [f"{nodes.path(1)}/checkpoints/{NAME}: {WRONG[what][1]}"] * 2


@pytest.mark.parametrize("of", [{}, {"run": "0" * 16}])
def test_no_process_opens_the_folder_of_a_node_of_another_run(nodes, of):
    nodes.save(1, **of)
    errors = []

    def go_on(group):
        task, config = SimpleNamespace(fingerprint="abc", run_files=dict), nodes.folder.config
        home = SimpleNamespace(peers=ClusterPeers(group), group=group, task=task, config=config)
        about = SimpleNamespace(rank=group.rank), home, nodes.id
        try:
            with _opened(nodes.folder.path, nodes.path(group.rank), *about):
                pass
        except InputError as error:
            errors.append(str(error).removeprefix("node b: "))

    together(ThreadGroup.members(2, names=["a", "b"]), go_on)
    assert errors == [f"{nodes.path(1)}/run.json: is of another run than that of the first node"] * 2 * bool(of)


def facts(number, **changes):
    known = Origin(run="1" * 16, session="2" * 16, number=number, parts=3).model_dump()
    known |= {"sequence": 7, "placement": "p", "dense": "d", "agreed": [], "trains": True}
    return known | changes


def test_parts_that_only_serve_have_no_dense_parameters_of_their_own():
    parts = [facts(number, alike=True) for number in range(3)]
    assert apart(parts) is None
    parts[0] |= {"trains": False, "dense": "other"}
    assert apart(parts) is None
    parts[2]["dense"] = "third"
    assert apart(parts)[0] == 2 and "than part 1, which had the same" in apart(parts)[1]


def test_all_parts_are_needed_where_they_should_be_there():
    parts = [facts(0), facts(2)]
    assert apart(parts, complete=False) is None and apart(parts) == (
        0,
        "is one of 3 parts, and here are the parts 0, 2",
    )
    assert apart([facts(0), facts(0)], complete=False)


def test_a_checkpoint_that_no_run_has_saved_is_no_runs(tmp_path):
    Checkpoints(tmp_path).save(10, [table()], {}, {}, keep=1)
    with pytest.raises(CheckpointError, match="is a checkpoint of another run"):
        Checkpoints(tmp_path, run="1" * 16).open()


@pytest.mark.parametrize("change", [{"run": "x"}, {"session": ""}, {"number": -1}, {"parts": 0}, {"alike": 1}])
def test_what_no_origin_can_be_is_refused(tmp_path, change):
    Checkpoints(tmp_path).save(10, [table()], {}, {}, keep=1)
    reseal_checkpoint(tmp_path / NAME, lambda manifest: manifest["origin"].update(change))
    (key,) = change
    with pytest.raises(CheckpointError, match=f"manifest.json: is damaged: origin.{key}"):
        Checkpoints(tmp_path).open()
    reseal_checkpoint(tmp_path / NAME, lambda manifest: manifest.pop("origin"))
    with pytest.raises(CheckpointError, match="origin is missing"):
        Checkpoints(tmp_path).open()


def test_a_part_that_has_lost_its_run_json_gets_it_again_if_its_checkpoints_fit(nodes):
    path, about = nodes.path(1), (nodes.folder.config, "abc", {})
    text = json.loads((path / "run.json").read_text())
    (path / "run.json").unlink()
    for wrong in ({"run": "0" * 16}, {"part": f"{LAYOUT}/a"}):
        nodes.save(1, where=nodes.folder.path / "other" / LAYOUT / "b", **wrong)
        other = nodes.folder.path / "other" / LAYOUT / "b"
        with pytest.raises(CheckpointError, match="another run" if "run" in wrong else "is the part of"):
            RunFolder.written_anew(other, *about, nodes.id)
        assert not (other / "run.json").exists()
    assert RunFolder.written_anew(path, *about, nodes.id).about.id == nodes.id
    assert json.loads((path / "run.json").read_text()) == text and verify(nodes.folder.path).sound


def test_a_damaged_run_json_of_a_node_damages_no_checkpoint(nodes):
    """Nor does that of the run; and a node's folder can be verified by itself."""
    assert verify(nodes.path(1)).sound
    for path in (nodes.path(1), nodes.folder.path):
        (path / "run.json").write_text("{")
        damaged = verify(nodes.folder.path).damaged
        assert any(line.startswith(f"{path}/run.json: ") for line in damaged)
        assert not [line for line in damaged if "checkpoint" in line]
