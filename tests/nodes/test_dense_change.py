"""A run goes on with another way for dense parameters to agree: which may follow which, and from what."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from benchmarks.nodes.trainers import Network, _Here
from marius_oac.config.ctr import CtrConfig
from marius_oac.config.dense import check_change, ignored_by_kstep
from marius_oac.config.link_prediction import Config
from marius_oac.errors import CheckpointError, ConfigError
from marius_oac.models.compute.dense_moments import (
    is_kstep,
    network_from_kstep,
    network_to_kstep,
    relations_from_kstep,
    relations_to_kstep,
)
from marius_oac.nodes.groups.thread_group import ThreadGroup
from marius_oac.nodes.sharded.dense import mean_of
from marius_oac.nodes.sharded.home import NodesHome
from marius_oac.runs.checkpoints.parts import ShardedCheckpoint
from marius_oac.runs.folder.folder import RunFolder
from marius_oac.runs.session import Session
from marius_oac.runtime import blas
from marius_oac.training.local import start_task
from tests.click_logs import generated_days
from tests.nodes.worlds import together

pytestmark = pytest.mark.usefixtures("forked_programs")
KINDS = {
    "allreduce": {},
    "kstep": {"k": 4, "warm_up": 0},
    "easgd": {"background": False, "sync_every": 3},
    "ma": {"background": False, "sync_every": 3},
    "bmuf": {"background": False, "sync_every": 3},
}
BETAS, OWNERS = (0.9, 0.99), ["optimizer.a", "optimizer.b"]


def adam_state(steps):
    """Of a tensor that gets gradients and of one that never does, after so many steps; and the gradients."""
    parameters = [torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(2))]
    optimizer = torch.optim.Adam(parameters, lr=0.01, betas=BETAS)
    for step in range(steps):
        parameters[0].grad = torch.tensor([1.0, -2.0, 0.5]) * (1 + step % 3)
        parameters[1].grad = torch.zeros(2)
        optimizer.step()
    state = {"network.a": parameters[0].detach(), "network.b": parameters[1].detach()}
    for name, parameter in zip("ab", parameters, strict=True):
        state |= {f"optimizer.{name}.{key}": each.clone() for key, each in optimizer.state[parameter].items()}
    return state


def test_the_second_moment_is_what_adam_divided_by():
    """Zhao et al.: hot-started with a trained model. Where there never was a gradient it is epsilon, never 0."""
    state = adam_state(20)
    found = network_to_kstep(state, OWNERS, BETAS, 1e-6)
    corrected = state["optimizer.a.exp_avg_sq"] / (1 - BETAS[1] ** 20)
    assert torch.equal(found["optimizer.a.merged_sq"], corrected) and torch.equal(
        found["network.a"], state["network.a"]
    )
    assert torch.equal(found["optimizer.a.exp_avg_sq"], corrected)
    torch.testing.assert_close(found["optimizer.a.exp_avg"], state["optimizer.a.exp_avg"] / (1 - BETAS[0] ** 20))
    assert found["optimizer.b.merged_sq"].tolist() == pytest.approx([1e-6, 1e-6])
    assert int(found["optimizer.a.step"]) == 20 and found["optimizer.a.step"].dtype == torch.int64
    assert is_kstep(found) and not is_kstep(state)
    again = network_from_kstep(found, OWNERS, BETAS)
    assert again.keys() == state.keys() and again["optimizer.a.step"].dtype == state["optimizer.a.step"].dtype
    for name in state:
        torch.testing.assert_close(again[name], state[name], atol=1e-6, rtol=1e-5)


def test_relations_have_their_moments_in_their_rows():
    table = torch.rand(4, 6)  # two floats of value, of m, of v
    found = relations_to_kstep({"relations": table}, 2, BETAS, 1e-6, 7)
    assert torch.equal(found["relations.optimizer.merged_sq"], table[:, 4:] / (1 - BETAS[1] ** 7))
    assert int(found["relations.optimizer.step"]) == 7
    found["relations"] = torch.cat([torch.ones(4, 2), torch.zeros(4, 4)], 1)
    again = relations_from_kstep(found, 2, BETAS, 7)
    torch.testing.assert_close(again["relations"], torch.cat([torch.ones(4, 2), table[:, 2:]], 1))
    assert again.keys() == {"relations"}


def clicks(kind="allreduce", **others):
    tree = {
        "task": "ctr",
        "data": {"train": "none.csv", "categorical": ["a"]},
        "nodes": {"dense": {"kind": kind, **others}},
    }
    return CtrConfig.build(tree)


def graph(kind="allreduce", optimizer="adam"):
    tree = {"data": {"path": "x"}, "training": {"optimizer": {"kind": optimizer}}, "nodes": {"dense": {"kind": kind}}}
    return Config.build(tree)


def test_which_changes_are_refused_by_name():
    for old in KINDS:
        for new in KINDS:
            check_change(clicks(old), clicks(new))
            check_change(graph(old), graph(new))
            if old != new and "kstep" in (old, new):
                with pytest.raises(
                    ConfigError, match=f"nodes.dense.kind: .* '{old}' and the optimizer 'adagrad'.*'{new}'"
                ):
                    check_change(graph(old, "adagrad"), graph(new, "adagrad"))
            else:
                check_change(graph(old, "adagrad"), graph(new, "adagrad"))
    check_change(clicks("kstep"), clicks("kstep", k=50, warm_up=0, beta2=0.9))
    with pytest.raises(ConfigError, match="nodes.dense.epsilon: is the second moment before the first step"):
        check_change(clicks("kstep"), clicks("kstep", epsilon=1e-4))


def test_what_k_step_does_not_look_at_is_named():
    assert ignored_by_kstep(clicks("kstep")) == ignored_by_kstep(graph("kstep", "adagrad")) == []
    config = clicks("kstep").replace("training.dense_optimizer.kind=sgd")
    assert [key for key, _ in ignored_by_kstep(config)] == ["training.dense_optimizer.kind"]
    config = clicks("kstep").replace("training.dense_optimizer.beta1=0.5", "training.dense_optimizer.epsilon=1e-4")
    assert [key.rpartition(".")[2] for key, _ in ignored_by_kstep(config)] == ["beta1", "epsilon"]


@pytest.mark.parametrize("count", [1, 2])
def test_a_key_that_is_ignored_is_refused_where_a_run_begins(tmp_path, monkeypatch, count):
    from marius_oac.nodes.training import cluster as node_training

    config = CtrConfig.build(generated_days(tmp_path, 30) | {"nodes": {"dense": {"kind": "kstep"}}})
    config = config.replace("training.dense_optimizer.kind=sgd")
    with pytest.raises(ConfigError, match="training.dense_optimizer.kind: 'sgd' is not used"):
        node_training._new_task(config, tmp_path / "run", SimpleNamespace(rank=count), [])


class World:
    """Trainers, as threads, with one kind of agreement; `saved` are checkpoints of all of them."""

    def __init__(self, config):
        self.config, self.network = config, Network()
        self.task = start_task(config)

    def play(self, first, last, saved=None, count=2, before=None):
        """Trains batches [first, last) on from `saved`, or from those of other trainers, `before`; what each has then,
        and the parameters it began with."""
        nodes = []
        for group in ThreadGroup.members(count):
            here = _Here(self.config, group, self.network)
            node = NodesHome(self.task, group, [1.0] + [0.0] * (count - 1), here.agreement, here.connect)
            node.rows.take = lambda *arguments: None
            node.abort = group.abort
            nodes.append(node)

        def work(node):
            with Session(node.task, home=node) as session:
                if saved:
                    node.load_dense(session.parts, saved[node.group.rank])
                if before:
                    node.take_over(ShardedCheckpoint.of(before, before), session.parts)
                begun = session.step.dense_state() | {f"kept.{name}": each for name, each in node.dense.state().items()}
                node.peers.wait()
                session.parts.segments.begin(first)
                session.pipeline.run(first, last)
                session.parts.segments.end(False)
                node.peers.wait()
                state, arrays = session.step.dense_state(), node.state_arrays()
                checkpoint = SimpleNamespace(
                    dense=lambda: state,
                    arrays_of=lambda begins: {name: each for name, each in arrays.items() if name.startswith(begins)},
                    files={f"{name}.npy": None for name in arrays},
                    batch_index=last,
                    path=Path(f"part {node.group.rank}"),
                    origin=None,
                    extra={},
                    checked=None,
                )
                found = begun, checkpoint, node.dense.metrics()
                node.peers.wait()
            return found

        with blas.one_thread_per_product():  # sessions of several threads end in any order
            return together(nodes, work)


@pytest.fixture(scope="module")
def days(tmp_path_factory):
    tree = generated_days(tmp_path_factory.mktemp("log"), 1500)
    return tree | {"pipeline": {"mode": "sync"}, "training": {"batch_size": 64}}


def config_of(days, kind):
    return CtrConfig.build(days | {"nodes": {"dense": {"kind": kind, **KINDS[kind]}}})


QUICK = {("allreduce", "kstep"), ("kstep", "allreduce"), ("ma", "easgd"), ("easgd", "kstep"), ("bmuf", "allreduce")}
PAIRS = [
    pytest.param(old, new, marks=() if (old, new) in QUICK else pytest.mark.slow) for old in KINDS for new in KINDS
]


@pytest.mark.parametrize("old, new", PAIRS)
def test_a_run_goes_on_with_any_other(days, old, new, capsys):
    """All begin with the same parameters: those that there were, or the mean of the replicas."""
    before = World(config_of(days, old)).play(0, 10)
    checkpoints = [checkpoint for _, checkpoint, _ in before]
    states = [checkpoint.dense() for checkpoint in checkpoints]
    told = capsys.readouterr().err
    after = World(config_of(days, new)).play(10, 20, checkpoints)
    began = [begun for begun, _, _ in after]
    if old == new:
        for mine, begun in zip(states, began, strict=True):
            assert all(torch.equal(mine[name], begun[name]) for name in mine)
        assert "note: dense" not in told + capsys.readouterr().err
        return
    assert f"note: dense parameters go on with '{new}'" in capsys.readouterr().err
    for name in (each for each in states[0] if each.startswith("network.")):
        mean = (states[0][name] + states[1][name]) / 2
        assert torch.equal(began[0][name], mean) and torch.equal(began[1][name], mean)
    at = torch.cat([each.reshape(-1) for name, each in began[0].items() if name.startswith("network.")])
    for name in ("kept.global", "kept.central"):  # what replicas are drawn to is where they are
        assert name not in began[0] or torch.equal(began[0][name], at)
    assert all(torch.isfinite(tensor).all() for _, one, _ in after for tensor in one.dense().values())
    assert is_kstep(began[0]) == (new == "kstep")
    if new in ("kstep", "allreduce"):  # what divides is the same for all
        for name in (each for each in began[0] if not each.startswith("kept.")):
            assert torch.equal(began[0][name], began[1][name])


def means(checkpoints):
    """What other trainers begin with: the oracle, from the parts as they are, element by element in float64."""
    states = [{name: each.numpy() for name, each in one.dense().items()} for one in checkpoints]
    return {
        name: np.mean([state[name].astype(np.float64) for state in states], 0).astype(each.dtype)
        if each.dtype.kind == "f"
        else each
        for name, each in states[0].items()
    }


OTHERS = [
    ("ma", "ma", 3, 2), ("easgd", "easgd", 3, 2), ("bmuf", "bmuf", 2, 3), ("kstep", "kstep", 3, 2),
    ("easgd", "ma", 2, 1), ("kstep", "allreduce", 3, 2), ("allreduce", "allreduce", 2, 3), ("allreduce", "bmuf", 2, 3),
]  # fmt: skip


@pytest.mark.parametrize("old, new, count, others", OTHERS)
def test_another_number_of_trainers_goes_on_from_the_mean_of_all(days, old, new, count, others, capsys):
    """Of parameters and of their optimizer's state; with what the old ones had in common where it is the same."""
    before = [checkpoint for _, checkpoint, _ in World(config_of(days, old)).play(0, 10, count=count)]
    expected, told = means(before), capsys.readouterr().err
    replicas = old != "allreduce"
    first, *rest = ([one.dense()[name] for name in sorted(one.dense())] for one in before)
    assert all(any(not torch.equal(*pair) for pair in zip(first, each, strict=True)) for each in rest) == replicas
    after = World(config_of(days, new)).play(10, 16, count=others, before=before)
    for begun, ended, _ in after:
        for name, each in begun.items():
            if not name.startswith("kept.") and (new == old or name.startswith("network.")):
                assert each.numpy().tobytes() == expected[name].tobytes(), name
        assert all(torch.isfinite(tensor).all() for tensor in ended.dense().values())
    begun, kept = after[0][0], before[0].arrays_of("dense_sync.")
    assert "kept.since" not in begun or int(begun["kept.since"]) == 0  # they have just met
    for name in ("global", "velocity", "central"):
        if name in KEPT[new]:
            at = np.concatenate([expected[each].reshape(-1) for each in begun if each.startswith("network.")])
            fresh = np.zeros_like(at) if name == "velocity" else at
            common = kept[f"dense_sync.{name}"] if new == old else fresh
            assert begun[f"kept.{name}"].numpy().tobytes() == common.tobytes()
            assert new != old or not np.array_equal(common, fresh)
    said = [line for line in (told + capsys.readouterr().err).splitlines() if "note: dense" in line]
    mean = ", from the mean of the trainers' replicas" if replicas else ""
    common = ", and with what they had in common" if new == old and KEPT[new] else ""
    changed = replicas or new != old
    assert said == [f"note: dense parameters go on with '{new}'{mean}{common}"] * changed


KEPT = dict.fromkeys(KINDS, ()) | {"easgd": ("central",), "bmuf": ("global", "velocity")}


def test_the_mean_of_equal_replicas_has_their_bits_and_whole_numbers_are_the_first_ones():
    value = torch.tensor([0.1, -3e-42, 1e30])
    parts = [SimpleNamespace(dense=lambda n=n: {"a": value, "b": torch.tensor(n)}, path=n) for n in range(3)]
    found = mean_of(parts)
    assert torch.equal(found["a"], value) and int(found["b"]) == 0 and found["a"].dtype == torch.float32
    for other in ({"a": value}, {"a": value[:2], "b": torch.tensor(1)}, {"a": value.double(), "b": torch.tensor(1)}):
        parts[2] = SimpleNamespace(dense=lambda other=other: other, path="third")
        with pytest.raises(CheckpointError, match="third: is damaged: its dense parameters are of another model"):
            mean_of(parts)


def test_v_of_a_hot_start_is_that_of_the_trained_model(days):
    """Without warm-up: the first steps move as far as Adam's, and a cold start's blow up."""
    before = World(config_of(days, "allreduce")).play(0, 15)
    checkpoints = [checkpoint for _, checkpoint, _ in before]
    (begun, ended, metrics), _ = World(config_of(days, "kstep")).play(15, 18, checkpoints)
    assert metrics["syncs"] == 1  # t goes on: step 16 is a merge of every fourth, the first two are not

    def moved(first, last):
        names = [name for name in first if name.startswith("network.")]
        return max(float((last[name] - first[name]).abs().max()) for name in names)

    assert moved(begun, ended.dense()) < 0.05
    (cold, end, _), _ = World(config_of(days, "kstep")).play(0, 3)
    assert moved(cold, end.dense()) > 1


def test_a_model_trained_with_k_step_is_evaluated(tmp_path, monkeypatch, command):
    """Its optimizer's state is another one than a single box has."""
    tree = generated_days(tmp_path, 200) | {"training": {"batch_size": 50}, "evaluation": {"every": 0}}
    (tmp_path / "config.yaml").write_text(json.dumps(tree))
    assert command("train", tmp_path / "config.yaml", "--out", tmp_path / "run")[0] == 0
    plain = command("eval", tmp_path / "run")
    checkpoint = type(RunFolder.open(tmp_path / "run").checkpoint())
    dense = checkpoint.dense

    def by_kstep(self):
        state = dense(self)
        moment = ".exp_avg_sq"
        owners = [name.removesuffix(moment) for name in state if name.endswith(moment)]
        return network_to_kstep(state, owners, BETAS, 1e-6)

    monkeypatch.setattr(checkpoint, "dense", by_kstep)
    assert command("eval", tmp_path / "run") == plain and plain[0] == 0


@pytest.mark.slow
def test_a_hot_start_as_a_user_types_it(tmp_path):
    """Trained with all-reduce, gone on with k-step to the letter of the paper, evaluated; processes of their own."""
    tree = generated_days(tmp_path, 1500) | {"training": {"batch_size": 64}}
    (tmp_path / "config.yaml").write_text(json.dumps(tree))

    def run(*argv):
        found = subprocess.run(
            [sys.executable, "-m", "marius_oac", *map(str, argv)], capture_output=True, text=True, timeout=240
        )
        assert found.returncode == 0, found.stderr
        return found.stderr + found.stdout

    run("train", tmp_path / "config.yaml", "--out", tmp_path / "run", "--local-nodes", 2)
    before = RunFolder.open(tmp_path / "run").summary()["test.auc"]
    change = ("--set", "training.epochs=2", "--set", "nodes.dense={kind: kstep, k: 5, warm_up: 0}")
    said = run("resume", tmp_path / "run", "--local-nodes", 2, *change)
    assert "note: dense parameters go on with 'kstep'\n" in said
    assert RunFolder.open(tmp_path / "run").summary()["test.auc"] > before - 0.05
    assert "auc" in run("eval", tmp_path / "run")


class OnAGpu:
    """Of a tensor there: it has no array, only a copy here has."""

    def __init__(self, tensor):
        self._tensor = tensor

    def cpu(self):
        return self._tensor

    def numpy(self):
        raise TypeError("can't convert cuda:0 device type tensor to numpy")


def test_a_checkpoint_takes_what_lies_on_a_gpu(days, monkeypatch):
    """What the dense layers agree with there, such as BMUF's global parameters."""
    real = NodesHome.state_arrays

    def state_arrays(node):
        there = {name: OnAGpu(tensor) for name, tensor in node.dense.state().items()}
        assert there
        monkeypatch.setattr(node.dense, "state", lambda: there)
        return real(node)

    monkeypatch.setattr(NodesHome, "state_arrays", state_arrays)
    World(config_of(days, "bmuf")).play(0, 4)
