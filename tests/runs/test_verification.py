"""`marius-oac verify`: whatever byte of a run is changed, the file that it lies in is named."""

import json
import os
import shutil
import threading

import numpy as np
import pytest

import marius_oac
from marius_oac import train
from marius_oac.config.link_prediction import Config
from marius_oac.errors import CheckpointError
from marius_oac.kernels.cpu.pages import SLOTS_PER_SEGMENT
from marius_oac.runs.checkpoints.retention import Checkpoints
from marius_oac.runs.folder.folder import RunFolder
from marius_oac.runs.verification import verify
from marius_oac.runtime import progress
from marius_oac.tasks.node_classification.trained import TrainedClassifier
from marius_oac.training.trained import evaluate_run
from tests.click_logs import ctr_config, small_log
from tests.disk import budget, graph_config
from tests.graphs import tiny_config
from tests.run_folders import contents, flip_a_byte, stop_at
from tests.runs.test_trust import LAYER, NETWORK

RUNS = ("clicks", "disk", "graph", "buckets", "arrival", "classes")
MAY_CHANGE = (".lock", "config.yaml", "trace.json")


class Crash(Exception):
    pass


@pytest.fixture(scope="module")
def runs(graph, tmp_path_factory):
    """Runs that hold every kind of file; not to be changed."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "my_net.py").write_text(NETWORK)
    (folder / "my_layer.py").write_text(LAYER)
    log = small_log(folder / "day.parquet", rows=64)
    layers = f"encoder.layers=[{{kind: module, module: '{folder}/my_layer.py:Layer', neighbors: 2}}]"
    elsewhere = [str(folder / "disks" / name) for name in "ab"]
    short = ("training.epochs=1", "evaluation.max_edges=10")
    shuffled = ("data.shuffle=40", "keys.admit_after=2")
    train(ctr_config(log, *shuffled, network=f"{folder}/my_net.py:Net"), folder / "clicks", trace=True)
    labels = [f"{name}\t{number % 3}\ttrain" for number, name in enumerate(graph.node_names(range(graph.num_nodes)))]
    (folder / "labels.tsv").write_text("\n".join(["name\tlabel\tsplit", *labels]) + "\n")
    tree = {"task": "node_classification", "device": "cpu", "threads": 1, "training": {"epochs": 1},
            "data": {"path": str(graph.path), "labels": str(folder / "labels.tsv")},
            "encoder": {"layers": [{"kind": "sage", "neighbors": 2}], "embeddings": 8}}  # fmt: skip
    train(Config.build(tree), folder / "classes")
    TrainedClassifier.open(folder / "classes").predict(labels[0].split()[0])  # so that there are encoded nodes
    train(tiny_config(graph, "training.epochs=2", "checkpoint.keep=3", layers), folder / "graph")
    evaluate_run(folder / "graph")  # so that there are encoded nodes
    on_disk = (budget(40), f"storage.path={json.dumps(elsewhere)}", "checkpoint.every_batches=80", "checkpoint.keep=3")
    train(graph_config(graph, *on_disk), folder / "disk")
    order = "training.ordering={kind: beta, partitions: 8, buffer: 4}"
    train(tiny_config(graph, *short, order), folder / "buckets")
    config = tiny_config(graph, "pipeline.order=arrival", "checkpoint.every_batches=10", "evaluation.every=1")
    with pytest.raises(Crash):
        train(config, folder / "arrival", probe=stop_at("compute", 37, Crash()))
    return folder


def copy(runs, name, tmp_path):
    """A copy, whose page files lie in the folders that their listing names."""
    return shutil.copytree(runs / name, tmp_path / name)


def flipped(path, place):
    """The file's content, with a bit of one byte turned."""
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    return bytes(content)


@pytest.mark.parametrize("name", RUNS)
def test_a_sound_run_is_said_to_be_so(runs, name, command):
    before = contents(runs / name)
    code, out, err = command("verify", runs / name)
    assert code == 0 and out[0].startswith(f"{runs / name}: sound; ") and err == []
    found = verify(runs / name)
    assert found.sound and found.bytes > sum(path.stat().st_size for path in (runs / name).rglob("*.npy"))
    assert contents(runs / name) == before


@pytest.mark.parametrize("name", [RUNS[0], *(pytest.param(each, marks=pytest.mark.slow) for each in RUNS[1:])])
def test_every_file_that_is_changed_is_named(runs, name, tmp_path, command):
    run = copy(runs, name, tmp_path)
    files = [path for path in run.rglob("*") if path.is_file() and path.name not in MAY_CHANGE]
    assert len(files) > 8
    for path in files:
        whole = path.read_bytes()
        # Where a file grows, what came last is known from the next checkpoint on.
        places = {0, len(whole) // 2} | (set() if path.name in ("metrics.jsonl", "order.npy") else {len(whole) - 1})
        for place in sorted(places):
            path.write_bytes(flipped(path, place))
            code, out, _ = command("verify", run)
            assert code == 2 and any(line.startswith(f"  damaged: {path}: ") for line in out), (path, place, out)
            path.write_bytes(whole)
        path.unlink()
        code, out, _ = command("verify", run)
        named = [line for line in out if line.startswith("  damaged: ") and str(path) in line]
        newest = Checkpoints(run / "checkpoints").names()[-1]
        gone = (
            "best.json",
            "saved.json",
            "summary.json",
            "run.json",
        )  # a run may do without, and run.json makes it one
        lost = path.name == "manifest.json" and path.parent.name < newest  # as if it had never been
        assert code == 2 and (named or path.name == "manifest.json") or path.name in gone or lost, (path, out)
        path.write_bytes(whole)
    assert command("verify", run)[0] == 0


@pytest.mark.parametrize("name", RUNS[2:])
def test_a_byte_of_each_file_of_every_kind_of_run_is_looked_at(runs, name, tmp_path):
    run = copy(runs, name, tmp_path)
    files = [path for path in run.rglob("*") if path.is_file() and path.name not in MAY_CHANGE]
    for path in files:
        flip_a_byte(path)
        found = verify(run).damaged
        assert any(line.startswith(f"{path}: ") for line in found), (path, found)
        flip_a_byte(path)
    assert verify(run).sound and len(files) > 8


def test_each_damaged_file_is_named_once(runs, tmp_path, command):
    run = copy(runs, "graph", tmp_path)
    victims = [run / "my_layer.py", run / "metrics.jsonl", run / "checkpoints" / "0000000025" / "entities.state.npy",
               run / "checkpoints" / "0000000050" / "dense.safetensors"]  # fmt: skip
    for path in victims:
        path.write_bytes(flipped(path, 150))
    code, out, _ = command("verify", run)
    assert code == 2 and f"{run}: 4 damaged; " in out[0]
    assert sorted(line.split(": ")[1] for line in out[1:5]) == sorted(map(str, victims))


@pytest.fixture
def pages(runs):
    """The page files of the run on disk, put back afterwards."""
    files = sorted((runs / "disks").rglob("*.pages"))
    whole = [path.read_bytes() for path in files]
    yield files
    for path, content in zip(files, whole, strict=True):
        path.write_bytes(content)


def test_every_page_that_a_checkpoint_refers_to_is_read(runs, pages, command):
    checkpoints = Checkpoints(runs / "disk" / "checkpoints")
    listing = json.loads((runs / "disk" / "tables" / "pages.json").read_text())
    assert [str(path) for path in pages] == listing["files"] and len(pages) == 2
    used = np.unique(np.concatenate([next(checkpoints.open(name).references()) for name in checkpoints.names()]))
    used = used[used >= 0]
    assert len(checkpoints.names()) == 3
    for slot in used[[0, len(used) // 2, -1]].tolist():
        number, place = _place_of(slot, listing)
        path = pages[number]
        whole = path.read_bytes()
        path.write_bytes(flipped(path, place + 100))
        code, out, _ = command("verify", runs / "disk")
        assert code == 2 and any(f"damaged: {path}: slot {slot} is damaged" in line for line in out), out
        path.write_bytes(whole)
    free = np.setdiff1d(np.arange(used.max()), used)
    for slot in free[:1].tolist():  # what lies there is nobody's
        number, place = _place_of(slot, listing)
        pages[number].write_bytes(flipped(pages[number], place + 100))
    assert command("verify", runs / "disk")[0] == 0
    for path in pages:
        path.write_bytes(flipped(path, 30))
    code, out, _ = command("verify", runs / "disk")
    assert code == 2 and "is not a page file of this run" in out[1]


def _place_of(slot, listing):
    """Number of the file that a slot lies in, and where."""
    segment, count, size = SLOTS_PER_SEGMENT, len(listing["files"]), listing["page_bytes"]
    return slot // segment % count, 4096 + (slot // segment // count * segment + slot % segment) * size


def test_pages_of_several_files_are_named_each(runs, pages, command):
    listing = json.loads((runs / "disk" / "tables" / "pages.json").read_text())
    for path in pages:
        content = bytearray(path.read_bytes())
        content[4096:] = bytes(255 - byte for byte in content[4096:])
        path.write_bytes(bytes(content))
    _, out, _ = command("verify", runs / "disk")
    used = {_place_of(int(slot), listing)[0] for slot in _first_slots(runs / "disk")}
    for number in used:
        assert any(f"damaged: {pages[number]}: slot" in line for line in out), out


def _first_slots(run):
    checkpoints = Checkpoints(run / "checkpoints")
    slots = next(checkpoints.open(checkpoints.names()[0]).references())
    return slots[slots >= 0]


def test_an_edited_key_is_named_with_its_line(runs, tmp_path, command):
    run = copy(runs, "graph", tmp_path)
    text = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(text.replace("decoder: complex", "decoder: distmult"))
    code, out, _ = command("verify", run)
    assert code == 2 and f"  damaged: {run}/config.yaml:" in out[1] and "model.decoder" in out[1]


def test_what_has_no_checksum_is_told(runs, tmp_path, command):
    run = copy(runs, "clicks", tmp_path)
    (run / "notes.txt").write_text("mine")
    code, out, _ = command("verify", run)
    assert code == 0 and out[1:] == [f"  not checked: {run}: notes.txt, trace.json: nothing of the run depends on them"]


@pytest.mark.parametrize("what", ["nothing", "a folder", "another program's", "a later version's"])
def test_what_is_no_run_is_one_line(tmp_path, command, what):
    run = tmp_path / "run"
    if what != "nothing":
        run.mkdir()
    if what == "another program's":
        (run / "run.json").write_text('{"format": "xgboost"}')
    if what == "a later version's":
        (run / "run.json").write_text('{"format": "marius-oac run", "version": 9}')
    code, out, err = command("verify", run)
    assert code == 2 and str(run) in "".join([*out, *err]) and "Traceback" not in "".join(err)


def test_a_checkpoint_that_goes_meanwhile_is_passed_over(runs, tmp_path, monkeypatch):
    run = copy(runs, "graph", tmp_path)
    names = Checkpoints(run / "checkpoints").names()
    monkeypatch.setattr(Checkpoints, "names", lambda self: ["0000000001", *names])
    assert verify(run).sound


def test_a_run_may_be_trained_while_it_is_verified(graph, tmp_path):
    """At every moment of a run nothing seems damaged."""
    config = tiny_config(graph, "checkpoint.every_batches=3", "checkpoint.keep=1", "pipeline.order=arrival",
                         "metrics.every_batches=2")  # fmt: skip
    wrong, done, begun = [], threading.Event(), threading.Event()

    def look():
        begun.wait(60)
        while not done.is_set():
            wrong.extend(verify(tmp_path / "run").damaged)

    def probe(stage, batch):
        begun.set()

    with_looks = threading.Thread(target=look)
    with_looks.start()
    try:
        train(config, tmp_path / "run", probe=probe)
    finally:
        begun.set()
        done.set()
        with_looks.join()
    assert wrong == [] and verify(tmp_path / "run").sound


def test_progress_is_shown_of_what_takes_long(runs, command, monkeypatch):
    monkeypatch.setattr(progress, "FIRST_SECONDS", 0.0)
    code, _, err = command("verify", runs / "graph")
    assert code == 0 and err[0].startswith(f"verifying {runs / 'graph'}: ") and " B" in err[0]


def test_from_python(runs):
    found = marius_oac.verify(runs / "clicks")
    assert found.sound and found.damaged == () and found.files > 10
    with pytest.raises(CheckpointError, match="there is no such run"):
        marius_oac.verify(runs / "none")


def test_a_damaged_run_json_is_named_and_the_rest_is_read_all_the_same(runs, tmp_path):
    run = copy(runs, "clicks", tmp_path)
    (run / "run.json").write_bytes(flipped(run / "run.json", 200))
    victim = run / "checkpoints" / Checkpoints(run / "checkpoints").names()[0] / "dense.safetensors"
    victim.write_bytes(flipped(victim, 100))
    found = verify(run).damaged
    assert len(found) == 2 and found[0].startswith(f"{run}/run.json: ") and found[1].startswith(f"{victim}: ")
    assert RunFolder.open(runs / "clicks") and os.path.exists(victim)
