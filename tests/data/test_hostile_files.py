"""Files that users are given to read, made to do harm: configs, logs, edges, labels. One line, in time, in memory."""

import gzip
import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from marius_oac.data.logs import lines as log_lines
from marius_oac.errors import CheckpointError, InputError
from marius_oac.runtime.files.untrusted import Described, parse_json, read_bounded
from tests.click_logs import ctr_config
from tests.graphs import tiny_config
from tests.run_folders import says, write_config

BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join(['*' + old] * 9)}]\n" for old, new in zip("abcdefghi", "bcdefghij", strict=True)
)
MERGED = "a: &a {x: 1}\n" + "".join(
    f"{new}: &{new} {{<<: [{', '.join(['*' + old] * 9)}]}}\n" for old, new in zip("abcdefghi", "bcdefghij", strict=True)
)
KEYED = BOMB + "? *j\n: 1\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (BOMB, "more than 100,000 values"),
        (MERGED, "more than 100,000 values"),
        ("? [a, b]\n: 1\n", "c.yaml:1: a key must be plain text"),
        ("[" * 20_000, "nested too deeply"),
        ("{a: " * 20_000, "nested too deeply"),
        ("a: " + "9" * 5000, "is not a number or date"),
        ("a: 0x" + "f" * 5000, "is not a number or date"),
        ("a: " + ":".join(["59"] * 5000), "is not a number or date"),
        ("a: 1" + ":59" * 5000 + ".5", "is not a number or date"),
        ("seed: !!int ''", "is not a number or date"),
        ("seed: !!bool maybe", "is not a number or date"),
        ("seed: !!timestamp soon", "is not a number or date"),
        ("seed: !!float x", "is not a number or date"),
        ("seed: !!python/object/apply:os.system [ls]", "could not determine a constructor"),
        ("seed: =", "could not determine a constructor"),
        ("seed: 0x" + "f" * 60, "seed: must be"),
        ("seed: 1e999", "seed: must be"),
        ("seed: .nan", "seed: must be"),
        ("seed: !!binary aGVsbG8=", "seed: must be"),
        ("seed: 1\nseed: 2", "stands here twice"),
        ("data: {path: \"a\\0b\"}", "without null characters"),
        ("x" * 2_000_000, "larger than the 1 MiB"),
        ("\0", "special characters"),
        (b"\xff", "is not UTF-8 text"),
    ],
    ids=range(24),
)  # fmt: skip
def test_configs(tmp_path, command, text, said):
    path = tmp_path / "c.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    code, _, err = command("train", path, "--out", tmp_path / "run")
    assert code == 2 and says(err, "c.yaml", said) and len(err[0]) < 2000


class Numbers(Described):
    number: int
    numbers: dict[str, float] = {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[" * 200_000 + "]" * 200_000, "nested too deeply"),
        ('{"number": 1, "x": ' + "[" * 40 + "]" * 40 + "}", "nested too deeply"),
        ('{"number": 1e999}', "1e999 is no finite number"),
        ('{"number": NaN}', "NaN is no finite number"),
        ('{"number": 9223372036854775808}', "beyond 64 bits"),
        ('{"number": ' + "9" * 10_000 + "}", "beyond 64 bits"),
        ('{"number": 1, "number": 2}', "the key 'number' stands there twice"),
        ('{"number": true}', "number must be a valid integer, not true"),
        ('{"number": "1"}', "number must be a valid integer, not '1'"),
        ('{"number": 1.0}', "number must be a valid integer"),
        ('{"numbers": {"a": "b"}, "number": 1}', "numbers.a must be a valid number"),
        ('{"number": 1, "x": "\\udc80"}', "is no Unicode text"),
        ('{"\\ud800": 1}', "is no Unicode text"),
        ("{}", "number is missing"),
        ("\x00", "is no JSON"),
        ("", "is no JSON"),
        (b'"\xff"', "not UTF-8"),
    ],
    ids=range(17),
)
def test_json(text, said):
    content = text if isinstance(text, bytes) else text.encode()
    with pytest.raises(CheckpointError) as caught:
        parse_json(content, "a.json", Numbers, CheckpointError)
    assert str(caught.value).startswith("a.json: is damaged: ") and said in str(caught.value)


def test_json_that_is_right():
    assert parse_json(b'{"number": -3, "other": 1, "numbers": {"a": 1}}', "", Numbers) == Numbers(
        number=-3, numbers={"a": 1}
    )
    assert np.isnan(parse_json(b"[NaN]", "", list[float], nan=True)[0])


def test_a_small_file_that_is_large_is_not_read(tmp_path):
    with open(tmp_path / "a.json", "wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(InputError, match="larger than the 64 MiB"):
        read_bounded(tmp_path / "a.json")


@pytest.fixture(params=["pipe", "device", "link to a device", "folder"])
def special(request, tmp_path):
    """What is no file; nobody ever writes to the pipe."""
    if request.param == "device":
        return "/dev/zero"
    path = tmp_path / "special.tsv"
    {"pipe": os.mkfifo, "folder": os.mkdir, "link to a device": lambda p: os.symlink("/dev/zero", p)}[request.param](
        path
    )
    return path


def test_what_is_no_file_is_said_at_once(special, graph, tmp_path, command):
    data, encoder = f"{{path: {graph.path}, labels: {special}}}", "{layers: [{kind: sage}], embeddings: 4}"
    (tmp_path / "labels.yaml").write_text(f"{{task: node_classification, data: {data}, encoder: {encoder}}}")
    log = write_config(tmp_path / "log.yaml", ctr_config(special, "data.format=csv"))
    for argv in (
        ("prepare", special, "--out", tmp_path / "g", "--delimiter", ","),
        ("train", special),
        ("train", tmp_path / "labels.yaml", "--out", tmp_path / "run"),
        ("train", log, "--out", tmp_path / "run"),
        ("eval", special),
    ):
        code, _, err = command(*argv)
        assert code == 2 and len(err) == 1, argv
    assert not (tmp_path / "g").exists() and not (tmp_path / "run").exists()


def endless(path, before: bytes, size: int) -> None:
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(before)
        for _ in range(size >> 20):
            file.write(b"x" * (1 << 20))


@pytest.mark.parametrize("name", ["a.csv.gz", "a.tsv.gz", "a.svm.gz"])
def test_a_line_without_an_end_in_a_log(tmp_path, command, name):
    """It would be gathered in memory, whatever its length."""
    head = b"label,number,user,item,tags,history\n1,1,1,1,1,1\n"
    endless(
        tmp_path / name, b"1 1:1\n" if "svm" in name else head.replace(b",", b"\t" if "tsv" in name else b","), 24 << 20
    )
    config = ctr_config(tmp_path / name)
    if "svm" in name:
        config = config.build(
            {**config.model_dump(mode="json"), "data": {"train": str(tmp_path / name), "categorical": ["a"]}}
        )
    code, _, err = command("train", write_config(tmp_path / "c.yaml", config), "--out", tmp_path / "run")
    assert code == 2 and says(err, name, ", which begins at byte", "is longer than 4 MiB")


def test_where_lines_are_too_long(tmp_path, monkeypatch):
    monkeypatch.setattr(log_lines, "TEXT_BYTES", 8)
    monkeypatch.setattr(log_lines, "MOST_LINE_BYTES", 10)
    path = tmp_path / "a.csv"
    for line, text, begin in [
        (1, b"x" * 11, 0),
        (2, b"a\n" + b"x" * 11 + b"\n", 2),
        (3, b"aaaaaaa\n\r" + b"x" * 11 + b"\nb", 9),
        (3, b"aaaaaaa\r\nb\r" + b"x" * 11 + b"\nb", 11),
    ]:
        path.write_bytes(text)
        with pytest.raises(InputError, match=f"line {line}, which begins at byte {begin} of"):
            log_lines.count_rows(path)
    for text, rows in [(b"x" * 10, 1), (b"x" * 10 + b"\n" + b"y" * 10 + b"\r\n" + b"z" * 10, 3), (b"\n" * 50, 0)]:
        path.write_bytes(text)
        assert log_lines.count_rows(path) == rows


def test_a_block_of_lines_that_is_too_large(tmp_path, monkeypatch):
    monkeypatch.setattr(log_lines, "TEXT_BYTES", 8)
    monkeypatch.setattr(log_lines, "MOST_BLOCK_BYTES", 64)
    path = tmp_path / "a.csv"
    path.write_text("1234567\n" * 20)
    with pytest.raises(InputError, match="rows 1 to .*: 100 rows are taken at once"):
        list(log_lines.blocks_of_lines(path, 0, 100))
    assert sum(map(len, log_lines.blocks_of_lines(path, 0, 7))) == 20


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_log_of_countless_columns(tmp_path, command, suffix):
    """Names were compared each with each."""
    names = [f"c{number}" for number in range(12_000)]
    path = tmp_path / f"a.{suffix}"
    if suffix == "csv":
        path.write_text(",".join(names) + "\n1\n")
    else:
        pq.write_table(pa.table({name: [1] for name in names}), path)
    code, _, err = command("train", write_config(tmp_path / "c.yaml", ctr_config(path)), "--out", tmp_path / "run")
    assert code == 2 and says(err, f"a.{suffix}: 12,000 columns, at most 10,000 are possible")


def test_dgl_s_description(tmp_path, command):
    (tmp_path / "csv").mkdir()
    (tmp_path / "secret").write_text("src_id,dst_id\n1,2\n")
    for text, said in [
        ("edge_data: [{file_name: ../secret}]", "must be a file of the folder"),
        (f"edge_data: [{{file_name: {tmp_path}/secret}}]", "must be a file of the folder"),
        ("edge_data: [{file_name: \"a\\0b\"}]", "must be a file of the folder"),
        ("edge_data: 7", "edge_data must be"),
        ("edge_data: [7]", "edge_data.0 must be"),
        ("edge_data: [{file_name: [1]}]", "file_name must be"),
        ("edge_data: [{file_name: a.csv, etype: [a]}]", "etype"),
        ("edge_data: [{file_name: a.csv}]\nseparator: ';;'", "separator"),
        ("edge_data: [{file_name: a.csv}]\nnode_data: {a: b}", "node_data must be"),
        ("edge_data: &a [*a]", "contains itself"),
        ("[" * 5000, "nested too deeply"),
        ("version: [1]", "version [1]"),
    ]:  # fmt: skip
        (tmp_path / "csv" / "meta.yaml").write_text(text)
        code, _, err = command("prepare", tmp_path / "csv", "--out", tmp_path / "g")
        assert code == 2 and says(err, "meta.yaml", said)


@pytest.mark.parametrize("number", [10**12, 2**62])
@pytest.mark.parametrize(
    "key", ["training.negatives.count", "training.batch_size", "threads", "pipeline.workers.read", "pipeline.in_flight",
            "model.dimension", "storage.look_ahead", "storage.depth", "training.ordering.partitions"])  # fmt: skip
def test_numbers_of_a_config_that_no_machine_has_room_for(graph, tmp_path, command, key, number):
    more = {"storage.look_ahead": ["storage.memory=1MiB"], "storage.depth": ["storage.memory=1MiB"],
            "training.ordering.partitions": ["training.ordering.kind=beta", "training.ordering.buffer=2"]}  # fmt: skip
    path = write_config(tmp_path / "c.yaml", tiny_config(graph, "training.epochs=1"))
    sets = [word for each in (f"{key}={number}", *more.get(key, ())) for word in ("--set", each)]
    code, _, err = command("train", path, "--out", tmp_path / "run", *sets)
    # A batch of all edges is one that a larger size asks for.
    assert code == 0 if key == "training.batch_size" else code == 2 and len(err) < 4
    assert (tmp_path / "run").exists() == (code == 0)
