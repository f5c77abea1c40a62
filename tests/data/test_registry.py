"""Known data sets: names, files in a folder, checksums, and downloads against a server on loopback."""

import dataclasses
import gzip
import hashlib
import io
import os
import socket
import tarfile
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from marius_oac.data.folders import default_cache_dir
from marius_oac.data.graphs.graph import Graph
from marius_oac.data.reading.download import download, extract, fetch
from marius_oac.data.reading.edge_file import EdgeFile
from marius_oac.data.reading.readers import read_edges
from marius_oac.data.reading.registry import DATASETS, EMBEDDED, KnownDataset, find_dataset, locate, verify
from marius_oac.errors import InputError
from marius_oac.prepare import prepare as prepare_module
from marius_oac.prepare.prepare import PrepareRequest, prepare
from tests.ogb_folders import write_ogb_folder

TEXT = {"train": b"a\tr\tb\nb\tr\ta\n", "valid": b"a\tr\ta\n", "test": b"b\tr\tb\n"}
SHA256 = {split: hashlib.sha256(text).hexdigest() for split, text in TEXT.items()}
EXPECTED = {
    "FB15k", "FB15k-237", "WN18", "WN18RR", "YAGO3-10", "CoDEx-S", "CoDEx-M", "CoDEx-L", "Freebase86m", "Wikidata5M",
    "ogbl-wikikg2", "ogbl-biokg", "ogbl-citation2", "ogbl-collab", "ogbl-ddi", "ogbl-ppa",
    "LiveJournal", "Twitter-2010",
}  # fmt: skip
real_data = pytest.mark.skipif(
    "MARIUS_OAC_DATA" not in os.environ, reason="MARIUS_OAC_DATA names no folder of data sets"
)


def test_all_are_there_and_describe_themselves():
    assert {dataset.name for dataset in DATASETS} == {name.lower() for name in EXPECTED}
    names = [name for dataset in DATASETS for name in (dataset.name, *dataset.aliases)]
    assert len(set(names)) == len(names) and all(name == name.lower() for name in names)
    for dataset in DATASETS:
        line = dataset.describe()
        assert ("checksum: verified" in line) == (dataset.sha256 is not None)
        assert dataset.licence in line and all(url.startswith("https://") for url in dataset.urls.values())
        assert set(dataset.urls) in ({"archive"}, set(dataset.splits))
        assert ("archive" in dataset.urls) == bool(dataset.members)
        assert dataset.sha256 is None or set(dataset.sha256) == set(dataset.splits)


def test_names_whatever_the_case_and_near_ones():
    for name in EXPECTED:
        assert find_dataset(name).name == name.lower()
    assert find_dataset("Twitter").name == "twitter-2010"
    for wrong, near in (("FB15k-273", "did you mean fb15k-237"), ("codex_m", "codex-m"), ("zzz", "known: codex-s, ")):
        with pytest.raises(InputError, match=f"{wrong}: no such file, and no known data set of that name; .*{near}"):
            find_dataset(wrong)


def test_unknown_data_set_and_missing_file_read_differently(tmp_path):
    with pytest.raises(InputError, match="wn18r: no such file, and no known data set"):
        prepare(PrepareRequest(source="wn18r", out=tmp_path / "o"))
    with pytest.raises(InputError, match="wn18.tsv: no such file$"):
        prepare(PrepareRequest(source="wn18.tsv", out=tmp_path / "o"))


def test_the_embedded_files_are_the_verified_ones():
    (dataset,) = (dataset for dataset in DATASETS if dataset.embedded)
    files = locate(dataset, EMBEDDED / dataset.name)
    for (split, path), count in zip(files.items(), dataset.edges, strict=True):
        assert path.name == f"{split}.txt.gz"
        assert sum(len(batch) for batch in read_edges(EdgeFile(path, dataset.read))) == count
    assert "MIT" in (EMBEDDED / dataset.name / "LICENSE").read_text()


@real_data
@pytest.mark.parametrize("name", ["codex-s", "fb15k-237", "wn18"])
def test_real_files_have_the_published_counts(tmp_path, name):
    folder = Path(os.environ["MARIUS_OAC_DATA"]) / name
    if not folder.is_dir():
        pytest.skip(f"MARIUS_OAC_DATA has no {name}")
    dataset = find_dataset(name)
    assert dataset.sha256 is not None
    summary = prepare(PrepareRequest(source=name, from_dir=folder, out=tmp_path / "g", unseen="keep"))
    assert tuple(summary.edges.values()) == dataset.edges
    assert (summary.num_nodes, summary.num_relations) == (dataset.nodes, dataset.relations)


def small(**changes) -> KnownDataset:
    dataset = KnownDataset(
        name="small", nodes=2, relations=1, edges=(2, 1, 1), licence="none", urls={}, members={}, sha256=SHA256
    )
    return dataclasses.replace(dataset, **changes)


def test_files_in_a_folder_under_several_names(tmp_path):
    dataset = small(members={"train": "deep/odd-train.txt", "valid": "deep/odd-valid.txt", "test": "deep/odd-test.txt"})
    (tmp_path / "odd-train.txt").write_bytes(TEXT["train"])
    (tmp_path / "valid.tsv.gz").write_bytes(gzip.compress(TEXT["valid"]))
    with pytest.raises(InputError, match=r"small's test file is missing \(odd-test.txt, odd-test.txt.gz or the like\)"):
        locate(dataset, tmp_path)
    (tmp_path / "test.csv").write_bytes(TEXT["test"])
    assert [path.name for path in locate(dataset, tmp_path).values()] == ["odd-train.txt", "valid.tsv.gz", "test.csv"]
    (tmp_path / "test.csv").write_bytes(TEXT["valid"])
    with pytest.raises(InputError, match=r"test.csv: this is not small's test file \(SHA-256"):
        locate(dataset, tmp_path)
    with pytest.raises(InputError, match="no such folder"):
        locate(dataset, tmp_path / "none")


def test_a_known_single_file_is_split_and_read_its_own_way(tmp_path):
    (tmp_path / "twitter-2010.txt.gz").write_bytes(gzip.compress(b"".join(b"%d %d\n" % (i, i + 1) for i in range(100))))
    summary = prepare(
        PrepareRequest(source="Twitter", from_dir=tmp_path, out=tmp_path / "g", test_fraction=0.2, unseen="keep")
    )
    assert summary.edges == {"train": 75, "valid": 5, "test": 20} and summary.num_nodes == 101


def test_freebase_has_its_relation_last(tmp_path):
    for split in ("train", "valid", "test"):
        (tmp_path / f"{split}.txt").write_bytes(b"0\t1\t7\n1\t0\t8\n")
    prepare(PrepareRequest(source="freebase86m", from_dir=tmp_path, out=tmp_path / "g"))
    graph = Graph.open(tmp_path / "g")
    assert graph.edges("train").tolist() == [[0, 0, 1], [1, 1, 0]] and graph.relation_names([0, 1]) == ["7", "8"]


class Handler(BaseHTTPRequestHandler):
    """Answers as the path says; `files` is set on the server."""

    def do_GET(self):
        name = self.path.removeprefix("/")
        if name == "hang-up":
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            self.wfile.write(b"x" * 10)
        elif name == "silent":
            self.server.release.wait(30)
        elif name in self.server.files:
            self.send_response(200)
            self.send_header("Content-Length", str(len(self.server.files[name])))
            self.end_headers()
            self.wfile.write(self.server.files[name])
        else:
            self.send_error(404)

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = False
        server.files, server.release = {}, threading.Event()
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.release.set()
        server.shutdown()
        thread.join()


def address(server, name):
    return f"http://127.0.0.1:{server.server_port}/{name}"


def test_download(server, tmp_path):
    server.files["f"] = content = os.urandom(3 << 20)
    download(address(server, "f"), tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == content and os.listdir(tmp_path) == ["f"]


@pytest.mark.parametrize(
    ("name", "message"),
    [("none", "the server answers 404 Not Found"), ("hang-up", "the download was cut off: 10 of 1,000 bytes came")],
)
def test_downloads_that_fail_leave_what_was_there(server, tmp_path, name, message):
    (tmp_path / "target").write_bytes(b"old")
    with pytest.raises(InputError) as caught:
        download(address(server, name), tmp_path / "target")
    assert str(caught.value) == f"{address(server, name)}: {message}"
    assert os.listdir(tmp_path) == ["target"] and (tmp_path / "target").read_bytes() == b"old"


def test_silent_server_no_server_other_scheme(server, tmp_path):
    with pytest.raises(InputError, match="in 0.2 s less than 1 KiB/s came"):
        download(address(server, "silent"), tmp_path / "f", patience=0.2)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with pytest.raises(InputError, match="no connection: .*refused"):
            download(f"http://127.0.0.1:{unused.getsockname()[1]}/f", tmp_path / "f")
    with pytest.raises(InputError, match="only http and https addresses are fetched"):
        download((tmp_path / "g").as_uri(), tmp_path / "f")
    with pytest.raises(InputError, match="can't be written: No such file"):
        download(address(server, "f"), tmp_path / "none" / "f")
    assert os.listdir(tmp_path) == []


def zipped(members):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def tarred(members, links=()):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
        for name, target in links:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, target
            archive.addfile(info)
    return buffer.getvalue()


MEMBERS = {split: f"deep/{split}.txt" for split in TEXT}


@pytest.mark.parametrize(("suffix", "pack"), [("zip", zipped), ("tar.gz", tarred)])
def test_archives_are_fetched_once(server, tmp_path, suffix, pack):
    evil = {"../../evil.txt": b"x", "/tmp/evil.txt": b"x", "deep/other.txt": b"x"}
    server.files[f"a.{suffix}"] = pack({f"./deep/{split}.txt": text for split, text in TEXT.items()} | evil)
    dataset = small(urls={"archive": address(server, f"a.{suffix}")}, members=MEMBERS)
    files = fetch(dataset, tmp_path / "cache")
    assert {split: path.read_bytes() for split, path in files.items()} == TEXT
    folder = tmp_path / "cache" / "downloads" / "small"
    assert sorted(os.listdir(folder)) == ["test.txt", "train.txt", "valid.txt"]
    assert sorted(path.name for path in tmp_path.rglob("*evil*")) == []
    server.files.clear()
    assert fetch(dataset, tmp_path / "cache") == files


def test_single_files_are_fetched_and_wrong_ones_removed(server, tmp_path):
    server.files.update({f"{split}.gz": gzip.compress(text) for split, text in TEXT.items()})
    dataset = small(urls={split: address(server, f"{split}.gz") for split in TEXT})
    assert {path.name for path in fetch(dataset, tmp_path).values()} == {f"{split}.txt.gz" for split in TEXT}
    server.files["valid.gz"] = gzip.compress(b"x\ty\tz\n")
    with pytest.raises(InputError, match="valid.txt.gz: this is not small's valid file"):
        fetch(dataset, tmp_path / "again")
    assert not (tmp_path / "again" / "downloads" / "small" / "valid.txt.gz").exists()


def test_prepare_downloads_a_known_data_set(server, tmp_path, monkeypatch):
    server.files["a.zip"] = zipped({f"deep/{split}.txt": text for split, text in TEXT.items()})
    dataset = small(urls={"archive": address(server, "a.zip")}, members=MEMBERS)
    monkeypatch.setattr(prepare_module, "find_dataset", lambda name: dataset)
    summary = prepare(PrepareRequest(source="small", out=tmp_path / "g", cache_dir=tmp_path / "cache"))
    assert summary.edges == {"train": 2, "valid": 1, "test": 1}


@pytest.mark.parametrize("name", ["ogbl-biokg", "ogbl-ddi"])
def test_prepare_downloads_a_set_of_ogb(server, tmp_path, monkeypatch, name):
    """Of its archive it reads four members, in which the folder has OGB's name for the download."""
    known, folder = find_dataset(name), write_ogb_folder(tmp_path / "raw", name)
    top = known.members["train"].partition("/")[0]
    files = {f"{top}/{path.relative_to(folder)}": path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    server.files["a.zip"] = zipped(files | {f"{top}/mapping/README.md": b"x", "../evil": b"x"})
    dataset = dataclasses.replace(known, urls={"archive": address(server, "a.zip")})
    monkeypatch.setattr(prepare_module, "find_dataset", lambda name: dataset)
    for out in ("a", "b"):
        prepare(PrepareRequest(source=name, out=tmp_path / out, cache_dir=tmp_path / "cache"))
        server.files.clear()
    prepare(PrepareRequest(source=name, from_dir=folder, out=tmp_path / "c"))
    prints = {Graph.open(tmp_path / out).fingerprint for out in ("a", "b", "c")}
    assert len(prints) == 1
    kept = sorted(os.listdir(tmp_path / "cache" / "downloads" / name))
    assert kept == ["num-node-dict.csv.gz" if known.ogb.kind == "typed" else "num-node-list.csv.gz",
                    "test.pt", "train.pt", "valid.pt"]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.zip", b"no archive", "the archive is damaged"),
        ("a.tgz", b"no archive", "the archive is damaged"),
        ("a.zip", zipped({"x": b""}), "the archive has no file 'deep/train.txt'; it has x"),
        ("a.tgz", tarred({"x": b""}), "the archive has no file 'deep/train.txt'; it has x"),
        ("a.tgz", tarred({"x": b""}, [("deep/train.txt", "/etc/passwd")]), "the archive has no file 'deep/train.txt'"),
        ("a.tgz", tarred({"deep/train.txt": os.urandom(100_000)})[:50_000], "the archive is damaged"),
    ],
    ids=["no zip", "no tar", "zip without it", "tar without it", "link", "torn"],
)
def test_bad_archives(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError) as caught:
        extract(tmp_path / name, {"deep/train.txt": tmp_path / "train.txt"})
    assert str(caught.value).startswith(f"{tmp_path / name}: {message}") and os.listdir(tmp_path) == [name]


def test_verify_leaves_unverified_sets_alone(tmp_path):
    (tmp_path / "f.txt").write_bytes(b"anything")
    verify(small(sha256=None), "train", tmp_path / "f.txt")
    with pytest.raises(InputError):
        verify(small(), "train", tmp_path / "f.txt")


def test_cache_folder_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache_dir() == tmp_path / "marius_oac"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_cache_dir() == tmp_path / ".cache" / "marius_oac"
