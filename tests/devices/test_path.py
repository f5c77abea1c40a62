"""What a GPU runs, on CPU tensors: every task through the device that copies, its steps on tensors.

`oac` has the bits of `sync` there, and after 20 batches the rows of the compiled kernels to 1e-5. Under streams that
see every operation (tests/pipeline/stream_order.py) nothing that a step does lacks an order. With
MARIUS_OAC_TEST_DEVICE=cuda all but the last runs on a GPU, whose streams are held for random whiles.
"""

import sys
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from marius_oac.data.graphs.graph import Graph
from marius_oac.kernels.gpu import choice
from marius_oac.models.compute import user_code as own_code
from marius_oac.pipeline.runner import Pipeline
from marius_oac.runs import loop as training_loop
from marius_oac.runs import session
from marius_oac.runs.session import Session
from marius_oac.tasks.ctr.task import start_ctr_task
from marius_oac.tasks.link_prediction.task import GraphTask
from marius_oac.tasks.node_classification.task import NodeClassificationTask
from marius_oac.training import local as training
from tests.click_logs import ctr_config, small_log
from tests.copying import copying
from tests.device import DEVICE
from tests.graphs import jitter, tiny_config, workers
from tests.kernels.interpreted import by_kernels, quiet  # noqa: F401 (a fixture)
from tests.models.own_parts import EXAMPLE
from tests.pipeline.stream_order import Order, OrderedDevice, watch
from tests.tasks.test_encoders import ENCODERS
from tests.tasks.test_node_classification import configure, labelled  # noqa: F401 (a fixture)
from tests.training.test_same_bits import MODELS, OPTIMIZERS, VARIANTS

BATCHES = 20
ON_DEVICE = f"device={DEVICE}"
TOLERANCE = 1e-5 if DEVICE.type == "cpu" else 1e-4  # a GPU adds up in other orders
OWN = [f"model.decoder={EXAMPLE}:SimplE", f"training.loss.kind={EXAMPLE}:SquaredHinge",
       f"training.optimizer.kind={EXAMPLE}:Momentum", "training.optimizer.learning_rate=0.03"]  # fmt: skip
NETWORKS = ["lr", "fm", "deepfm", "dlrm", "dcnv2", "dien", "youtubednn"]


@dataclass
class Found:
    bits: tuple
    tables: list
    losses: list


def run(task, prepare=None, batches=BATCHES):
    """Trains the first batches; returns fingerprints, values of all rows, and losses in plan order.

    `prepare(pipeline)` is called before."""
    losses = {}
    with Session(task, probe=jitter(3)) as session:
        if prepare:
            prepare(session.pipeline)
        session.report_to(lambda result: losses.update({result.batch_index: result.loss}))
        assert session.pipeline.run(0, batches) == batches
        bits = (*(store.fingerprint() for store in session.stores), session.dense_fingerprint())
        return Found(bits, [values_of(store) for store in session.stores], [losses[n] for n in range(batches)])


def values_of(store):
    rows = np.arange(store.num_rows)
    values, timestamps = np.empty((rows.size, store.layout.width), np.float32), np.empty(rows.size, np.int64)
    store.read(rows, values, timestamps)
    return values


def check(monkeypatch, make, batches=BATCHES):
    """`make(*overrides)` makes the task."""
    task = make("pipeline.mode=sync")
    tolerance = TOLERANCE if task.config.storage.dtype == "float32" else 2**-6  # bfloat16: two steps of its rounding
    with choice.forced(False):
        compiled = run(task, batches=batches)
    monkeypatch.setattr(Pipeline, "_make_device", copying)
    sync = run(make("pipeline.mode=sync", ON_DEVICE), batches=batches)
    found = run(make("pipeline.mode=oac", "pipeline.in_flight=4", *workers(2), ON_DEVICE), batches=batches)
    assert found.bits == sync.bits and found.losses == sync.losses
    assert_ordered(monkeypatch, make, batches)
    encoder = getattr(task.config, "encoder", None)
    if DEVICE.type != "cpu" and encoder and encoder.dropout:  # a GPU draws other masks
        return
    assert np.allclose(sync.losses, compiled.losses, rtol=10 * tolerance)
    for table, expected in zip(sync.tables, compiled.tables, strict=True):
        assert np.abs(table - expected).max() <= tolerance * max(1.0, np.abs(expected).max())


def assert_ordered(monkeypatch, make, batches=BATCHES):
    """Nothing that a step or the pipeline does to a tensor lacks an order, and no step waits for the device."""
    if DEVICE.type != "cpu":  # what is seen are CPU tensors
        return
    order, fused = Order(), choice.chosen(DEVICE)  # kernels of Triton are not seen
    watch(monkeypatch, order)
    real = torch.Tensor.tolist

    def tolist(tensor):  # of a CPU's tensor no operation, which could be seen
        assert not order.is_on_device(tensor), "a step waits for the device"
        return real(tensor)

    monkeypatch.setattr(torch.Tensor, "tolist", tolist)

    def prepare(pipeline):
        pipeline.device = OrderedDevice(order, pipeline)
        pipeline.bind = lambda stage: pipeline.device._streams.enter_thread()

    run(make("pipeline.mode=oac", "pipeline.in_flight=4", *workers(2)), prepare, batches)
    assert order.found == {} and order.unfinished == 0 and order.accesses > (20 if fused else 100) * batches
    # A block is checked where it is made, if that is on a CPU; on a GPU it isn't.
    assert {file for stream, file in order.waits if stream == "compute"} <= {"block.py"}, "a step waits for the device"
    assert {file for stream, file in order.waits if stream == "default"} == {"stages.py"}, "who writes reads the loss"


GRAPHS = {**{f"{name} {kind}": MODELS[name] + OPTIMIZERS[kind] for name, kind in [
    ("distmult", "sgd"), ("complex", "adagrad"), ("transe-l1", "rowwise_adagrad"), ("transe-l2", "adagrad"),
    ("rotate", "adam"), ("dot", "adagrad"), ("complex", "adam"),
]}, **VARIANTS,
 "ragged chunks, decay": ["training.negatives.chunks=3", "training.optimizer.decay=0.5"],
 "parts of your own": OWN}  # fmt: skip


def few(names, quick):
    """Those of `quick` in the quick run, the others in the slow one."""
    return [each if each in quick else pytest.param(each, marks=pytest.mark.slow) for each in names]


@pytest.mark.device
@pytest.mark.usefixtures("all_code_is_known")
@pytest.mark.parametrize("name", few(GRAPHS, ("complex adagrad", "all nodes", "parts of your own")))
def test_links(monkeypatch, graph, name):
    check(monkeypatch, lambda *more: GraphTask(tiny_config(graph, *GRAPHS[name], *more), graph))


@pytest.mark.skipif(DEVICE.type != "cpu", reason="there Triton compiles, and test_links takes its kernels")
@quiet
@pytest.mark.parametrize("name", few([*GRAPHS, *ENCODERS], ("complex adagrad",)))
def test_links_in_the_kernels_of_a_gpu(monkeypatch, graph, by_kernels, name):  # noqa: F811
    """The same steps, validation and checks as on a GPU, by Triton's interpreter."""
    if "own" in name:
        monkeypatch.setattr(own_code, "is_known", lambda text: True)
    overrides = GRAPHS.get(name) or ENCODERS[name]
    check(monkeypatch, lambda *more: GraphTask(tiny_config(graph, *overrides, *more), graph), batches=3)


@pytest.mark.device
@pytest.mark.parametrize("network", few(NETWORKS, ("dcnv2", "dien")))
def test_clicks(monkeypatch, tmp_path, network):
    log = small_log(tmp_path / "log.parquet", rows=700)
    check(monkeypatch, lambda *more: start_ctr_task(ctr_config(log, *more, network=network))[0])


@pytest.mark.slow
@pytest.mark.skipif(DEVICE.type != "cpu", reason="there Triton compiles, and test_clicks takes its kernels")
@quiet
@pytest.mark.parametrize("network", ["dcnv2", "dien"])
def test_clicks_in_the_kernels_of_a_gpu(monkeypatch, tmp_path, by_kernels, network):  # noqa: F811
    log = small_log(tmp_path / "log.parquet", rows=700)
    check(monkeypatch, lambda *more: start_ctr_task(ctr_config(log, *more, network=network))[0], batches=3)


@pytest.mark.device
@pytest.mark.parametrize("name", few(ENCODERS, ("two layers", "bfloat16")))
def test_encoders(monkeypatch, graph, name):
    check(monkeypatch, lambda *more: GraphTask(tiny_config(graph, *ENCODERS[name], *more), graph))


@pytest.mark.device
def test_classes_of_nodes(monkeypatch, labelled):  # noqa: F811
    check(monkeypatch, lambda *more: NodeClassificationTask(configure(labelled, *more), Graph.open(labelled / "graph")))


@pytest.mark.device
@pytest.mark.parametrize("disk", [(), ("storage.memory=20KiB", "storage.look_ahead=2")], ids=["memory", "disk"])
def test_a_run_goes_on_to_the_same_bits_after_an_error(monkeypatch, graph, tmp_path, disk):
    monkeypatch.setattr(Pipeline, "_make_device", copying)
    config = tiny_config(graph, "checkpoint.every_batches=7", *disk, ON_DEVICE)

    def probe(stage, batch_index):
        if (stage, batch_index) == ("download", 30):
            raise OSError("injected")

    whole = training.train(config, tmp_path / "whole").summary
    with pytest.raises(OSError, match="injected"):
        training.train(config, tmp_path / "run", probe=probe)
    found = training.resume(tmp_path / "run").summary
    assert found["training.batches"] == whole["training.batches"]
    names = [name for name in whole if name.endswith("sha256") or name == "test.filtered.mrr"]
    assert len(names) > 2 and [found[name] for name in names] == [whole[name] for name in names]


@pytest.mark.parametrize("task", ["links", "clicks"])
def test_buffers_are_what_the_memory_plan_says(monkeypatch, graph, tmp_path, task):
    """A device's buffers have room for the most rows that a batch may have, whatever batches have."""
    monkeypatch.setattr(Pipeline, "_make_device", copying)
    if task == "links":
        task = GraphTask(tiny_config(graph, "pipeline.in_flight=3"), graph)
    else:
        task = start_ctr_task(ctr_config(small_log(tmp_path / "log.parquet"), "pipeline.in_flight=3"))[0]
    with Session(task) as session:
        session.pipeline.run(0, 9)
        pool = session.pipeline.device._resident
        held = pool.take()
        buffer = held.block.nbytes
    here = sys.modules[type(task).__module__]
    memory = sys.modules[getattr(here, "plan_memory", getattr(here, "plan_ctr_memory", None)).__module__]
    monkeypatch.setattr(memory, "pick_device", lambda name: torch.device("cuda:0"))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1 << 40, 1 << 40))
    plan = task.plan_memory(tmp_path)
    (planned,) = [need.num_bytes for need in plan.needs if (need.place, need.what) == ("device", "batches")]
    assert 3 < pool.made <= 6 and planned >= 6 * buffer


@pytest.mark.parametrize(
    "before, here", [("NVIDIA H200", "cpu"), ("cpu", "NVIDIA H200"), ("NVIDIA H100", "NVIDIA H200")]
)
def test_a_run_goes_on_on_another_device_only_if_that_is_said(monkeypatch, graph, tmp_path, command, before, here):
    for module in (session, training_loop):
        monkeypatch.setattr(module, "name_of_device", lambda device: before)
    config = tiny_config(graph, "device=auto", "checkpoint.every_batches=7")
    path = training.train(config, tmp_path / "run").path
    for module in (session, training_loop):
        monkeypatch.setattr(module, "name_of_device", lambda device: here)
    argv = ("resume", path, "--set", "training.epochs=3")
    note = f"note: the run was trained on {before!r} and goes on on {here}: its last bits may differ"
    if "cpu" in (before, here):
        files = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
        code, _, err = command(*argv)
        assert code == 2 and err[-1].endswith(
            f"device: the run was trained on {before!r} and would go on on {here}, which changes its last bits; "
            "to do so: --set device=cpu"
        )
        assert files == {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
        argv = (*argv, "--set", "device=cpu")
    code, _, err = command(*argv)
    assert code == 0 and note in err
    assert note not in command("resume", path, "--set", "training.epochs=4")[2]
