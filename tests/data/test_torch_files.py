"""Files of torch.save, read without torch: arrays as they were saved, and one line for whatever else they hold."""

import json
import os
import resource
import shutil
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch

from marius_oac.cli.commands import main
from marius_oac.data.reading import torch_file, torch_reader
from marius_oac.data.reading.torch_file import read_torch_file
from marius_oac.errors import InputError
from tests.ogb_folders import SAVED, write_ogb_folder

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # zipfile says that a name is there twice
    from tests.data.torch_hostile import UNREADABLE, WRONG, pickled, saved

RANDOM = np.random.default_rng(0)
LARGE = RANDOM.integers(-(2**62), 2**62, (300, 40))
ARRAYS = {
    "one": np.arange(300), "small": np.arange(5, dtype=np.int16), "empty": np.zeros((0, 2), np.int64), "large": LARGE,
    "fortran": np.asfortranarray(LARGE), "int32": LARGE.astype(np.int32), "bytes": np.arange(256, dtype=np.uint8),
    "other order": np.arange(4, dtype=">i4"), "unsigned": np.array([0, 2**64 - 1], np.uint64),
    "tensor": torch.arange(60).view(20, 3), "turned": torch.arange(60).view(20, 3).T,
    "part": torch.from_numpy(LARGE)[7:, 3:9:2],
    "int tensor": torch.arange(7, dtype=torch.int32), "empty tensor": torch.zeros(0, 2, dtype=torch.int64),
}  # fmt: skip


@pytest.mark.parametrize("options", SAVED, ids=str)
def test_arrays_are_those_that_were_saved(tmp_path, options):
    texts, many = ["drug", "gene", "drug"], [f"t{number % 300}" for number in range(3000)]
    content = {**ARRAYS, "texts": texts, "many": many, "objects": np.array(texts, object), "f": torch.ones(2)}
    (tmp_path / "a.pt").write_bytes(saved(content, **options))
    (tmp_path / "work").mkdir()
    file = read_torch_file(tmp_path / "a.pt", tmp_path / "work")
    for name, array in ARRAYS.items():
        found = file.integers(name, tuple(array.shape))
        assert found.tolist() == array.tolist(), name
        assert file.integers(name, (None,) * array.ndim).shape == tuple(array.shape)
    for name, expected in (("texts", texts), ("objects", texts), ("many", many)):
        known, numbers = file.texts(name, len(expected))
        assert [known[number] for number in numbers] == expected
    assert os.listdir(tmp_path / "work") == []
    for name, shape, said in [
        ("one", (None, 2), r"'one' is an array \[300\]; \[any, 2\] is expected"),
        ("large", (300, 41), r"'large' is an array \[300, 40\]; \[300, 41\] is expected"),
        ("f", (2,), "'f': numbers of type 'FloatStorage'; integers are expected"),
        ("objects", (3,), "'objects': it is no array of numbers"),
        ("texts", (3,), "'texts': it is no array"),
        ("none", (3,), "has no 'none'; it has one, small, empty"),
    ]:
        with pytest.raises(InputError, match=rf"a\.pt: {said}"):
            file.integers(name, shape)
    for name, count in (("texts", 2), ("one", 300), ("none", 3)):
        with pytest.raises(InputError, match=f"'{name}' is no list of {count} texts"):
            file.texts(name, count)


def read(path, work):
    return read_torch_file(path, work).integers("head", (None,))


HOSTILE = {**UNREADABLE, **WRONG}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_refused_is_one_line(tmp_path, name, monkeypatch):
    monkeypatch.chdir(tmp_path)
    content, said = HOSTILE[name]
    (tmp_path / "a.pt").write_bytes(content)
    with pytest.raises(InputError, match=rf"^{tmp_path}/a\.pt: .*({said})") as caught:
        read(tmp_path / "a.pt", tmp_path)
    assert "\n" not in str(caught.value) and os.listdir(tmp_path) == ["a.pt"]


LOADED = """
import json, os, runpy, sys
reader = runpy.run_path(sys.argv[1])
"""
MANY = (
    LOADED
    + """
import io
reader["limit"](1 << 20)
while size := int.from_bytes(sys.stdin.buffer.read(8), "little"):
    output = io.BytesIO()
    found = reader["told"](io.BytesIO(sys.stdin.buffer.read(size)), output)
    print(json.dumps(found | {"numbers": len(output.getvalue())}))
"""
)


def told_of(contents):
    """What the reader says of files, by a process of its own for all."""
    command = [sys.executable, "-I", "-S", "-c", MANY, torch_reader.__file__]
    written = b"".join(len(content).to_bytes(8, "little") + content for content in contents)
    lines = subprocess.run(command, input=written, capture_output=True, check=True).stdout.splitlines()
    assert len(lines) == len(contents)
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize("options", SAVED, ids=str)
def test_files_that_are_cut_off_at_any_place(options):
    content = saved({"head": np.arange(500), "tail": torch.arange(500)}, **options)
    kept = (1, 30, *(len(content) * part // 50 for part in range(1, 50)), len(content) - 1)
    whole, *cut = told_of([content, *(content[:count] for count in kept)])
    assert "error" not in whole and all("error" in found for found in cut)


@pytest.mark.parametrize("options", SAVED, ids=str)
def test_any_changed_byte_gives_an_error_or_arrays_within_the_numbers(options):
    content = saved({"head": np.arange(90), "tail": torch.arange(90), "types": ["a", "b"]}, **options)
    contents = []
    for place in RANDOM.permutation(len(content))[:300].tolist():
        changed = bytearray(content)
        changed[place] ^= 1 << RANDOM.integers(8)
        contents.append(bytes(changed))
    found = told_of(contents)
    for each in found:
        for offset, length in (value["place"] for value in each.get("values", {}).values() if "place" in value):
            assert 0 <= offset <= offset + length <= each["numbers"]
    refused = sum("error" in each for each in found)
    assert refused > (150 if "_use_new_zipfile_serialization" not in options else 50)


def test_a_reader_that_crashes_is_a_line(tmp_path, monkeypatch):
    (tmp_path / "a.pt").write_bytes(saved({"head": np.arange(3)}))
    for code, said in [
        ("import os; os.kill(os.getpid(), 11)", r"its reader, a process of its own, crashed \(SIGSEGV\)"),
        ("raise KeyError", r"its reader, a process of its own, crashed \(exit code 1\)"),
        ("import os; os.kill(os.getpid(), 24)", "it takes more time of the processor than such a file needs"),
    ]:
        (tmp_path / "reader.py").write_text(code)
        monkeypatch.setattr(torch_file, "_READER", tmp_path / "reader.py")
        with pytest.raises(InputError, match=rf"a\.pt: .*{said}$"):
            read(tmp_path / "a.pt", tmp_path)


def test_nothing_of_the_folder_or_the_environment_is_imported(tmp_path, monkeypatch):
    for name in ("json", "pickle", "sitecustomize", "zipfile", "array"):
        (tmp_path / f"{name}.py").write_text("open('harmed', 'w')\nraise SystemExit(3)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "a.pt").write_bytes(saved({"head": np.arange(3)}))
    assert read(tmp_path / "a.pt", tmp_path).tolist() == [0, 1, 2] and not (tmp_path / "harmed").exists()


LIMITED = (
    LOADED
    + """
own = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmData"))
size = os.fstat(0).st_size
reader["main"].__globals__["_ROOM"] = own * 1024 + (4 << 20) + int(sys.argv.pop(2)) - size
sys.argv.pop(0)
reader["main"]()
"""
)


@pytest.mark.parametrize("options", SAVED, ids=str)
@pytest.mark.parametrize("texts", [False, True], ids=["arrays", "texts"])
def test_arrays_are_read_within_4_mib_and_texts_within_the_files_size(tmp_path, options, texts):
    """As those of ogbl-biokg: edges and the names of their types. Arrays alone are larger than the bound."""
    size = 200_000
    content = {name: RANDOM.integers(0, 90_000, size) for name in ("head", "relation", "tail")}
    if texts:
        types = [f"type {number}" for number in RANDOM.integers(0, 5, size)]
        types = list(map({each: each for each in types}.__getitem__, types))
        content |= {"head_type": types, "tail_type": types[::-1]}
    (tmp_path / "a.pt").write_bytes(saved(content, **options))
    more = (tmp_path / "a.pt").stat().st_size if texts else 0
    command = [sys.executable, "-I", "-S", "-c", LIMITED, torch_reader.__file__, str(more), str(tmp_path / "numbers")]
    with open(tmp_path / "a.pt", "rb") as file:
        found = subprocess.run(command, stdin=file, capture_output=True, check=True).stdout
    assert set(json.loads(found)["values"]) == set(content)
    assert 0 <= (tmp_path / "numbers").stat().st_size - size * (3 * 8 + 2 * 4 * texts) < 8


def test_other_limits_hold():
    code = LOADED + (
        "import resource\nreader['limit'](1 << 30)\n"
        "print(*(resource.getrlimit(each)[1] for each in (resource.RLIMIT_DATA, resource.RLIMIT_CPU,\n"
        "resource.RLIMIT_FSIZE, resource.RLIMIT_CORE)))"
    )
    command = [sys.executable, "-I", "-S", "-c", code, torch_reader.__file__]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert found.stdout.split() == [
        str(limit) for limit in ((48 << 20) + (1 << 30), 8 + 128, (48 << 20) + (1 << 30), 0)
    ]


def test_no_file_a_folder_and_a_pipe(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for name, said in (("none", "no such file"), ("", "is a folder"), ("pipe", "is no regular file")):
        with pytest.raises(InputError, match=said):
            read(tmp_path / name, tmp_path)


@pytest.mark.slow
def test_each_hostile_file_is_one_line_of_the_command_at_a_bounded_cost(tmp_path, capsys):
    """Cut and changed files, too; most of the time goes into starting the readers."""
    folder = write_ogb_folder(tmp_path / "raw", "ogbl-wikikg2")
    path = folder / "split" / "time" / "train.pt"
    sound = path.read_bytes()
    hostile = [content for content, _ in (*UNREADABLE.values(), *WRONG.values())]
    hostile += [sound[: len(sound) * part // 50] for part in range(50)]
    hostile.append(pickled(b"\x80\x02" + b"N0" * 1000 + b"."))
    for content in hostile:
        path.write_bytes(content)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert main(["prepare", "ogbl-wikikg2", "--from", str(folder), "--out", str(tmp_path / "g")]) == 2
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        said = capsys.readouterr().err.splitlines()
        assert len(said) == 1 and said[0].startswith("marius-oac: ") and "Traceback" not in said[0], said
        assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 10
        assert os.listdir(tmp_path) == ["raw"]
    path.write_bytes(sound)
    assert main(["prepare", "ogbl-wikikg2", "--from", str(folder), "--out", str(tmp_path / "g")]) == 0
    shutil.rmtree(tmp_path / "g")
