"""The memory plan: each term against what is really held, the whole against the peak of a process, limits respected."""

import ctypes
import dataclasses
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.graphs.memory_plan import BOUND, make_graph, measure
from marius_oac.data.batches.rank_slice import RankSlice, with_share
from marius_oac.data.graphs.graph import Graph
from marius_oac.errors import InputError
from marius_oac.runs.home import Home
from marius_oac.runs.memory.plan import PLACES, MemoryPlan, Need
from marius_oac.runs.session import Session
from marius_oac.runtime.machine import cgroups
from marius_oac.tasks.ctr.build import make_ctr_network, tables_of
from marius_oac.tasks.ctr.task import start_ctr_task
from marius_oac.tasks.link_prediction import memory as graph_memory
from marius_oac.tasks.link_prediction.build import make_planner
from marius_oac.tasks.link_prediction.memory import plan_memory
from marius_oac.tasks.link_prediction.task import GraphTask
from marius_oac.training import local
from tests.click_logs import ctr_config, small_log
from tests.graphs import tiny_config
from tests.run_folders import says, write_config

MODELS = [
    ["model.decoder=complex"], ["model.decoder=transe", "model.norm=2"], ["model.decoder=rotate"],
    ["model.decoder=dot"], ["training.negatives.all=true"], ["model.reciprocal=true", "training.negatives.all=true"],
    ["training.optimizer.kind=adam", "model.reciprocal=true"], ["training.optimizer.kind=sgd"],
    ["storage.dtype=bfloat16"],
]  # fmt: skip
BIG = ["model.dimension=64", "training.batch_size=400", "training.negatives.count=100", "training.negatives.chunks=4"]


def need(plan, what, place="host"):
    return next(one.num_bytes for one in plan.needs if (one.what, one.place) == (what, place))


@pytest.mark.parametrize("overrides", MODELS, ids=lambda overrides: " ".join(overrides))
def test_terms_are_what_is_held(graph, tmp_path, overrides):
    config = tiny_config(graph, *BIG, *overrides, "pipeline.in_flight=3")
    plan = plan_memory(config, graph, tmp_path)
    with Session(GraphTask(config, graph)) as session:
        session.pipeline.run(0, session.planner.batches_per_epoch)
        scratch = sum(buffer.nbytes for buffer in session.step._handwritten._scratch._buffers.values())
        (store,) = session.stores
        pool = session.pipeline.device._resident
        held = pool.take()
        buffer = sum(each.nbytes for part in (held.rows, held.timestamps, held.values) for each in part)
        relations = sum(tensor.nbytes for tensor in session.step.dense_state().values())
        assert need(plan, "compute") == pytest.approx(scratch + 2 * relations, rel=0.05)
        assert store.nbytes == need(plan, "tables")
        assert pool.made <= 6 and need(plan, "batches") > 6 * buffer * 0.7


def test_tables_take_what_their_rows_do_or_what_storage_allows(graph, tmp_path):
    config = tiny_config(graph, *BIG)
    with Session(GraphTask(config, graph)) as session:
        assert session.home.table_bytes() == sum(store.nbytes for store in session.stores)
    on_disk = config.replace("storage.memory=1MiB", f"storage.path={tmp_path}")
    assert Home(GraphTask(on_disk, graph)).table_bytes() == 1 << 20


def test_more_of_anything_needs_more(graph, tmp_path):
    plain = tiny_config(graph, *BIG, "pipeline.in_flight=4")

    def total(*overrides):
        plan = plan_memory(plain.replace(*overrides), graph, tmp_path)
        return plan.total("host") - need(plan, "this program")

    for key in (
        "model.dimension=128",
        "training.batch_size=800",
        "pipeline.in_flight=40",
        "training.negatives.count=900",
    ):
        assert total(key) > total(), key
    for key in ("pipeline.mode=sync", "pipeline.mode=async", "storage.dtype=bfloat16", "evaluation.filtered=false"):
        assert total(key) < total(), key
    assert total("pipeline.order=arrival") > total()
    more, plan = (plan_memory(config, graph, tmp_path) for config in (plain.replace("checkpoint.keep=9"), plain))
    assert need(more, "checkpoints", "disk") == need(plan, "checkpoints", "disk") * 11 / 4


@pytest.mark.parametrize("parts, levels", [(1, 1), (4, 2), (5, 3)])
def test_copies_of_virtual_parts_are_counted_over_nodes(graph, tmp_path, parts, levels):
    """Each part's rows, and a sum over the batch's rows for each level of the tree."""
    config = tiny_config(graph, f"nodes.parts={parts}")

    def planned(here):
        needs = plan_memory(config, graph, tmp_path, here).needs
        return [need.num_bytes for need in needs if need.what == "virtual parts"]

    planner, row = make_planner(config, graph), 4 * config.model.dimension
    rows = [with_share(planner, RankSlice(part, parts)).plan(0).rows[0].size for part in range(parts)]
    assert planned(here=7) == [row * sum(rows) + levels * planner.plan(0).rows[0].size * (row + 1)]
    assert planned(here=None) == []


def test_what_fits_is_printed(capsys):
    needs = (
        Need("host", "tables", 3 << 30, "model.dimension"),
        Need("host", "edges", 9 << 30, "data.path", mapped=True),
        Need("disk", "checkpoints", 1 << 20, "checkpoint.keep"),
    )
    MemoryPlan(needs, {"host": 4 << 30, "disk": 1 << 30}).announce()  # mapped pages need not fit
    assert capsys.readouterr().err == (
        "memory plan            host          disk\n"
        "  tables           3.00 GiB\n"
        "  edges            9.00 GiB\n"
        "  checkpoints                       1 MiB\n"
        "  together        12.00 GiB         1 MiB\n"
        "  free             4.00 GiB      1.00 GiB\n"
    )


def test_small_parts_are_one_row_and_any_plan_fits_a_narrow_terminal():
    small = [Need("host", "edges", 100_000, None), Need("pages", "keys", 1 << 19, None)]
    large = [Need(place, "tables", 9 << 40, None) for place in PLACES]
    lines = str(MemoryPlan((*small, *large), dict.fromkeys(PLACES, 1 << 44))).splitlines()
    assert lines[0].split() == ["memory", "plan", "host", "storage.path", "device", "disk"]
    assert [line.split()[0] for line in lines[1:]] == ["tables", "the", "together", "free"]
    assert lines[2].split() == ["the", "rest", "<", "1", "MiB", "<", "1", "MiB"]
    assert max(map(len, lines)) < 80 and len({len(line) for line in (lines[0], *lines[-2:])}) == 1
    assert "edges" in str(MemoryPlan((small[0], *large), dict.fromkeys(PLACES, 1 << 44)))  # as the only small one


@pytest.mark.parametrize("place, word", [("host", "memory"), ("device", "memory"), ("disk", "space")])
def test_what_does_not_fit_is_refused_with_the_key(place, word):
    needs = (Need(place, "tables", 3 << 30, "model.dimension"), Need(place, "compute", 1 << 30, "training.batch_size"))
    with pytest.raises(InputError) as caught:
        MemoryPlan(needs, {place: (4 << 30) - 1}).announce()
    assert str(caught.value) == (
        f"model.dimension: 4.00 GiB of {place} {word} are needed and 4.00 GiB are free; most of it: tables, 3.00 GiB"
    )
    MemoryPlan(needs, {place: 4 << 30}).announce()


@pytest.mark.parametrize("free, key, then", [(5, "model.dimension", "; then tables, 3.00 GiB"), (1, "memory", "")])
def test_what_no_setting_lowers_is_blamed_on_none(free, key, then):
    """Where the rest would fit, the largest of it is named; where not even the program does, no setting is."""
    needs = (Need("host", "this program", 4 << 30, None), Need("host", "tables", 3 << 30, "model.dimension"))
    with pytest.raises(InputError) as caught:
        MemoryPlan(needs, {"host": free << 30}).announce()
    assert str(caught.value) == (
        f"{key}: 7.00 GiB of host memory are needed and {free}.00 GiB are free; most of it: this program, 4.00 GiB, "
        f"which no setting lowers{then}"
    )


@pytest.mark.parametrize("place", ["host", "disk"])
def test_a_run_that_cannot_fit_writes_nothing(command, graph, tmp_path, monkeypatch, place):
    real = graph_memory.available
    monkeypatch.setattr(graph_memory, "available", lambda *args: real(*args) | {place: 100})
    config = write_config(tmp_path / "config.yaml", tiny_config(graph))
    code, out, err = command("train", config, "--out", tmp_path / "run")
    assert (code, out) == (2, []) and says(err, f"of {place} ", "are needed and 0 MiB are free")
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]


@pytest.mark.parametrize("capacity", [0, 1_000_000])
def test_keys_of_a_log_are_counted_where_their_number_is_known(tmp_path, capacity):
    config = ctr_config(small_log(tmp_path / "log.parquet"), f"keys.capacity={capacity}", "storage.memory=8MiB")
    plan = start_ctr_task(config)[0].plan_memory(tmp_path)
    needs = {(need.place, need.what): need.num_bytes for need in plan.needs if need.key == "keys.capacity"}
    if capacity:
        assert needs["host", "keys on disk"] == needs["disk", "keys"] >= 16 * capacity
    else:
        assert {what.endswith(" at first") for _, what in needs} == {True} and not any(needs.values())


def test_copies_of_virtual_parts_of_a_log_are_at_most_those_of_its_ids(tmp_path):
    config = ctr_config(small_log(tmp_path / "log.parquet", rows=100), "nodes.parts=8")
    task = start_ctr_task(config)[0]
    alone, over_nodes = ({need.what: need.num_bytes for need in task.plan_memory(tmp_path, n).needs} for n in (None, 0))
    ids = sum(table.max_ids for table in tables_of(config, make_ctr_network(config)))
    assert over_nodes.pop("virtual parts") >= 4 * 4 * config.training.batch_size * ids * config.model.dimension
    assert alone.keys() == over_nodes.keys()


def test_what_is_available_is_what_the_groups_leave(graph, tmp_path, monkeypatch):
    config = tiny_config(graph)
    monkeypatch.setattr(
        cgroups.psutil, "virtual_memory", lambda: dataclasses.make_dataclass("M", ["available"])(1 << 40)
    )
    monkeypatch.setattr(cgroups, "headroom", lambda: None)
    assert plan_memory(config, graph, tmp_path).available["host"] > 1 << 40
    monkeypatch.setattr(cgroups, "headroom", lambda: 1 << 20)
    assert plan_memory(config, graph, tmp_path).available["host"] < 1 << 40
    deep = plan_memory(config, graph, tmp_path / "not" / "there" / "yet")
    assert deep.available["disk"] > 0


def group(folder, limit, used, cached=0, version=2):
    folder.mkdir(parents=True, exist_ok=True)
    names = (
        ("memory.max", "memory.current", "")
        if version == 2
        else ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_")
    )
    (folder / names[0]).write_text(f"{limit}\n")
    (folder / names[1]).write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 5\n{names[2]}inactive_file {cached}\n{names[2]}active_file 1\n")


@pytest.mark.parametrize("version", [1, 2])
def test_groups(tmp_path, version):
    membership, mount = tmp_path / "cgroup", tmp_path / "fs"
    root = mount / "memory" if version == 1 else mount
    group(root, "max" if version == 2 else 9223372036854771712, 0, version=version)
    membership.write_text("5:cpu:/a\n4:memory:/a/b\n0::/\n" if version == 1 else "0::/a/b\n")
    assert cgroups.headroom(membership, mount) is None
    group(root / "a", 1000, 400, 50, version)
    assert cgroups.headroom(membership, mount) == 651
    group(root / "a" / "b", 500, 450, version=version)  # the tighter one
    assert cgroups.headroom(membership, mount) == 51
    group(root / "a" / "b", 500, 900, version=version)
    assert cgroups.headroom(membership, mount) == 0
    membership.write_text("4:memory:/out/of/sight\n" if version == 1 else "0::/out/of/sight\n")
    group(root, 700, 100, version=version)  # as a container sees it
    assert cgroups.headroom(membership, mount) == 601
    assert cgroups.headroom(tmp_path / "none", mount) is None


@pytest.mark.parametrize(("version", "name"), [(1, "memory.oom_control"), (2, "memory.events")])
def test_processes_that_the_kernel_has_killed_are_counted(tmp_path, version, name):
    membership, mount = tmp_path / "cgroup", tmp_path / "fs"
    root = mount / "memory" if version == 1 else mount
    (root / "a" / "b").mkdir(parents=True)
    membership.write_text("5:cpu:/c\n4:memory:/a/b\n" if version == 1 else "0::/a/b\n")
    assert cgroups.memory_kills(membership, mount) == 0
    (root / "a" / name).write_text("low 7\noom 3\noom_kill 2\n")
    assert cgroups.memory_kills(membership, mount) == 2
    (root / "a" / "b" / name).write_text("oom_kill 1\n")
    (root / name).write_text("oom_kill not told\n")
    assert cgroups.memory_kills(membership, mount) == 2
    (tmp_path / "none").write_text("")
    assert cgroups.memory_kills(tmp_path / "none", mount) == cgroups.memory_kills(tmp_path / "gone", mount) == 0


LAYERS = "encoder.layers=[{kind: sage, neighbors: 5}, {kind: gat}]"
FEATURES = 256
PEAKS = {"plain": [], "encoder": [LAYERS, "model.decoder=dot", "training.batch_size=2000"]}
PEAKS["features"] = [*PEAKS["encoder"], "encoder.embeddings=0", "evaluation.memory=64"]  # training has the peak


@pytest.mark.slow
@pytest.mark.parametrize("model", PEAKS)
def test_the_plan_against_the_peak_of_a_process(tmp_path, model):
    """A small one; `benchmarks/graphs/memory_plan.py` has large ones. The first run may have kernels to compile."""
    graph, overrides = make_graph(tmp_path, 40_000, 60_000), ["pipeline.in_flight=8", *PEAKS[model]]
    if model == "features":
        names = Graph.open(graph).node_names(np.arange(Graph.open(graph).num_nodes))
        values = pa.FixedSizeListArray.from_arrays(np.ones(len(names) * FEATURES, np.float32), FEATURES)
        pq.write_table(pa.table({"name": names, "features": values}), tmp_path / "features.parquet")
        overrides.append(f"encoder.features={tmp_path / 'features.parquet'}")
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        planned, peak, line = measure(graph, tmp_path / name, overrides)
        apart = abs(peak / planned - 1)
        if apart < BOUND:
            break
    assert apart < BOUND, (peak, line)


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="glibc alone keeps what is freed")
@pytest.mark.parametrize("which, went_back", [("return_freed_memory", 1), ("keep_freed_memory", 0)])
def test_where_freed_blocks_go(which, went_back):
    """In a process of its own. By default the second block would come from what was kept of the first."""
    script = f"""if True:
        import numpy as np, psutil
        from marius_oac.runs.memory import plan
        plan.{which}()
        held = psutil.Process().memory_info().rss
        for size in (20, 10, 20):
            block = np.ones(size << 20, np.uint8)
            block = None
        assert (psutil.Process().memory_info().rss - held < 5 << 20) == {went_back}
    """
    subprocess.run([sys.executable, "-c", script], check=True)


def test_auto_takes_as_few_batches_in_flight_as_memory_allows(graph, tmp_path, monkeypatch):
    config = tiny_config(graph, *BIG)
    task = GraphTask(config, graph)
    needed = {
        room: plan_memory(config.replace(f"pipeline.most_in_flight={room}"), graph, tmp_path).total("host")
        for room in (16, 8, 4, 2, 1)
    }
    between = {room: (needed[room] + needed[2 * room]) // 2 for room in (8, 4, 2, 1)}
    free = {}

    def short(*given):
        plan = plan_memory(*given)
        return MemoryPlan(plan.needs, plan.available | {"host": free["host"]})

    monkeypatch.setattr("marius_oac.tasks.link_prediction.task.plan_memory", short)
    for room, free["host"] in {16: 2 * needed[16], **between}.items():
        task.config = config
        made = local.plan_memory(Home(task), tmp_path)
        made.check()
        assert task.config.pipeline.most_in_flight == room
    task.config, free["host"] = config, needed[1] // 2
    with pytest.raises(InputError, match="are needed"):
        local.plan_memory(Home(task), tmp_path).announce()
    by_hand = task.config = config.replace("pipeline.in_flight=16")
    local.plan_memory(Home(task), tmp_path)
    assert task.config == by_hand, "a number stays what it is"
