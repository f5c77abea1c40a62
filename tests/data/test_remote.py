"""Files of edges by their address: the same graph as from the file, errors of one line, and no secret anywhere."""

import json
import threading
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from marius_oac.cli.commands import main
from marius_oac.data.reading.remote import is_address, shown
from marius_oac.errors import InputError
from marius_oac.prepare.dgl.prepare import prepare_source
from marius_oac.prepare.prepare import PrepareRequest

EDGES = "".join(f"a{i % 7}\tr{i % 3}\tb{i % 11}\n" for i in range(200)).encode()


@pytest.fixture
def store():
    """Puts files into fsspec's store in memory."""
    MemoryFileSystem.store.clear()
    yield lambda name, content: fsspec.filesystem("memory").pipe(name, content)
    MemoryFileSystem.store.clear()


@contextmanager
def server(folder):
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder)) as http:
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{http.server_port}"
        finally:
            http.shutdown()
            thread.join()


def graph(path, **request):
    prepare_source(PrepareRequest(out=path, **request))
    files = {each.name: each.read_bytes() for each in path.iterdir() if each.name != "graph.json"}
    return files, json.loads((path / "graph.json").read_text("utf-8"))["sources"]


@pytest.mark.parametrize("given", [False, True])
def test_the_graph_is_that_of_the_file(store, tmp_path, given):
    (tmp_path / "edges.tsv").write_bytes(EDGES)
    store("/bucket/edges.tsv", EDGES)
    local = str(tmp_path / "edges.tsv")
    there = "memory://bucket/edges.tsv"
    names = ("train", "valid") if given else ("source",)
    expected, _ = graph(tmp_path / "local", **dict.fromkeys(names, local))
    found, sources = graph(tmp_path / "remote", **dict(zip(names, (there, local), strict=False)))
    assert found == expected
    assert sources["train" if given else "all"] == there
    assert {each.name for each in tmp_path.iterdir()} == {"edges.tsv", "local", "remote"}


def test_http(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "edges.tsv").write_bytes(EDGES)
    (tmp_path / "edges.tsv").write_bytes(EDGES)
    with server(tmp_path / "there") as place:
        found, sources = graph(tmp_path / "remote", source=f"http://{place}/edges.tsv?signature=secret")
        assert sources == {"all": f"http://{place}/edges.tsv"}
        assert found == graph(tmp_path / "local", source=str(tmp_path / "edges.tsv"))[0]
        with pytest.raises(InputError) as error:
            graph(tmp_path / "none", source=f"http://{place}/none.tsv?signature=secret")
    assert str(error.value) == f"http://{place}/none.tsv: the server answers 404 Not Found"


def test_what_is_wrong_in_the_file_is_told_by_its_address(store, tmp_path, capsys):
    store("/bucket/edges.tsv", b"a\tr\tb\na\tr\n")
    assert main(["prepare", "memory://bucket/edges.tsv", "--out", str(tmp_path / "g")]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("marius-oac: memory://bucket/edges.tsv:2: ")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("memory://bucket/none.tsv", "memory://bucket/none.tsv: no such file"),
        ("memory://key:secret@none/", "memory://none/: no such file"),
        ("http://key:secret@none/", "http://none/: the address names no file"),
        ("memory://bucket/empty.tsv", "memory://bucket/empty.tsv: the file is empty"),
        ("memory://bucket/graph.bin", "memory://bucket/graph.bin: "),
        (
            "http://user:secret@127.0.0.1:1/a.tsv",
            "http://127.0.0.1:1/a.tsv: a user and a password are not sent over http",
        ),
        ("http://127.0.0.1:1/a.tsv?key=secret", "http://127.0.0.1:1/a.tsv: no connection: "),
        ("http://[::1]:1/a.tsv?key=secret", "http://[::1]:1/a.tsv: no connection: "),
        ("zip://a.tsv::s3://key:secret@bucket/a.zip", "zip: one address is needed, not several joined by ::"),
        ("nothing://key:secret@bucket/a.tsv", "nothing://bucket/a.tsv: can't be read: Protocol not known: nothing"),
    ],
)
def test_an_address_that_does_not_do_is_one_line(store, tmp_path, address, said):
    store("/bucket/empty.tsv", b"")
    store("/bucket/graph.bin", EDGES)
    with pytest.raises(InputError) as error:
        graph(tmp_path / "g", source=address)
    assert str(error.value).startswith(said) and "secret" not in str(error.value)
    assert not list(tmp_path.iterdir())


class Broken(MemoryFileSystem):
    protocol = "broken"
    store: dict = {}

    def info(self, path, **_):
        return {"type": "file", "size": 2 * len(EDGES) if path.endswith("short.tsv") else len(EDGES)}

    def open(self, path, mode="rb", **_):
        class File:
            def __enter__(self):
                return self

            def __exit__(self, *_):
                pass

            def read(self, size, pieces=[EDGES, b""]):  # noqa: B006
                if path.endswith("long.tsv"):
                    return EDGES
                if path.endswith("short.tsv"):
                    pieces[:] = [*pieces[1:], pieces[0]]
                    return pieces[1]
                raise RuntimeError(f"no more of broken://key:secret@{path}?key=secret")

        return File()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("short", "fewer bytes came than it has: 1,818 of 3,636"),
        ("long", "more bytes came than it has: 3,636 of 1,818"),
        ("torn", "can't be read: no more of broken://"),
    ],
)
def test_a_store_that_breaks_off(tmp_path, name, said):
    fsspec.register_implementation("broken", Broken, clobber=True)
    with pytest.raises(InputError, match=said) as error:
        graph(tmp_path / "g", source=f"broken://bucket/{name}.tsv")
    assert str(error.value).startswith(f"broken://bucket/{name}.tsv: ") and "secret" not in str(error.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("text", "address"),
    [("a.tsv", False), ("./s3:/a", False), ("s3://b/a", True), ("codex-s", False), ("C://a", False), ("gs://", True)],
)
def test_addresses(text, address):
    assert is_address(text) == address


def test_what_is_shown():
    assert shown("https://user:pw@host:80/a/b.tsv?X-Amz-Signature=1#x") == "https://host:80/a/b.tsv"
    assert shown("s3://bucket/a@b.tsv") == "s3://bucket/a@b.tsv"
    assert shown("sftp://u:se@cret@host:22/a@b.tsv") == "sftp://host:22/a@b.tsv"
    assert shown("s3://u:se/cret@bucket/a.tsv") == "s3://..."
    assert shown("sftp://user:pa?ss@host/a.tsv") == shown("sftp://user:p#ss@host/a.tsv") == "sftp://host/a.tsv"
    assert shown("cache::s3://u:secret@bucket/a.tsv?x=secret") == "cache::s3://bucket/a.tsv"


class Talkative(MemoryFileSystem):
    """Repeats in its messages what it was given, as some packages do."""

    protocol = "talkative"

    def info(self, path, **_):
        raise ValueError('Invalid bucket name "key:hush@bucket": hush, se/cret, key=mum')


@pytest.mark.parametrize(
    "address",
    [
        "talkative://key:hush@bucket/a.tsv?key=mum",
        "talkative://u:se/cret@bucket/a.tsv",
        "talkative://u:se%2Fcret@b/a.tsv",
    ],
)
def test_what_a_package_repeats_of_an_address_is_not_told(tmp_path, address):
    fsspec.register_implementation("talkative", Talkative, clobber=True)
    with pytest.raises(InputError) as error:
        graph(tmp_path / "g", source=address)
    secrets = ("hush", "mum") if "hush" in address else ("se/cret", "cret")
    assert not any(secret in str(error.value) for secret in secrets) and "can't be read: Invalid" in str(error.value)


@pytest.mark.parametrize("command", ["init {}", "train c.yaml"])
def test_addresses_are_for_prepare_alone(tmp_path, monkeypatch, capsys, command):
    monkeypatch.chdir(tmp_path)
    address = "s3://key:secret@bucket/logs/"
    config = f"task: ctr\ndata: {{train: ['{address}'], label: y, numeric: [x]}}\nmodel: {{network: lr}}\n"
    (tmp_path / "c.yaml").write_text(config)
    assert main(command.format(address).split()) == 2
    said = capsys.readouterr().err
    assert "s3://bucket/logs/: an address is for `marius-oac prepare` alone" in said and "secret" not in said
