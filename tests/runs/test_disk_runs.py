"""The promise with rows on disk: whatever the memory, the requests and the threads do, the bits are those of memory."""

import gc
import json
import os
import re
import shutil
import signal
import threading

import numpy as np
import pytest

from marius_oac import open_run, resume, train
from marius_oac.errors import ConfigError, InputError, Interrupted
from marius_oac.runs.checkpoints.retention import Checkpoints
from tests.disk import PAGE, bits, budget, clicks_config, days, graph_config, page_files, share
from tests.graphs import NODES, jitter, workers
from tests.run_folders import says, slow, stop_at, write_config

BUFFERED, MMAP = "storage.io=buffered", "storage.io=mmap"
BOTH = pytest.mark.parametrize("task", ["graph", "clicks"])


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    return days(tmp_path_factory.mktemp("log"))


@pytest.fixture(scope="module")
def make(graph, log):
    """`make("graph", *overrides)` -> a configuration."""

    def config(task, *overrides):
        return graph_config(graph, *overrides) if task == "graph" else clicks_config(log, *overrides)

    return config


@pytest.fixture(scope="module")
def in_memory(make, tmp_path_factory):
    """`in_memory("graph", *overrides)` -> the folder of a run with all rows in memory, trained once."""
    folder, runs = tmp_path_factory.mktemp("memory"), {}

    def run(task, *overrides):
        key = task, *overrides
        if key not in runs:
            runs[key] = train(make(task, *overrides), folder / str(len(runs))).path
        return runs[key]

    return run


def outcome(path):
    return bits(open_run(path).summary)


def open_here(folder):
    """Files of a folder that this process holds open; what is garbage does not count."""
    gc.collect()
    links = (os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd"))
    return [link for link in links if link.startswith(str(folder.resolve())) and not link.endswith(".npy")]


def check(make, in_memory, path, task, *overrides, disk, probe=None):
    """Trains on disk; the bits must be those of a run in memory."""
    before = threading.active_count()
    summary = train(make(task, *overrides, *disk), path, probe=probe).summary
    assert bits(summary) == outcome(in_memory(task, *overrides))
    assert threading.active_count() == before and open_here(path) == []
    return summary


@BOTH
@pytest.mark.parametrize("percent, more", [
    slow(100, ()), slow(50, ()), slow(25, ()), (10, ()),
    slow(100, (BUFFERED,)), slow(50, (BUFFERED,)), slow(25, (BUFFERED,)), (10, (BUFFERED,)),
])  # fmt: skip
def test_any_budget_has_the_bits_of_memory(make, in_memory, tmp_path, task, percent, more):
    summary = check(make, in_memory, tmp_path / "run", task, disk=(share(percent), *more), probe=jitter(percent))
    if percent < 100:
        assert summary["disk.bytes_read"] > 0 and summary["disk.bytes_written"] > 0


@BOTH
def test_mapped_tables_have_the_bits_of_memory(make, in_memory, tmp_path, task):
    check(make, in_memory, tmp_path / "run", task, disk=(MMAP,))
    assert not list(tmp_path.rglob("*.rows"))


@BOTH
@pytest.mark.parametrize(
    "in_flight, count, ahead", [slow(1, 1, 1), slow(1, 2, 32), slow(4, 3, 1), (16, 4, 32), slow(16, 1, 2)]
)
def test_threads_and_look_ahead_change_no_bits(make, in_memory, tmp_path, task, in_flight, count, ahead):
    disk = (share(15), f"pipeline.in_flight={in_flight}", f"storage.look_ahead={ahead}", *workers(count))
    check(make, in_memory, tmp_path / "run", task, disk=disk, probe=jitter(in_flight))


@pytest.mark.parametrize("overrides", [
    ("storage.dtype=bfloat16",),
    ("training.optimizer.kind=adam", "training.optimizer.learning_rate=0.01", "model.dimension=100"),
    ("training.ordering.kind=beta", "training.ordering.partitions=8", "training.ordering.buffer=2"),
    slow(("pipeline.mode=sync",)),
    slow(("model.dimension=100",)),
], ids=" ".join)  # fmt: skip
def test_options_of_graphs(make, in_memory, tmp_path, overrides):
    check(make, in_memory, tmp_path / "run", "graph", *overrides, disk=(share(12),))


@pytest.mark.parametrize("name", [slow("beta"), "comet"])
def test_a_partition_ordering_reads_no_more_than_it_should(make, in_memory, tmp_path, name):
    """Memory for its buffer of four partitions and for the one that comes; rows fill half of their pages."""
    ordering, disk = f"training.ordering={{kind: {name}, partitions: 8, buffer: 4}}", budget(5 * NODES // 8)
    summary = check(make, in_memory, tmp_path / "run", "graph", ordering, "training.epochs=2", disk=(disk,))
    plain = train(make("graph", "training.epochs=2", disk), tmp_path / "plain").summary
    should, did = summary["ordering.bytes_read_per_epoch"] * PAGE / 2056, summary["disk.bytes_read"] / 2
    assert 0.3 * should < did < should < plain["disk.bytes_read"] / 2
    told = [line.split()[0] for line in str(open_run(tmp_path / "run")).splitlines()]
    assert told[told.index("disk.bytes_read") - 1] == "ordering.bytes_read_per_epoch"


TWO_TABLES = "data.categorical=[{name: user, dimension: 300}, {name: item, dimension: 100}]"


@pytest.mark.parametrize("overrides", [
    slow(("keys.admit_after=2",)),
    ("keys.drop_after=1", "keys.admit_after=2", "training.epochs=2"),
    slow(("keys.drop_after=1", "storage.dtype=bfloat16")),
    ("model.network=dcnv2", TWO_TABLES),
], ids=" ".join)  # fmt: skip
@pytest.mark.parametrize("in_flight", [slow(1), 16])
def test_options_of_click_logs(make, in_memory, tmp_path, overrides, in_flight):
    """Keys that wait, keys that go and leave their rows to others, two tables in one tier."""
    disk = (budget(20), f"pipeline.in_flight={in_flight}", *workers(2))
    check(make, in_memory, tmp_path / "run", "clicks", *overrides, disk=disk, probe=jitter(in_flight))


def test_two_folders(make, in_memory, tmp_path):
    folders = [str(tmp_path / name) for name in ("a", "b")]
    check(make, in_memory, tmp_path / "run", "graph", disk=(share(10), f"storage.path={json.dumps(folders)}"))
    sizes = [path.stat().st_size for path in tmp_path.glob("[ab]/*.pages")]
    assert len(sizes) == 2 and min(sizes) > 4096 and page_files(tmp_path / "run") == []


EVERY = ("checkpoint.every_batches=7", "checkpoint.keep=3")
LAST = {"graph": 200, "clicks": 60}


@BOTH
@pytest.mark.parametrize("percent", [slow(100), 10])
def test_checkpoints_change_no_bits_and_each_of_them_leads_to_the_end(make, in_memory, tmp_path, task, percent):
    path, last = tmp_path / "run", LAST[task]
    check(make, in_memory, path, task, *EVERY, disk=(share(percent),))
    for name in Checkpoints(path / "checkpoints").names():
        folder = shutil.copytree(path, tmp_path / name)
        assert bits(resume(folder, checkpoint=name).summary) == outcome(in_memory(task, *EVERY))
    assert name == f"{last:010d}"


@BOTH
def test_a_checkpoint_on_disk_has_the_rows_of_one_in_memory(make, in_memory, tmp_path, task):
    train(make(task, *EVERY, share(10)), tmp_path / "run")
    mine, theirs = (Checkpoints(path / "checkpoints") for path in (tmp_path / "run", in_memory(task, *EVERY)))
    assert mine.names() == theirs.names()
    for name in mine.names():
        ours, other = mine.open(name), theirs.open(name)
        for table in other.tables():
            for part in ("values", "state", "timestamps"):
                np.testing.assert_array_equal(ours.array(table, part)[:], other.array(table, part))
        assert ours.arrays().keys() == other.arrays().keys()


def test_old_pages_do_not_pile_up(make, tmp_path):
    """A checkpoint after every seven batches; the files hold the kept ones and little more."""
    run = train(make("graph", *EVERY, share(10)), tmp_path / "run")
    (file,) = page_files(run.path)
    assert file.stat().st_size < 2.3 * 3 * 200 * 4096
    assert run.summary["disk.bytes_in_use"] <= 3 * 200 * 4096


@BOTH
def test_a_run_moves_from_memory_to_disk_and_back(make, in_memory, tmp_path, task):
    path, third = tmp_path / "run", LAST[task] // 3
    moves = [(), (share(10),), ("storage.memory=null",), (MMAP,), ("storage.io=buffered", share(50)), ()]
    for number, overrides in enumerate(moves, 1):
        probe = stop_at("compute", min(number * third // 2, LAST[task] - 2), OSError("stopped here"))
        with pytest.raises(OSError, match="stopped here"):
            if number == 1:
                train(make(task, *EVERY), path, probe=probe)
            else:
                resume(path, overrides, probe=probe)
    resume(path, ("storage.memory=null", "storage.io=direct"))
    assert outcome(path) == outcome(in_memory(task, *EVERY))


def test_early_stopping_ends_with_the_best(graph, tmp_path):
    overrides = ("training.epochs=8", "evaluation.every=1", "training.early_stopping.patience=2",
                 "training.optimizer.learning_rate=0.5", "training.batch_size=16", "model.dimension=100")  # fmt: skip
    found = [train(graph_config(graph, *overrides, *more), tmp_path / str(len(more))).summary
             for more in ((), (budget(39),))]  # fmt: skip
    assert found[0]["training.stopped_early"] and found[0]["checkpoint"] != f"{found[0]['training.batches']:010d}"
    assert bits(found[1]) == bits(found[0])


@BOTH
def test_ctrl_c_and_errors_in_every_stage_lose_no_bits(make, in_memory, tmp_path, task):
    path = tmp_path / "run"

    def interrupt(stage, batch_index):
        if (stage, batch_index) == ("read", 5):
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted):
        train(make(task, *EVERY, share(20)), path, probe=interrupt)
    before = threading.active_count()
    for number, stage in enumerate(("plan", "settle", "fetch", "wait", "read", "compute", "write")):
        with pytest.raises(OSError, match="injected"):
            resume(path, probe=stop_at(stage, 14 + 6 * number, OSError("injected")))
        assert threading.active_count() == before
    resume(path)
    assert outcome(path) == outcome(in_memory(task, *EVERY))


@BOTH
def test_a_run_on_disk_is_evaluated_exported_and_compared_as_one_in_memory(
    make, in_memory, log, command, tmp_path, task
):
    memory, disk = in_memory(task), tmp_path / "disk"
    train(make(task, share(10)), disk)
    before = sorted((path, path.stat().st_mtime_ns) for path in disk.rglob("*"))
    asked = {
        "graph": [("eval",), ("predict", "--head", "n3", "--relation", "r1")],
        "clicks": [("eval", "--data", log[2])],
    }
    told = {}
    for path in (memory, disk):
        names = open_names(make, task) if task == "graph" else ()
        told[path] = [
            [re.sub(r"^.*checkpoint", "", line) for line in lines if "seconds" not in line]
            for code, lines, _ in (
                command(argv[0], path, *(names.get(word, word) if names else word for word in argv[1:]))
                for argv in asked[task]
            )
            if code == 0
        ]
    assert told[memory] == told[disk] and len(told[disk]) == len(asked[task])
    for form in ("npy", "parquet", "safetensors"):
        for path in (memory, disk):
            code, _, _ = command("export", path, "--format", form, "--out", tmp_path / f"{path.name}-{form}")
            assert code == 0
        ours, theirs = (
            {file.name: file.read_bytes() for file in (tmp_path / f"{path.name}-{form}").iterdir()}
            for path in (disk, memory)
        )
        assert ours == theirs
    if task == "clicks":
        predicted = []
        for path in (memory, disk):
            out = tmp_path / f"{path.name}.parquet"
            assert command("predict", path, "--data", log[1], "--out", out)[0] == 0
            predicted.append(out.read_bytes())
        assert predicted[0] == predicted[1]
    for first, second in ((memory, disk), (disk, memory), (disk, disk)):
        assert command("compare", first, second)[0] == 0
    assert sorted((path, path.stat().st_mtime_ns) for path in disk.rglob("*")) == before, "looking at it changed it"


def open_names(make, task):
    from marius_oac.data.graphs.graph import Graph

    graph = Graph.open(make(task).data.path)
    return {"n3": graph.node_names(np.array([3]))[0], "r1": graph.relation_names(np.array([1]))[0]}


@pytest.mark.parametrize("config, message", [
    ((budget(5),), "storage.memory: a batch uses 1[0-9] pages of 4,096 bytes .* holds 5: 1 MiB are needed at least"),
    (("storage.memory=1KiB",), "storage.memory: a batch uses"),
    (("storage.memory=1MiB", "model.dimension=1000"), "storage.page: a row has .* bytes, a page only 4,096"),
    (("storage.memory=0",), "storage.memory"),
    (("storage.memory=1MiB", "storage.page=5000"), "page: 5000 is not a multiple of 4KiB"),
    (("storage.memory=1MiB", "storage.io=mmap"), "memory: with io 'mmap' the system decides"),
    (("storage.io=buffered",), "io: 'buffered' needs storage.memory"),
    (("storage.memory=1MiB", "storage.path=/proc/nowhere"), "/proc/nowhere.*: (page file|can't be)"),
])  # fmt: skip
def test_mistakes_are_one_line(make, command, tmp_path, config, message):
    path = write_config(tmp_path / "c.yaml", make("graph"))
    code, _, err = command(
        "train", path, "--out", tmp_path / "run", *(part for each in config for part in ("--set", each))
    )
    assert code == 2 and says(err) and re.search(message, err[-1]) and not (tmp_path / "run").exists()


def test_the_number_that_is_needed_is_enough(make, in_memory, tmp_path):
    large = "storage.page=65536"
    with pytest.raises(ConfigError) as caught:
        train(make("graph", budget(5), large), tmp_path / "run")
    needed = int(re.search(r"([\d,]+) MiB are needed", str(caught.value))[1].replace(",", ""))
    with pytest.raises(ConfigError):
        train(make("graph", f"storage.memory={(needed << 20) - (1 << 20)}", large), tmp_path / "run")
    train(make("graph", f"storage.memory={needed + 1}MiB", large), tmp_path / "run")
    assert outcome(tmp_path / "run") == outcome(in_memory("graph", large))


def test_a_later_batch_that_is_larger_is_refused_and_more_memory_goes_on(make, in_memory, tmp_path):
    """Of a click log nobody knows the batches before."""
    path, pages = tmp_path / "run", 1
    while True:
        try:
            resume(path, [budget(pages)]) if path.exists() else train(make("clicks", *EVERY, budget(pages)), path)
            break
        except ConfigError as error:
            assert re.search(r"storage.memory: batch \d+ uses \d+ pages", str(error))
            pages += 3
    assert 6 < pages < 24
    assert outcome(path) == outcome(in_memory("clicks", *EVERY))


def test_room_is_looked_for_where_the_pages_go(make, command, tmp_path, monkeypatch):
    """The run's folder lies on another disk than the pages; what is there when a run goes on is not asked for."""
    config, pages, run = make("graph", share(10)), tmp_path / "pages", tmp_path / "run"
    source, free = write_config(tmp_path / "c.yaml", config), {}
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(0, 0, free[str(path)]))
    argv = ("train", source, "--out", run, "--set", f"storage.path={pages}")
    free[str(tmp_path)] = 1 << 20
    code, _, err = command(*argv)
    assert code == 2 and says(err, "MiB of space in storage.path are needed and 1 MiB are free") and not run.exists()
    needed = int(re.search(r"(\d+) MiB of space", err[-1])[1])
    pages.mkdir()
    free[str(pages)] = 1 << 30
    code, _, err = command(*argv)
    plan = "\n".join(err)
    assert code == 0 and re.search(r"^memory plan .* storage\.path\n(.*\n)*?  free .* 1\.00 GiB\n", plan, re.M)
    free |= {str(pages): (needed - 1) << 20, str(run): 1 << 20}
    assert command("resume", run, "--set", "training.epochs=2")[0] == 0


@pytest.mark.parametrize(("gone", "how"), [("*.pages", "unlink"), ("*.pages", "replace"), ("pages.json", "unlink")])
def test_page_files_that_are_gone_end_the_run_at_its_next_checkpoint(make, tmp_path, gone, how):
    run = tmp_path / "run"

    def probe(stage, batch):
        if (stage, batch) == ("compute", 70):
            (path,) = (run / "tables").glob(gone)
            if how == "replace":
                shutil.copy(path, path.with_name("copy"))
                path.with_name("copy").rename(path)
            else:
                path.unlink()

    with pytest.raises(InputError, match="was removed or replaced while the run trains") as caught:
        train(make("graph", share(20), "checkpoint.every_batches=50"), run, probe=probe)
    assert str(run / "tables") in str(caught.value)
    assert Checkpoints(run / "checkpoints").names() == ["0000000050"]
