"""Files of torch.save, read without torch: arrays as they were saved, and one line for whatever else they hold."""

import collections
import io
import os
import pickle
import struct
import zipfile

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from marius_oac.data.prepare import pickles
from marius_oac.data.prepare.pickles import DamagedPickle, read_pickle
from marius_oac.data.prepare.torch_file import open_torch_file
from marius_oac.errors import InputError
from tests.ogb_folders import SAVED

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


def save(path, content, **saved):
    torch.save(content, path, **saved)
    return path


@pytest.mark.parametrize("saved", SAVED, ids=str)
def test_arrays_are_those_that_were_saved(tmp_path, saved):
    texts = ["drug", "gene", "drug"]
    content = {**ARRAYS, "texts": texts, "objects": np.array(texts, object), "f": torch.ones(2)}
    path = save(tmp_path / "a.pt", content, **saved)
    (tmp_path / "work").mkdir()
    with open_torch_file(path, tmp_path / "work") as file:
        for name, array in ARRAYS.items():
            found = file.integers(name, tuple(array.shape))
            assert found.tolist() == array.tolist(), name
            assert file.integers(name, (None,) * array.ndim).shape == tuple(array.shape)
        assert file.texts("texts", 3) == file.texts("objects", 3) == texts
        assert os.listdir(tmp_path / "work") == []
        for name, shape, said in [
            ("one", (None, 2), r"'one' is an array \[300\]; \[any, 2\] is expected"),
            ("large", (300, 41), r"'large' is an array \[300, 40\]; \[300, 41\] is expected"),
            ("f", (2,), "'f': numbers of type FloatStorage; integers are expected"),
            ("objects", (3,), "'objects': numbers of type 'O8'; integers are expected"),
            ("texts", (3,), "'texts': it is no array"),
            ("none", (3,), "has no 'none'; it has one, small, empty"),
        ]:
            with pytest.raises(InputError, match=rf"a\.pt: {said}"):
                file.integers(name, shape)
        for name, count in (("texts", 2), ("one", 300), ("none", 3)):
            with pytest.raises(InputError, match=f"'{name}' is no list of {count} texts"):
                file.texts(name, count)


@settings(deadline=None, max_examples=60)
@given(
    st.dictionaries(
        st.text(st.characters(codec="utf-8"), max_size=9),
        st.one_of(
            st.integers(-(2**70), 2**70), st.booleans(), st.none(), st.floats(allow_nan=False), st.text(max_size=2000),
            st.lists(st.text(max_size=3)), st.tuples(st.integers(0, 300), st.integers(0, 2**40)),
        ),
    ),
    st.sampled_from([2, 3, 4]),
)  # fmt: skip
def test_plain_values_are_those_that_were_pickled(values, protocol):
    """The oracle is Python's own unpickler."""
    content = b"x" * 5 + pickle.dumps(values, protocol) + b"rest"
    found, end = read_pickle(content, 5, len(content))
    assert end == len(content) - 4

    def plain(value):
        if not isinstance(value, pickles.Span):
            return value
        return content[value.offset : value.offset + value.length].decode()

    assert {name: plain(value) for name, value in found.items()} == pickle.loads(pickle.dumps(values, protocol))


class Harm:
    def __reduce__(self):
        return os.system, ("touch harmed",)


class State:
    def __init__(self):
        self.x = 1


def zipped(**members):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, content in members.items():
            archive.writestr(f"a/{name.replace('__', '.')}", content)
    return stream.getvalue()


def pickled(value, protocol=2):
    return pickle.dumps(value, protocol)


HOSTILE = {
    "code": (pickled({"head": Harm()}), "it calls (posix|nt).system, which is not read here"),
    "eval": (pickled({"a": 1})[:-1] + b"c__builtin__\neval\nX\x01\x00\x00\x001\x85R.", "it calls __builtin__.eval"),
    "object": (pickled(State()), "operation b'.x81' at byte"),
    "set": (pickled({1, 2}), "it calls __builtin__.set, which is not read here"),
    "a list": (pickled([1]), "it holds a list, not a dict of arrays"),
    "protocol 0": (b"\x80\x00}.", "it is a pickle of protocol 0"),
    "protocol 5": (pickled({}, 5), "it is a pickle of protocol 5"),
    "no pickle": (b"hello", "operation b'h'|it is damaged"),
    "empty": (b"", "it is cut off"),
    "numbers as keys": (pickled({1: 2}), "it is damaged"),
    "stack empty": (b"\x80\x02R.", "it is damaged at byte"),
    "no mark": (b"\x80\x02Nu.", "it is damaged"),
    "mark as value": (b"\x80\x02((\x86.", "it is damaged"),
    "memo far away": (b"\x80\x02}r\xff\xff\xff\xff.", "it is damaged"),
    "not in memo": (b"\x80\x02h\x07.", "it is damaged"),
    "a long text": (b"\x80\x02X\xff\xff\xff\xffab.", "it is cut off"),
    "longer bytes": (b"\x80\x04\x8e" + b"\xff" * 8 + b".", "it is cut off"),
    "odd items": (b"\x80\x02}(X\x01\x00\x00\x00au.", "it is damaged"),
    "wrong dtype state": (b"\x80\x02cnumpy\ndtype\nX\x02\x00\x00\x00i8\x85RK\x01b.", "it is damaged"),
    "extension": (b"\x80\x02\x82\x01.", "operation b'.x82' at byte"),
    "old instance": (b"\x80\x02(ios\nsystem\n.", "operation b'i' at byte"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_else_a_pickle_says_is_not_done(tmp_path, name, monkeypatch):
    monkeypatch.chdir(tmp_path)
    content, said = HOSTILE[name]
    path = tmp_path / "a.pt"
    path.write_bytes(zipped(data__pkl=content))
    with pytest.raises(InputError, match=rf"a\.pt: ({said})"), open_torch_file(path, tmp_path):
        pass
    assert os.listdir(tmp_path) == ["a.pt"]


@pytest.mark.parametrize("saved", SAVED, ids=str)
@pytest.mark.parametrize("kept", [0, 1, 30, 0.3, 0.6, 0.9, -1])
def test_files_that_are_cut_off(tmp_path, saved, kept):
    path = save(tmp_path / "a.pt", {"head": np.arange(500), "tail": torch.arange(500)}, **saved)
    content = path.read_bytes()
    path.write_bytes(content[: int(kept * len(content)) if isinstance(kept, float) else kept])
    with pytest.raises(InputError, match=r"a\.pt: .") as caught, open_torch_file(path, tmp_path):
        pass
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("saved", SAVED, ids=str)
def test_any_changed_byte_gives_an_error_or_an_array_of_that_shape(tmp_path, saved):
    path = save(tmp_path / "a.pt", {"head": np.arange(90), "tail": torch.arange(90), "types": ["a", "b"]}, **saved)
    content = bytearray(path.read_bytes())
    refused = 0
    for place in RANDOM.permutation(len(content))[:300].tolist():
        changed = content.copy()
        changed[place] ^= 1 << RANDOM.integers(8)
        path.write_bytes(changed)
        try:
            with open_torch_file(path, tmp_path) as file:
                for name in ("head", "tail"):
                    assert file.integers(name, (90,)).sum() is not None
                file.texts("types", 2)
        except InputError as error:
            refused += 1
            assert "\n" not in str(error)
    assert refused > (200 if "_use_new_zipfile_serialization" not in saved else 50)


def tensor_file(tmp_path, stored="LongStorage", offset=0, shape=(2, 3), strides=(3, 1), numbers=b"\0" * 48):
    """As torch writes a tensor."""
    stream = io.BytesIO()
    pickler = pickle._Pickler(stream, 2)
    pickler.persistent_id = lambda thing: (
        ("storage", getattr(torch, stored), "0", "cpu", 6) if thing == "numbers" else None
    )
    rebuilt = collections.namedtuple("Rebuilt", "arguments")
    pickler.dispatch_table = {
        rebuilt: lambda each: (torch._utils._rebuild_tensor_v2, each.arguments)  # noqa: B023
    }
    pickler.dispatch = {**pickle._Pickler.dispatch}
    pickler.dump({"edge": rebuilt(("numbers", offset, shape, strides, False, collections.OrderedDict()))})
    path = tmp_path / "a.pt"
    path.write_bytes(zipped(data__pkl=stream.getvalue(), **{"data/0": numbers}))
    return path


@pytest.mark.parametrize(
    "wrong", [{"offset": 1}, {"shape": (2**40, 3)}, {"shape": (3, 3)}, {"strides": (4, 1)}, {"numbers": b"\0" * 47}]
)
def test_tensors_that_reach_beyond_their_numbers(tmp_path, wrong):
    with open_torch_file(tensor_file(tmp_path), tmp_path) as file:
        assert file.integers("edge", (2, 3)).tolist() == [[0] * 3] * 2
    with (
        open_torch_file(tensor_file(tmp_path, **wrong), tmp_path) as file,
        pytest.raises(InputError, match="'edge': it reaches beyond its numbers"),
    ):
        file.integers("edge", (None, 3))


def test_tensors_whose_numbers_are_missing_or_whose_strides_are_wrong(tmp_path):
    for wrong, said in [({"strides": (1,)}, "its shape and strides differ in length")]:
        with open_torch_file(tensor_file(tmp_path, **wrong), tmp_path) as file, pytest.raises(InputError, match=said):
            file.integers("edge", (None, 3))
    with (
        pytest.raises(InputError, match="it is damaged"),
        open_torch_file(tensor_file(tmp_path, strides=(-3, 1)), tmp_path),
    ):
        pass


@pytest.mark.parametrize("length", [299, 301])
@pytest.mark.parametrize("protocol", [2, 4])
def test_arrays_of_another_shape_than_their_bytes(tmp_path, length, protocol):
    content, shape = pickled({"head": np.arange(300)}, protocol), b"M%b\x85"
    changed = content.replace(shape % struct.pack("<H", 300), shape % struct.pack("<H", length))
    assert changed != content
    (tmp_path / "a.pt").write_bytes(zipped(data__pkl=changed))
    with (
        open_torch_file(tmp_path / "a.pt", tmp_path) as file,
        pytest.raises(InputError, match=rf"'head': it has 2,400 bytes for an array \[{length}\] of int64"),
    ):
        file.integers("head", (None,))


def test_operations_and_texts_are_bounded(monkeypatch):
    monkeypatch.setattr(pickles, "MOST_OPERATIONS", 50)
    with pytest.raises(DamagedPickle, match="it has more than 50 operations"):
        read_pickle(pickled(list(range(100))), 0, 1000)
    monkeypatch.undo()
    monkeypatch.setattr(pickles, "_MOST_TEXTS", 50)
    content = pickled([str(number) for number in range(60)])
    with pytest.raises(DamagedPickle, match="it has more than 50 different texts"):
        read_pickle(content, 0, len(content))


def test_deep_nesting_is_no_recursion():
    content = b"\x80\x02" + b"(" * 100_000 + b"t" * 100_000 + b"."
    found, _ = read_pickle(content, 0, len(content))
    assert type(found) is tuple


@pytest.mark.parametrize("name, content, said", [
    ("other zip", zipped(x="1"), "it has no data.pkl: no file of torch.save"),
    ("two pickles", zipped(data__pkl=b"") + b"", "it is cut off"),
    ("big endian", zipped(data__pkl=pickled({}), byteorder="big"), "it was written on a machine of another byte order"),
    ("text", b"head,relation\n", "operation b|it is damaged"),
    ("another number", pickled(7), "it is no file of torch.save"),
    ("empty", b"", "the file is empty"),
])  # fmt: skip
def test_other_files(tmp_path, name, content, said):
    (tmp_path / "a.pt").write_bytes(content)
    with pytest.raises(InputError, match=rf"a\.pt: ({said})"), open_torch_file(tmp_path / "a.pt", tmp_path):
        pass


def test_no_file_a_folder_and_a_pipe(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for name, said in (("none", "no such file"), ("", "is a folder"), ("pipe", "is no regular file")):
        with pytest.raises(InputError, match=said), open_torch_file(tmp_path / name, tmp_path):
            pass


def test_compressed_members_are_no_file_of_torch(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.pt", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/data.pkl", pickled({"a": "b" * 9000}))
    with pytest.raises(InputError, match="a/data.pkl is compressed"), open_torch_file(tmp_path / "a.pt", tmp_path):
        pass


def test_legacy_files_of_other_versions_and_machines(tmp_path):
    path = save(tmp_path / "a.pt", {"a": torch.arange(3)}, _use_new_zipfile_serialization=False)
    content, said = path.read_bytes(), "it was written by another version of torch, or on a machine of another"
    for wrong in (content.replace(struct.pack("<H", 1001), struct.pack("<H", 1002)),
                  content.replace(b"little_endianq\x02\x88", b"little_endianq\x02\x89")):  # fmt: skip
        assert wrong != content
        path.write_bytes(wrong)
        with pytest.raises(InputError, match=said), open_torch_file(path, tmp_path):
            pass
