"""Files of torch.save, read without torch: arrays as they were saved, and one line for whatever else they hold."""

import json
import mmap
import os
import re
import resource
import shutil
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch

from marius_oac.cli.commands import main
from marius_oac.data.prepare import torch_file, torch_reader
from marius_oac.data.prepare.torch_file import open_torch_file
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
    with open_torch_file(tmp_path / "a.pt", tmp_path / "work") as file:
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


def in_this_process(content):
    """What the reader says, and which arrays a file gives: their shapes, or what is said of them."""
    with mmap.mmap(-1, len(content)) as mapped:
        mapped[:] = content
        return json.loads(json.dumps(torch_reader.told(mapped), default=lambda each: ([], 1, 0)))


def read(path, work):
    with open_torch_file(path, work) as file:
        return file.integers("head", (None,))


DEADLY = ("tuples nested deeply", "singles nested deeply", "a deep key", "memory", "memo bomb")
"""What may be the end of the process."""
REFUSED = {**{name: each for name, each in UNREADABLE.items() if name != "nothing"}, **WRONG}
OF_THE_CALLER = ("a shape of nothing and much", *(name for name in WRONG if name.startswith("characters")))
"""Arrays that the reader believes and its caller does not."""


@pytest.mark.parametrize("name", [name for name in REFUSED if name not in (*DEADLY, *OF_THE_CALLER)])
def test_what_is_refused(tmp_path, name, monkeypatch):
    monkeypatch.chdir(tmp_path)
    content, said = REFUSED[name]
    found = in_this_process(content)
    text = found["values"]["head"]["wrong"] if "values" in found else found["error"]
    assert re.search(said, text) and "\n" not in text and os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", [*DEADLY, *OF_THE_CALLER, "nothing", "code", "65 dimensions"])
def test_what_is_refused_is_one_line(tmp_path, name, monkeypatch):
    monkeypatch.chdir(tmp_path)
    content, said = {**UNREADABLE, **WRONG}[name]
    (tmp_path / "a.pt").write_bytes(content)
    with pytest.raises(InputError, match=rf"^{tmp_path}/a\.pt: .*({said})") as caught:
        read(tmp_path / "a.pt", tmp_path)
    assert "\n" not in str(caught.value) and os.listdir(tmp_path) == ["a.pt"]


@pytest.mark.parametrize("options", SAVED, ids=str)
def test_files_that_are_cut_off_at_any_place(options):
    content = saved({"head": np.arange(500), "tail": torch.arange(500)}, **options)
    assert "error" not in in_this_process(content)
    for kept in (1, 30, *(len(content) * part // 50 for part in range(1, 50)), len(content) - 1):
        assert "error" in in_this_process(content[:kept]), kept


@pytest.mark.parametrize("options", SAVED, ids=str)
def test_any_changed_byte_gives_an_error_or_arrays_within_the_file(options):
    content = saved({"head": np.arange(90), "tail": torch.arange(90), "types": ["a", "b"]}, **options)
    refused = 0
    for place in RANDOM.permutation(len(content))[:300].tolist():
        changed = bytearray(content)
        changed[place] ^= 1 << RANDOM.integers(8)
        found = in_this_process(bytes(changed))
        refused += "error" in found
        for value in found.get("values", {}).values():
            if "place" in value:
                assert 0 <= value["place"][0] <= value["place"][0] + value["place"][1] <= len(content)
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


LIMITED = """
import importlib.util, os, sys
spec = importlib.util.spec_from_file_location("reader", sys.argv[1])
reader = importlib.util.module_from_spec(spec)
sys.modules["reader"] = reader
spec.loader.exec_module(reader)
own = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmData"))
size = os.fstat(0).st_size
reader._MEMORY = own * 1024 + (4 << 20) + size // 10 - size // 2
reader.main()
"""


@pytest.mark.parametrize("options", SAVED, ids=str)
def test_a_file_is_read_within_4_mib_and_a_tenth_of_its_size(tmp_path, options):
    """As those of ogbl-biokg: edges and the names of their types."""
    size = 100_000
    types = [f"type {number}" for number in RANDOM.integers(0, 5, size)]
    types = list(map({each: each for each in types}.__getitem__, types))
    arrays = {name: RANDOM.integers(0, 90_000, size) for name in ("head", "relation", "tail")}
    (tmp_path / "a.pt").write_bytes(saved(arrays | {"head_type": types, "tail_type": types[::-1]}, **options))
    command = [sys.executable, "-I", "-S", "-c", LIMITED, torch_reader.__file__]
    with open(tmp_path / "a.pt", "rb") as file:
        found = subprocess.run(command, stdin=file, capture_output=True, check=True).stdout
    line, _, numbers = found.partition(b"\n")
    assert set(json.loads(line)["values"]) == {*arrays, "head_type", "tail_type"} and len(numbers) == 2 * size


def test_other_limits_hold(tmp_path):
    (tmp_path / "a.pt").write_bytes(b"\x80\x02" + b"K\x01" * 100)
    code = LIMITED.replace("reader.main()", "import resource\nreader.limit(1 << 30)\n") + (
        "print(*(resource.getrlimit(each)[1] for each in (resource.RLIMIT_CPU, resource.RLIMIT_FSIZE,\n"
        "resource.RLIMIT_CORE)))"
    )
    with open(tmp_path / "a.pt", "rb") as file:
        found = subprocess.run(
            [sys.executable, "-I", "-S", "-c", code, torch_reader.__file__], stdin=file, capture_output=True, text=True
        )
    assert found.stdout.split() == [str(8 + 128), "0", "0"]


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
