"""Runs, with valid checksums, that somebody has made to do harm: refused in one line, in time, nothing written."""

import json
import shutil

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from marius_oac.training.local import train
from tests.click_logs import ctr_config, small_log
from tests.disk import budget, graph_config, page_files
from tests.hostile import newest_checkpoint, reseal_checkpoint, reseal_pages
from tests.run_folders import contents, says

DEEP = "[" * 200_000 + "]" * 200_000


@pytest.fixture
def run(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "runs" / "run")


@pytest.fixture(scope="module")
def trained_clicks(tmp_path_factory):
    """A run on a click log, trained once; not to be changed."""
    folder = tmp_path_factory.mktemp("clicks")
    small_log(folder / "day.parquet", rows=100)
    keys = ("keys.admit_after=2", "keys.drop_after=3", "keys.capacity=500", "training.epochs=1")
    train(ctr_config(folder / "day.parquet", *keys), folder / "run")
    return folder / "run"


@pytest.fixture
def clicks(trained_clicks, tmp_path):
    return shutil.copytree(trained_clicks, tmp_path / "runs" / "clicks")


@pytest.fixture(scope="module")
def trained_on_disk(graph, tmp_path_factory):
    """A run whose rows lie in pages, trained once; not to be changed."""
    folder = tmp_path_factory.mktemp("paged") / "run"
    train(graph_config(graph, budget(60), "checkpoint.every_batches=40"), folder)
    return folder


@pytest.fixture
def paged(trained_on_disk, tmp_path):
    return shutil.copytree(trained_on_disk, tmp_path / "runs" / "paged")


def readers(run):
    return [("eval", run), ("export", run), ("compare", run, run), ("resume", run, "--set", "training.epochs=3")]


def refused(command, argv, *parts):
    code, out, err = command(*argv)
    assert code == 2 and says(err, *parts), (argv, code, out)


def test_a_table_is_no_path(run, tmp_path, command):
    """Such a name became a file outside the folder that was asked for."""
    checkpoint = newest_checkpoint(run)
    evil = "../../../../evil"
    for part in ("values", "state", "timestamps"):
        shutil.copy(checkpoint / f"entities.{part}.npy", checkpoint / f"{evil}.{part}.npy")

    def change(manifest):
        for part in ("values", "state", "timestamps"):
            manifest["files"][f"{evil}.{part}.npy"] = manifest["files"][f"entities.{part}.npy"]

    reseal_checkpoint(checkpoint, change)
    before = contents(tmp_path)
    for argv in readers(run):
        refused(command, argv, "manifest.json: is damaged: files", "must be the plain name of a file")
    assert contents(tmp_path) == before


def test_names_of_paged_tables_are_no_paths(paged, tmp_path, command):
    reseal_checkpoint(newest_checkpoint(paged), lambda m: m["pages"].update({"../../evil": m["pages"]["entities"]}))
    for argv in readers(paged):
        refused(command, argv, "manifest.json: is damaged: pages", "must be the plain name of a file")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda m: m.update(files={}), "files.dense.safetensors is missing"),
        (lambda m: m["files"].pop("entities.state.npy"), "files.entities.state.npy is missing"),
        (lambda m: m["files"]["dense.safetensors"].pop("xxh3_blocks"), "dense.safetensors.xxh3_blocks is missing"),
        (lambda m: m["files"]["dense.safetensors"].update(blocks="0"), "blocks must match pattern"),
        (lambda m: m["files"]["dense.safetensors"].update(bytes="many"), "bytes must be a valid integer"),
        (lambda m: m["files"]["dense.safetensors"].update(bytes=-1), "bytes must be greater than or equal to 0"),
        (lambda m: m.update(sequence="0"), "sequence must be a valid integer"),
        (lambda m: m.update(sequence=True), "sequence must be a valid integer"),
        (lambda m: m.update(sequence=7), "is that of checkpoint 0000000007"),
        (lambda m: m.update(extra=[1]), "extra must be"),
        (lambda m: m.update(pages={"entities": {"rows": 1}}), "pages.entities.rows must be"),
        (lambda m: m.update(version=10**40), "beyond 64 bits"),
        (lambda m: m.update(extra=float("nan")), "NaN is no finite number"),
        (lambda m: m.update(extra={"a": "\ud800"}), "is no Unicode text"),
    ],
)  # fmt: skip
def test_manifests_of_other_types(run, command, change, said):
    reseal_checkpoint(newest_checkpoint(run), change)
    before = contents(run)
    for argv in readers(run):
        refused(command, argv, "manifest.json", said)
    assert {**contents(run), ".lock": ""} == {**before, ".lock": ""}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda extra: extra.pop("sequence"), "its position is another's"),
        (lambda extra: extra.update(total=[]), "total must be"),
        (lambda extra: extra.update(sequence=1), "its position is another's"),
        (lambda extra: extra.update(best_epoch=-5), "its position is another's"),
        (lambda extra: extra.update(best="x"), "best must be a valid number"),
    ],
)
def test_positions_of_other_types(run, command, change, said):
    reseal_checkpoint(newest_checkpoint(run), lambda manifest: change(manifest["extra"]))
    refused(command, ("resume", run, "--set", "training.epochs=3"), said)


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("entities.values", lambda a: a.astype(np.float64), "holds float64"),
        ("entities.values", lambda a: a.astype(">f4"), "holds >f4"),
        ("entities.values", np.asfortranarray, "Fortran order"),
        ("entities.values", lambda a: a.astype(object), "holds Python objects"),
        ("entities.values", lambda a: a.astype("U4"), "holds <U4"),
        ("entities.values", lambda a: a.reshape(-1), "float32 [any, any] is expected"),
        ("entities.values", lambda a: a[:50], "[50, 8]"),
        ("entities.values", lambda a: a[:, :4], "[199, 4]"),
        ("entities.state", lambda a: a[:, :4], "another shape"),
        ("entities.timestamps", lambda a: a.astype(np.int32), "holds int32"),
        ("entities.timestamps", lambda a: np.full_like(a, 2**62), "timestamp that is none"),
        ("entities.timestamps", lambda a: np.full_like(a, -7), "timestamp that is none"),
    ],
)
def test_arrays_of_other_types(run, command, name, change, said):
    path = newest_checkpoint(run) / f"{name}.npy"
    np.save(path, change(np.load(path)))
    reseal_checkpoint(path.parent)
    if "values" in name:
        refused(command, ("eval", run), said)
        refused(command, ("export", run), said)
    refused(command, ("resume", run, "--set", "training.epochs=3"), "" if "[" in said else said)


HEADERS = ["", "x" * 5000, "-" * 4000 + "1", "(" * 900 + ")" * 900, "{'descr': '<f4'}",
           "{'descr': '<f4', 'fortran_order': False, 'shape': (199, -8), }",
           "{'descr': '<f4', 'fortran_order': False, 'shape': (1 << 70,), }",
           "{'descr': '<f4', 'fortran_order': False, 'shape': (199, 1180591620717411303424), }",
           "{'descr': '<f4', 'fortran_order': 1, 'shape': None, }",
           "{'descr': [('a', '<f4')] , 'fortran_order': False, 'shape': (1592,), }",
           "{'descr': '<f4', 'fortran_order': False, 'shape': (199L, 8L), }"]  # fmt: skip


@pytest.mark.parametrize("header", HEADERS, ids=range(len(HEADERS)))
def test_headers_that_are_none(run, command, header):
    path = newest_checkpoint(run) / "entities.values.npy"
    text = header.encode().ljust(118) + b"\n"
    path.write_bytes(b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + path.read_bytes()[128:])
    reseal_checkpoint(path.parent)
    refused(command, ("eval", run), "entities.values.npy: ")


@pytest.mark.parametrize(
    "change",
    [
        lambda dense: dense["relations"].reshape(-1),
        lambda dense: dense["relations"][:1],
        lambda dense: dense["relations"].double(),
        lambda dense: dense["relations"][:, :2],
    ],
)
def test_dense_tensors_of_other_shapes(run, command, change):
    path = newest_checkpoint(run) / "dense.safetensors"
    dense = load_file(path)
    save_file({"relations": change(dense).contiguous()}, path)
    reseal_checkpoint(path.parent)
    for argv in (("eval", run), ("resume", run, "--set", "training.epochs=3")):
        refused(command, argv, "dense state" if argv[0] == "resume" else "relations")


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("index.keys", lambda a: a[:-1]),
        ("index.keys", lambda a: a.astype(np.float64)),
        ("index.keys", np.zeros_like),
        ("index.vocabularies", lambda a: a.astype(np.int64)),
        ("index.checks", lambda a: a[:3]),
        ("index.free", lambda a: np.array([-1])),
        ("index.free", lambda a: np.array([10**9])),
        ("index.free", lambda a: np.array([3, 2])),
        ("waiting.keys", lambda a: a.reshape(-1, 1)),
        ("seen", lambda a: a[:0]),
        ("last_file", lambda a: a[:1]),
        ("dropped", lambda a: a[:0]),
    ],
)
def test_keys_that_fit_nothing(clicks, trained_clicks, command, name, change):
    (path,) = newest_checkpoint(clicks).glob(f"*.{name}.npy")
    np.save(path, change(np.load(path)))
    reseal_checkpoint(path.parent)
    log = trained_clicks.parent / "day.parquet"
    for argv in (("eval", clicks, "--data", log), ("resume", clicks, "--set", "training.epochs=2")):
        refused(command, argv)
    if name in ("index.vocabularies", "index.checks"):
        refused(command, ("export", clicks))


def test_vocabularies_that_are_none_are_refused_in_an_export(clicks, command):
    for path in newest_checkpoint(clicks).glob("*.index.vocabularies.npy"):
        np.save(path, np.full_like(np.load(path), 60_000))
    reseal_checkpoint(path.parent)
    refused(command, ("export", clicks), "vocabulary 60000")


@pytest.mark.parametrize(
    ("slots", "said"),
    [
        (lambda a: np.full_like(a, -5), "slot -5"),
        (lambda a: np.full_like(a, 2**62), "slot 4611686018427387904"),
        (lambda a: np.full_like(a, a.max()), "twice"),
        (lambda a: a[:-1], "pages, but"),
        (lambda a: a.astype(np.int32), "holds int32"),
    ],
)
def test_slots_that_are_none(paged, command, slots, said):
    for path in paged.glob("checkpoints/*/entities.slots.npy"):
        np.save(path, slots(np.load(path)))
        reseal_checkpoint(path.parent)
    for argv in readers(paged):
        refused(command, argv, said)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda rows: rows.update(num_rows=-1), "can't be"),
        (lambda rows: rows.update(num_rows=2**39), "pages, but"),
        (lambda rows: rows.update(first_rows=10**6), "can't be"),
        (lambda rows: rows["layout"].update(dimension=2**61), "has"),
        (lambda rows: rows["layout"].update(dimension=0), "dimension must be at least 1"),
        (lambda rows: rows["layout"].update(state_width=7), ""),
        (lambda rows: rows["layout"].update(value_dtype="bfloat16"), ""),
        (lambda rows: rows["initial"].update(scale=-1.0), "scale must be finite"),
        (lambda rows: rows["initial"].update(kind="none"), "kind must be"),
    ],
)
def test_layouts_that_are_none(paged, command, change, said):
    reseal_checkpoint(newest_checkpoint(paged), lambda manifest: change(manifest["pages"]["entities"]["rows"]))
    for argv in (("eval", paged), ("resume", paged, "--set", "training.epochs=3")):
        refused(command, argv, said)


def test_a_row_whose_lock_bit_is_set_stops_nobody(paged, command):
    """Who reads such a row waits until it is clear, which it never will be."""
    checkpoint = newest_checkpoint(paged)
    slot = int(np.load(checkpoint / "entities.slots.npy")[3])
    for word in (1, -(2**63)):
        reseal_pages(paged, "entities", 3, lambda page, word=word: page.view(np.int64).__setitem__(0, word))
        for argv in readers(paged):
            refused(command, argv, f"slot {slot} is damaged or stale", "table 'entities'")


def test_page_files_are_no_other_files(paged, tmp_path, command):
    listing = paged / "tables" / "pages.json"
    content = json.loads(listing.read_text())
    (other,) = page_files(paged)
    shutil.copy(other, tmp_path / "victim")
    for names in ([str(tmp_path / "victim")], [f"../../victim/{other.name}"], ["\0"], [7], "x", [other.name] * 2):
        listing.write_text(json.dumps(content | {"files": names}))
        for argv in readers(paged):
            refused(command, argv, "pages.json: is damaged")


JSONS = ["checkpoints/best.json", "checkpoints/NEWEST/manifest.json"]


@pytest.mark.parametrize("name", JSONS)
@pytest.mark.parametrize("content", [DEEP, "[]", "7", "null", '{"a": 1e999}', "{", "\ud800", '{"format": "\\ud800"}',
                                     '{"a": ' + "9" * 5000 + "}"],
                         ids=list("123456789"))  # fmt: skip
def test_json_of_any_kind(run, command, name, content):
    path = run / name.replace("NEWEST", newest_checkpoint(run).name)
    path.write_bytes(content.encode("utf-8", "surrogatepass"))
    argv = ("eval", run, "--checkpoint", "best") if "best" in name else ("resume", run, "--set", "training.epochs=3")
    refused(command, argv, path.name)
