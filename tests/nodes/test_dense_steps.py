"""What a batch's step asks of the agreement on dense parameters, of clicks and of graphs alike."""

from contextlib import ExitStack
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.nodes.trainers import train_together
from marius_oac.config.ctr import CtrConfig
from marius_oac.config.sections import OptimizerConfig
from marius_oac.data.batches.rank_slice import RankSlice
from marius_oac.models.compute.update import Update
from marius_oac.models.ctr.step import CtrStep
from marius_oac.models.link_prediction.relations import RelationTable
from marius_oac.models.link_prediction.step import LinkPredictionStep
from marius_oac.nodes.dense.kinds import make_dense_sync
from marius_oac.nodes.groups.thread_group import ThreadGroup
from marius_oac.training.local import start_task
from tests.click_logs import generated_days
from tests.graphs import tiny_config
from tests.models import batches as graph_batches
from tests.models.ctr import step_batches as click_batches
from tests.nodes.replicas import LocalSyncServers
from tests.nodes.worlds import together

CPU = torch.device("cpu")
TASKS = ["clicks", "graph"]
REPLICAS = ["kstep", "easgd", "ma", "bmuf"]


class Told:
    """A `DenseSync` that writes down what it is told; `moves` is what `reduce` answers, `own` its optimizer's class."""

    dispatched = False

    def __init__(self, moves=True, own=None):
        self.moves, self.own, self.calls, self.threads = moves, own, [], set()

    def optimizer(self, parameters):
        return self.own(self, parameters) if self.own else None

    def attach(self, parameters):
        self.calls.append("attach")

    def reduce(self, gradients, share):
        self.threads.add(torch.get_num_threads())
        self.calls.append(("reduce", share, sum(float(each.abs().sum()) for each in gradients) > 0))
        return self.moves

    def updated(self, batch_index):
        self.calls.append(("updated", batch_index))


class Own(torch.optim.SGD):
    """An optimizer of the agreement's own."""

    def __init__(self, told, parameters):
        super().__init__(parameters, lr=0.5)
        self.told = told
        told.sections = [(group["lr"], group["weight_decay"]) for group in self.param_groups]

    def step(self, closure=None):
        self.told.calls.append(("own", self.param_groups[0]["lr"]))
        super().step()


class World:
    """A task's step, and batches for it, over nodes."""

    def __init__(self, task, dense, network=None, **others):
        self.task = task
        if task == "clicks":
            self.batch = click_batches.draw("equal")
            config = click_batches.configure(**others)
            self.step = CtrStep(
                config, self.batch.layout, network or self.batch.network(), CPU, 1, Update.elsewhere(dense)
            )
        else:
            config = graph_batches.configure("distmult", **others)
            self.batch = graph_batches.draw(config, graph_batches.Shape())
            count = len(self.batch.relations)
            self.step = LinkPredictionStep(config, count, CPU, 1, self.batch.relations, Update.elsewhere(dense))

    def compute(self, timestamp, share=1.0, epoch=0):
        data = replace(self.batch.data, share=share, epoch=epoch)
        values = self.batch.values if self.task == "clicks" else [self.batch.values]
        self.step.compute([each.copy() for each in values], data, timestamp)

    def parameters(self):
        """Dense parameters without their optimizer's state."""
        state = self.step.dense_state()
        if self.task == "graph":
            return {"relations": state["relations"][:, :6]}
        return {name: tensor for name, tensor in state.items() if name.startswith("network.")}


def bits(state):
    return {name: tensor.numpy().tobytes() for name, tensor in state.items()}


@pytest.mark.parametrize("task", TASKS)
def test_every_batch_is_reduced_updated_and_told_of(task):
    told = Told()
    world = World(task, told)
    before = bits(world.parameters())
    world.compute(7, share=0.25)
    world.compute(8, share=0.25)
    assert told.calls == ["attach", ("reduce", 0.25, True), ("updated", 7), ("reduce", 0.25, True), ("updated", 8)]
    assert bits(world.parameters()) != before


@pytest.mark.parametrize("task", TASKS)
def test_torch_has_one_thread_beside_the_steps_own(task):
    """Two wait for each other actively: where processes share cores, for longer than a batch takes."""
    before, told = torch.get_num_threads(), Told()
    try:
        torch.set_num_threads(3)
        World(task, told).compute(0)
        assert told.threads == {1} and torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


class _Operations(TorchDispatchMode):
    """The names of torch's operations within the block."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(function.__name__)
        return function(*args, **(kwargs or {}))


def test_a_shards_relations_are_updated_without_torchs_threads():
    """The thread that serves has as many as the process, and torch would index in all of them."""
    values = np.ones((5, 6), np.float32)
    served = RelationTable(values, OptimizerConfig(), CPU, at_once=False).slice(0, values.size)
    before, gradient = served.values().copy(), np.zeros(values.size, np.float32)
    gradient[6:18] = 1.0
    with _Operations() as seen:
        served.apply(gradient, 0, 0)
    assert not [name for name in seen.names if "index" in name]
    moved = np.flatnonzero(served.values() != before)
    assert moved.tolist() == list(range(6, 18))


@pytest.mark.parametrize("task", TASKS)
def test_an_optimizer_of_the_agreements_own_makes_the_update(task):
    """And no other one; its rate decays with the epochs as the configuration says."""
    section = "training__dense_optimizer__decay" if task == "clicks" else "training__optimizer__decay"
    moved = {}
    for epoch in (0, 2):
        told = Told(own=Own)
        world = World(task, told, **{section: 0.5})
        before = world.parameters()
        world.compute(3, epoch=epoch)
        rate = told.calls[2][1]
        assert told.calls[0] == "attach" and [call[0] for call in told.calls[1:]] == ["reduce", "own", "updated"]
        after = world.parameters()
        moved[epoch] = rate, sum(float((after[name] - before[name]).abs().sum()) for name in after)
    (first, far), (third, near) = moved[0], moved[2]
    assert third == first * 0.25 and near == pytest.approx(far * 0.25, rel=1e-4)


@pytest.mark.parametrize("task", TASKS)
def test_without_an_update_parameters_and_moments_stay(task):
    told = Told(moves=False)
    world = World(task, told)
    before = bits(world.step.dense_state())
    world.compute(0, share=0.0)
    assert bits(world.step.dense_state()) == before and told.calls[-1] == ("updated", 0)


@pytest.mark.parametrize("kind", REPLICAS)
@pytest.mark.parametrize("task", TASKS)
def test_an_example_of_another_trainers_moves_no_replica(task, kind):
    """A share of 0 counts for nothing, wherever trainers have replicas, but as an iteration: all keep step."""
    (group,) = ThreadGroup.members(1)
    config = click_batches.configure(nodes__dense__kind=kind).nodes.dense
    servers = LocalSyncServers(1, 0.5)
    assign = [0] * 20
    dense = make_dense_sync(config, group, True, servers, lambda sizes: assign[: len(sizes)])
    decay = {"training__dense_optimizer__weight_decay": 0.1} if task == "clicks" else {}
    world = World(task, dense, **decay)
    world.compute(0)
    before, moments = bits(world.parameters()), bits(world.step.dense_state())
    world.compute(1, share=0.0)
    assert bits(world.parameters()) == before and dense.metrics()["iterations"] == 2
    after = bits(world.step.dense_state())
    changed = {name.rpartition(".")[2] for name in after if after[name] != moments[name]}
    assert changed <= {"step"}
    world.compute(2)
    assert bits(world.parameters()) != before


@pytest.mark.parametrize("task", TASKS)
def test_where_gradients_are_summed_it_takes_part(task):
    """Trainer 1 has no example: both are where one alone would be."""

    networks = [click_batches.draw("equal").network() for _ in range(3)]  # torch's random numbers have one source

    def work(group):
        dense = make_dense_sync(click_batches.configure().nodes.dense, group, True)
        world = World(task, dense, networks.pop())
        for timestamp in range(3):
            world.compute(timestamp, share=1.0 - group.rank)
        return bits(world.step.dense_state())

    alone = together(ThreadGroup.members(1), work)[0]
    assert together(ThreadGroup.members(2), work) == [alone, alone]


@pytest.mark.parametrize("kind", ["allreduce", "kstep", "ma"])
def test_batches_of_one_example_are_counted_once(tmp_path, kind):
    """Of two trainers one has it, and the other nothing: it is counted once, and nothing is divided by none."""
    tree = generated_days(tmp_path, 30)
    config = CtrConfig.build(tree | {"training": {"batch_size": 1}, "nodes": {"dense": {"kind": kind}}})
    task = start_task(config)
    rows = sum(each.rows for each in task.log.files)
    trained = train_together(config, 2)
    assert trained.dense["iterations"] == 2 * rows and np.isfinite(trained.train_loss)
    with ExitStack() as stack:
        planner = task.build(stack, CPU, 1).planner
        for share, examples in ((RankSlice(0, 2), 0), (RankSlice(1, 2), 1), (RankSlice(), 1)):
            planner.share = share
            assert planner.plan(0).examples == examples


def test_an_edge_of_another_trainers_is_not_counted(graph):
    config = tiny_config(graph, "training.batch_size=1", "training.negatives.chunks=1")
    planner = start_task(config).planner
    for share, examples in ((RankSlice(0, 3), 0), (RankSlice(2, 3), 1)):
        planner.share = share
        assert planner.plan(4).examples == examples


@pytest.mark.parametrize("task", TASKS)
def test_an_optimizer_of_the_agreements_own_has_rate_and_weight_decay_of_the_configuration(task):
    told = Told(own=Own)
    section = "training__dense_optimizer__" if task == "clicks" else "training__optimizer__"
    others = {f"{section}learning_rate": 0.125} | ({f"{section}weight_decay": 0.25} if task == "clicks" else {})
    World(task, told, **others)
    assert told.sections == [(0.125, 0.25 if task == "clicks" else 0.0)]
