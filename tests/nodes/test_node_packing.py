"""Where rows lie over nodes: packed by what batches look up, within budgets, and kept while the nodes are the same."""

import threading
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml

from marius_oac.config.cluster import ClusterConfig
from marius_oac.data.batches.rank_slice import RankSlice, with_share
from marius_oac.data.graphs.graph import Graph
from marius_oac.data.logs.tables import vocabulary_names
from marius_oac.data.reading.edge_file import ReadOptions
from marius_oac.errors import InputError
from marius_oac.nodes.groups.thread_group import ThreadGroup
from marius_oac.nodes.sharded import placement as node_packing
from marius_oac.nodes.sharded.home import NodesHome
from marius_oac.nodes.sharded.placement import agreed_packing
from marius_oac.nodes.shards.packing import even, heaviest
from marius_oac.prepare.prepare import PrepareRequest, prepare
from marius_oac.runs.checkpoints.parts import PACKING, PLACEMENT, identity_of, layout_name, part_name, saved_packings
from marius_oac.runs.checkpoints.retention import Checkpoints
from marius_oac.runs.folder.folder import RunFolder
from marius_oac.storage.placement import NUM_SHARDS
from marius_oac.tasks.ctr.task import start_ctr_task
from marius_oac.tasks.link_prediction.task import GraphTask
from tests.click_logs import ctr_config, small_log
from tests.graphs import tiny_config
from tests.nodes import naive_shards as naive
from tests.nodes.test_node_training import digests, furthest, run, start
from tests.nodes.worlds import together
from tests.ports import free_ports

pytestmark = pytest.mark.usefixtures("forked_programs")
NODES = 400


@pytest.fixture(scope="module")
def hubs(tmp_path_factory):
    """A graph whose edges mostly have the same few ends."""
    folder, generator = tmp_path_factory.mktemp("hubs"), np.random.default_rng(3)
    ends = [np.minimum(generator.zipf(1.6, 3000) - 1, NODES - 1) for _ in range(2)]
    ends[0][:NODES] = np.arange(NODES)
    np.save(folder / "edges.npy", np.stack([ends[0], generator.integers(2, size=3000), ends[1]], 1))
    read = ReadOptions(relations=True)
    prepare(PrepareRequest(source=str(folder / "edges.npy"), out=folder / "graph", read=read, valid_fraction=0.1,
                           unseen="skip"))  # fmt: skip
    return Graph.open(folder / "graph")


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    return small_log(tmp_path_factory.mktemp("log") / "day.parquet", rows=3000)


def graph_nodes(graph, *overrides):
    config = tiny_config(graph, "training.negatives.count=2", *overrides)
    return config, lambda *place: NodesHome(GraphTask(config, graph), *place, None, None)


def click_nodes(log, *overrides):
    config = ctr_config(log, *overrides)
    return config, lambda *place: NodesHome(start_ctr_task(config)[0], *place, None, None)


def cluster(*nodes):
    return ClusterConfig.model_validate({"nodes": [{"address": "127.0.0.1", "name": f"n{i}"} | node
                                                   for i, node in enumerate(nodes)]})  # fmt: skip


def packed(made, *nodes, run=None, checkpoint=None):
    """What nodes like these agree on, and the first one's task."""
    config, make = made
    entries, tasks = cluster(*nodes), {}

    def pack(group):
        task = tasks[group.rank] = make(group, [node.shards for node in entries.nodes])
        return agreed_packing(task, config, entries, run, checkpoint)

    every = together(ThreadGroup.members(len(nodes), names=[node.name for node in entries.nodes]), pack)
    for one in every:
        assert one.figures() == every[0].figures() and np.array_equal(one.placement.nodes, every[0].placement.nodes)
    return every[0], tasks[0].placed(every[0])


def ids_looked_up(task, size):
    """How often each id of a graph, or (vocabulary, key) of a log, is asked for in an epoch by so many trainers."""
    whole, times = task.rows.planner(SimpleNamespace(callback=lambda close: None)), Counter()
    for rank in range(size):
        planner = with_share(whole, RankSlice(rank, size))
        for number in range(task.task.schedule.ends[0]):
            plan = planner.plan(number)
            if isinstance(task.task, GraphTask):
                times.update(plan.rows[0].tolist())
            else:
                times.update(set(zip(*(part.tolist() for part in plan.keys[0].asked[:2]), strict=True)))
    return times


def heaviest_in_training(task, nodes, size):
    """What the node that is asked for most rows is asked for, of the mean."""
    load = [0] * size
    if isinstance(task.task, GraphTask):
        of_node = naive.rows_by_node(task.task.graph.num_nodes, nodes.tolist(), size)
        node_of = {each: node for node, ids in enumerate(of_node) for each in ids}
    for each, times in ids_looked_up(task, size).items():
        node = node_of[each] if isinstance(task.task, GraphTask) else nodes[naive.shard_of_key(*each, NUM_SHARDS)]
        load[node] += times
    return max(load) * size / sum(load)


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("kind", ["graph", "clicks"])
def test_the_heaviest_node_is_near_the_mean_where_the_hash_alone_is_not(hubs, log, kind, size):
    made = graph_nodes(hubs) if kind == "graph" else click_nodes(log)
    found, task = packed(made, *[{}] * size)
    assert found.batches == min(node_packing.MOST_BATCHES, task.task.schedule.last)
    after = heaviest_in_training(task, found.placement.nodes, size)
    before = heaviest_in_training(task, even([1.0] * size, NUM_SHARDS).nodes, size)
    assert after <= 1.1 and before > (1.05 if size == 2 else 1.1)
    assert found.heaviest == pytest.approx(after, abs=0.03) and found.by_hash == pytest.approx(before, abs=0.03)


def test_what_is_measured_is_what_all_trainers_ask_for(hubs):
    made = graph_nodes(hubs)
    tasks = [made[1](group, [1.0, 1.0]) for group in ThreadGroup.members(2)]
    costs = sum(node_packing.measure(task, range(task.task.schedule.ends[0])) for task in tasks)
    places, wanted = tasks[0].rows.places, np.zeros(NUM_SHARDS, np.int64)
    for each, times in ids_looked_up(tasks[0], 2).items():
        wanted[places.shard_of(np.array([each]))] += times * 4 * 8
    assert np.array_equal(costs, wanted)


def test_rows_that_a_node_adds_up_count_each_time(log):
    pooled = "data.multi_valued=[{name: tags, pooling: mean, pool_at: shard}]"
    costs = []
    for overrides in ((), (pooled,)):
        task = click_nodes(log, *overrides)[1](ThreadGroup.members(1)[0], [1.0])
        costs.append(node_packing.measure(task, range(task.task.schedule.ends[0])))
    tags = pq.read_table(log)["tags"].combine_chunks().flatten()
    dimension = task.rows.formats[0].dimension
    more = np.zeros(NUM_SHARDS, np.int64)
    vocabulary = vocabulary_names(task.config).index("tags")
    for tag in tags.to_pylist():
        more[naive.shard_of_key(vocabulary, tag, NUM_SHARDS)] += 4 * dimension
    assert np.array_equal(costs[1] - costs[0], more)


def test_a_pass_that_measures_is_bounded(log, hubs, monkeypatch):
    asked = []
    monkeypatch.setattr(node_packing, "measure", lambda self, batches: asked.append(batches) or np.ones(NUM_SHARDS))
    packed(graph_nodes(hubs, "training.epochs=100"), {}, {})
    assert asked == 2 * [range(200)]
    asked.clear()
    monkeypatch.setattr(node_packing, "MOST_EXAMPLES", 100)
    packed(graph_nodes(hubs, "training.epochs=100"), {}, {})
    assert asked == 2 * [range(3)]


def test_stronger_nodes_are_asked_for_more(hubs):
    found, task = packed(graph_nodes(hubs), {"shards": 3}, {"shards": False}, {"shards": 1})
    assert found.placement.num_nodes == 2 and found.heaviest < 1.05 and task.place == 0
    load = heaviest(task.rows.known()[0], found.placement.nodes, [3.0, 1.0])
    assert load == pytest.approx(1, abs=0.25)


def test_shards_that_nobody_asked_for_are_spread_too(hubs, monkeypatch):
    """Else all would go to the node that has a little less to do."""
    costs = np.zeros(NUM_SHARDS)
    costs[[3, 50]] = 100, 99.9
    monkeypatch.setattr(node_packing, "measure", lambda self, batches: costs)
    _, task = packed(graph_nodes(hubs), {}, {})
    assert abs(task.rows.places.num_rows(0) - hubs.num_nodes / 2) < 0.1 * hubs.num_nodes


def test_by_the_hash_alone_nothing_is_measured(hubs, monkeypatch):
    monkeypatch.setattr(node_packing, "measure", None)
    found, _ = packed(graph_nodes(hubs, "nodes.packing=even"), {}, {"shards": 2})
    assert np.array_equal(found.placement.nodes, even([1, 2], NUM_SHARDS).nodes) and found.summary() == {}
    found, _ = packed(graph_nodes(hubs), {})
    assert not found.placement.nodes.any()


def test_a_node_takes_no_more_rows_than_its_budgets(hubs):
    """A row has 72 bytes, 56 a page; on disk it is there four times."""
    page = 4096
    disk = {"disk": 8 * page}
    for budget in ({"memory": 2 * page}, {"memory": 1 << 20} | disk, {"memory": 3 * page} | disk):
        found, task = packed(graph_nodes(hubs), budget, {}, {})
        assert 50 < task.rows.places.num_rows(0) <= 2 * 56
        unmeasured, task = packed(graph_nodes(hubs, "nodes.packing=even"), budget, {}, {})
        assert task.rows.places.num_rows(0) <= 2 * 56
    # Where the memory of all is too small for all rows, they wait on disk, and look-ups alone decide.
    found, task = packed(graph_nodes(hubs), {"memory": 2 * page}, {"memory": 2 * page})
    assert found.heaviest < 1.05


def test_budgets_that_are_too_small_are_refused_with_the_node_and_what_it_lacks(hubs):
    small = {"memory": 1 << 20, "disk": 8 * 4096}
    with pytest.raises(InputError) as caught:
        packed(graph_nodes(hubs), small, small | {"disk": 1 << 15})
    text = str(caught.value)
    lacking = hubs.num_nodes / 2 - 112
    assert text.startswith("node n0: disk: has room for 112 rows") and "\n" not in text
    assert f"{lacking:.0f} rows (0 MiB) more" in text and f"lack room for {2 * lacking:.0f} rows" in text


def test_a_node_that_can_not_read_its_batches_is_named(hubs, monkeypatch):
    real = node_packing.measure

    def measure(self, batches):
        if self.group.rank:
            raise InputError("is gone", "day.parquet")
        return real(self, batches)

    monkeypatch.setattr(node_packing, "measure", measure)
    with pytest.raises(InputError, match=r"^node n1: day.parquet: is gone$"):
        packed(graph_nodes(hubs), {}, {})


def test_the_look_ups_of_all_tables_are_measured_each_by_the_bytes_of_its_rows():
    shards = {0: ([0, 0, 2], [1]), 1: ([0], [1, 3])}  # of each batch, by table
    rows = SimpleNamespace(
        formats=[SimpleNamespace(nbytes=4), SimpleNamespace(nbytes=100)],
        planner=lambda stack: SimpleNamespace(plan=shards.__getitem__),
        shards=lambda plan: map(np.array, plan),
    )
    node = SimpleNamespace(
        rows=rows, peers=SimpleNamespace(trains=True, leads=False), share=None,
        placement=SimpleNamespace(num_shards=4),
    )  # fmt: skip
    assert node_packing.measure(node, [0, 1]).tolist() == [12, 200, 4, 100]


def save(run, names, weights, nodes, sequences, figures=(10, 1.5, 1.01)):
    """Parts of a layout, as far as they say where rows lie."""
    for name in names:
        path = run / "nodes" / layout_name(names, weights, nodes) / part_name(name)
        part = Checkpoints(path / "checkpoints", part=identity_of(path))
        part.folder.mkdir(parents=True)
        for batch_index in sequences:
            arrays = {PLACEMENT: nodes, PACKING: np.array(figures)}
            part.save(batch_index, [], {}, {}, len(sequences), arrays)
    return part.folder


def test_a_run_goes_on_with_the_placement_it_had(hubs, tmp_path, monkeypatch):
    nodes = np.arange(NUM_SHARDS, dtype=np.int32) // 3000
    save(tmp_path, ["n0", "n1"], [1.0, 1.0], nodes, [10, 20])
    save(tmp_path, ["n0", "n1"], [1.0, 2.0], 1 - nodes, [30])
    save(tmp_path, ["n1", "n0"], [1.0, 1.0], 1 - nodes, [30])
    real, asked = node_packing.measure, []
    monkeypatch.setattr(node_packing, "measure", lambda self, batches: asked.append(batches) or real(self, batches))
    found, _ = packed(graph_nodes(hubs), {}, {}, run=tmp_path)
    assert np.array_equal(found.placement.nodes, nodes) and found.figures() == [10, 1.5, 1.01] and not asked
    # With other weights, another number or other names the batches that come next are measured.
    packed(graph_nodes(hubs), {"shards": 3}, {}, run=tmp_path)
    assert {each.start for each in asked} == {30}
    packed(graph_nodes(hubs), {}, {}, {}, run=tmp_path, checkpoint="0000000020")
    assert {each.start for each in asked} == {20, 30}


def test_what_is_damaged_says_nothing_of_where_rows_lie(tmp_path):
    nodes = np.zeros(NUM_SHARDS, np.int32)
    folder = save(tmp_path, ["a", "b/1"], [1.0, 1.0], nodes, [10, 20])
    (found,) = saved_packings(tmp_path, ["a", "b/1"], [1.0, 1.0], "b/1")
    assert found["checkpoints"] == ["0000000010", "0000000020"] and found["nodes"] == nodes.tolist()
    (folder / "0000000020" / "manifest.json").write_text("{}")
    assert saved_packings(tmp_path, ["a", "b/1"], [1.0, 1.0], "b/1") == [found]
    for name in (PLACEMENT, PACKING):
        array = folder / "0000000010" / f"{name}.npy"
        whole = array.read_bytes()
        array.write_bytes(whole[:-1] + b"\x41")
        assert saved_packings(tmp_path, ["a", "b/1"], [1.0, 1.0], "b/1") == []
        array.write_bytes(whole)


def placements(path):
    """The placement of each layout of a run, by the number of its nodes."""
    found = {}
    for layout in (path / "nodes").iterdir():
        saved = Checkpoints(layout / "node0" / "checkpoints").open()
        found[int(layout.name.partition("-")[0])] = saved.arrays()[PLACEMENT].tolist()
    assert len(found) == len(list((path / "nodes").iterdir()))
    return found


SMOOTH = "training.optimizer.initial_accumulator=0.1"


@pytest.mark.slow
@pytest.mark.parametrize("counts", [(2, 3), (4, 3)])
@pytest.mark.parametrize("task", ["clicks", "graph"])
def test_the_same_nodes_keep_their_rows_and_others_are_packed_anew(hubs, log, tmp_path, task, counts):
    config, _ = graph_nodes(hubs) if task == "graph" else click_nodes(log)
    (tmp_path / "config.yaml").write_text(config.replace("training.epochs=1", SMOOTH).dump())
    first, other = (["--local-nodes", count] for count in counts)
    path, box = tmp_path / "run", tmp_path / "box"
    text = run("train", tmp_path / "config.yaml", "--out", path, *first)
    assert text.count("by the look-ups of") == 1
    begun, before = placements(path), RunFolder.open(path).summary()
    assert before["packing.heaviest"] < 1.02 < before["packing.heaviest_by_hash"]
    assert "packing.heaviest" in text
    text = run("resume", path, *first, "--set", "training.epochs=2", "--set", "nodes.packing=even")
    assert "by the look-ups of" not in text and placements(path) == begun
    summary = RunFolder.open(path).summary()
    assert {name: summary[name] for name in before if name.startswith("packing.")} == {
        name: value for name, value in before.items() if name.startswith("packing.")
    }
    text = run("resume", path, *other, "--set", "training.epochs=3", "--set", "nodes.packing=measured")
    assert text.count("by the look-ups of") == 1 and placements(path).keys() == set(counts)
    assert RunFolder.open(path).summary()["packing.heaviest"] < 1.02
    run("train", tmp_path / "config.yaml", "--out", box, "--set", "training.epochs=3")
    assert 0 < furthest(box, path) <= 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("task", ["clicks", "graph"])
def test_where_rows_lie_changes_no_bits(hubs, log, tmp_path, task):
    config, _ = graph_nodes(hubs) if task == "graph" else click_nodes(log)
    (tmp_path / "config.yaml").write_text(config.replace("training.epochs=1").dump())
    for packing in ("measured", "even"):
        how = ["--local-nodes", 2, "--set", f"nodes.packing={packing}"]
        run("train", tmp_path / "config.yaml", "--out", tmp_path / packing, *how)
    assert placements(tmp_path / "measured") != placements(tmp_path / "even")
    assert digests(tmp_path / "measured") == digests(tmp_path / "even")


def test_processes_without_room_leave_when_all_have_found_it(hubs, monkeypatch):
    first_is_done, events = threading.Event(), []

    class Budgets:
        def __init__(self, task, *_):
            self.rank = task.group.rank

        def packed(self, costs):
            if self.rank:  # until the first one waits for this one, or has left
                assert first_is_done.wait(30)
            events.append(f"{self.rank} finds")
            raise InputError("has no room", "node a")

    monkeypatch.setattr(node_packing._Budgets, "of", Budgets)
    config, make = graph_nodes(hubs)

    def pack(group):
        try:
            return agreed_packing(make(group, [1, 1]), config, cluster({}, {}))
        finally:
            events.append(f"{group.rank} leaves")
            first_is_done.set()

    def delay(rank, channel, number):
        if rank == 0:
            first_is_done.set()

    with pytest.raises(InputError, match="no room"):
        together(ThreadGroup.members(2, delay=delay), pack)
    assert events[:2] == ["0 finds", "1 finds"] and len(events) == 4


@pytest.mark.slow
def test_a_run_whose_rows_do_not_fit_does_not_start(hubs, tmp_path):
    (tmp_path / "config.yaml").write_text(graph_nodes(hubs)[0].dump())
    entries = [{"name": name, "address": "127.0.0.1", "memory": "1MiB", "disk": "32KiB", "path": str(tmp_path)}
               for name in "ab"]  # fmt: skip
    (tmp_path / "nodes.yaml").write_text(yaml.safe_dump({"nodes": entries, "port": free_ports(1)[0]}))
    common = ("train", tmp_path / "config.yaml", "--nodes", tmp_path / "nodes.yaml", "--out", tmp_path / "run")
    both = [start(*common, "--node", name, MARIUS_OAC_SECRET="0" * 64) for name in "ab"]
    texts = [process.communicate(timeout=100)[0] for process in both]
    assert [process.returncode for process in both] == [2, 2], texts
    assert any("node a: disk: has room for 112 rows" in text for text in texts), texts
    assert not any("Traceback" in text for text in texts) and not (tmp_path / "run").exists()
