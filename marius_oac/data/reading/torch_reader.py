"""The program that reads a file of torch.save. What crashes an unpickler ends this process alone.

Its input is the open file; its argument names a file that it makes, with the numbers of all arrays one after the other.
It imports nothing but Python's library, and writes a line of JSON: what each value of the dict in the file is.

Guarantees:
- Nothing that a file names is imported. Names that are known stand for classes of this module.
- Python's unpickler gets the operations of protocols 2 to 4 that describe plain values, with a number in place of each
  different text, and of bytes and long texts, which go to the file of numbers piece by piece.
- What a file can cost is limited (`limit`). No array is made here: the caller compares its shape with its bytes.
"""

from __future__ import annotations

import array
import codecs
import io
import json
import os
import pickle
import re
import resource
import sys
import zipfile
from typing import IO, Any, NamedTuple, cast

_ABOUT = 0x1950A86A20F9469CFC6C, 1001, True  # a file from before torch 1.6: its form, the form's version, byte order
_NO_ARRAY = "it is no array of numbers"
_TEXT_BYTES, _PIECE = 1 << 10, 1 << 20
_ROOM, _SECONDS, _BYTES_A_SECOND = 48 << 20, 8, 8 << 20
_STORAGES = {
    "LongStorage": "<i8", "IntStorage": "<i4", "ShortStorage": "<i2", "CharStorage": "<i1", "ByteStorage": "<u1",
    "DoubleStorage": "<f8", "FloatStorage": "<f4", "HalfStorage": "<f2", "BFloat16Storage": "<V2", "BoolStorage": "<b1",
}  # fmt: skip
_GLOBAL, _FRAME, _INTEGER, _TEXTS = ord("c"), 0x95, 0x8A, b"X\x8c\x8d"
_COUNTED = dict.fromkeys(b"\x8aC\x8c", 1) | dict.fromkeys(b"BX", 4) | dict.fromkeys(b"\x8e\x8d", 8)
"""Of operations with an integer, bytes or a text the bytes of its length, which is before it."""
_SIZES = _COUNTED | dict.fromkeys(b"(N\x88\x89})]aet\x85\x86\x87\x94usR\x93Qb\x81c", 0) | dict.fromkeys(b"Khq", 1)
_SIZES |= {ord("M"): 2} | dict.fromkeys(b"Jjr", 4) | dict.fromkeys(b"G\x95", 8)
"""Of operations the bytes of their argument."""


class Damaged(Exception):
    """It is no such file, is cut off, or has what is not read here."""


class Span(NamedTuple):
    """Bytes in the file of numbers."""

    offset: int
    length: int


class Made:
    """In place of an object that a file makes."""

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments

    def __setstate__(self, state: Any) -> None:
        self.state = state


class Array(Made):
    """Of `numpy.ndarray`."""


class Kind(Made):
    """Of `numpy.dtype`."""


class Bytes(Made):
    """Of bytes, which protocol 2 has as a text that is encoded."""


class Tensor(Made):
    """Of `torch.Tensor`."""


class Graph(Made):
    """Of PyTorch Geometric's `Data` and of what this keeps its tensors in."""


_NAMES: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): Array,
    ("numpy._core.multiarray", "_reconstruct"): Array,
    ("numpy", "ndarray"): None,
    ("numpy", "dtype"): Kind,
    ("__builtin__", "bytes"): Bytes,
    ("builtins", "bytes"): Bytes,
    ("_codecs", "encode"): Bytes,
    ("torch_geometric.data.data", "Data"): Graph,
    ("torch_geometric.data.data", "DataEdgeAttr"): None,
    ("torch_geometric.data.data", "DataTensorAttr"): None,
    ("torch_geometric.data.storage", "GlobalStorage"): Graph,
    ("collections", "OrderedDict"): lambda: {},
    ("torch._utils", "_rebuild_tensor_v2"): Tensor,
    **{("torch", kind): kind for kind in _STORAGES},
}


class Unpickler(pickle.Unpickler):
    """Of the pickle that begins at the file's position, which is behind it then.

    Attributes:
        storages: torch's names of the types of storages, by key.
    """

    def __init__(self, file: IO[bytes], output: IO[bytes]) -> None:
        operations, values = _operations(file, output)
        super().__init__(operations)
        self._values, self.storages = values, dict[str, str]()

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _NAMES:
            raise Damaged(f"it names {module}.{name}, which is not read here")
        return _NAMES[module, name]

    def persistent_load(self, found: Any) -> Any:
        """What a number of ours stands for; torch's are storages."""
        if type(found) is int:
            return self._values[found]
        self.storages[found[2]] = found[1]
        return found


def _operations(file: IO[bytes], output: IO[bytes]) -> tuple[io.BytesIO, list[str | Span]]:
    """The pickle with persistent ids in place of texts and bytes, and what these stand for."""
    operations, values = io.BytesIO(), dict[str | Span, int]()
    if file.read(2) not in (b"\x80\2", b"\x80\3", b"\x80\4"):
        raise Damaged("it is no pickle of protocol 2, 3 or 4")
    while (operation := file.read(1)) != b".":
        code = ord(operation)
        argument = file.read(_SIZES[code])
        if code in _COUNTED:
            length, text = int.from_bytes(argument, "little"), code in _TEXTS
            if code == _INTEGER:
                argument += file.read(length)
            else:
                short = text and length <= _TEXT_BYTES
                value = (
                    file.read(length).decode("utf-8", "surrogatepass") if short else _kept(file, length, output, text)
                )
                operation, argument = b"J", values.setdefault(value, len(values)).to_bytes(4, "little") + b"Q"
        elif code == _GLOBAL:
            argument = file.readline() + file.readline()
        elif code == _FRAME:
            operation = argument = b""
        operations.write(operation + argument)
    operations.write(b".")
    operations.seek(0)
    return operations, list(values)


def _kept(file: IO[bytes], length: int, output: IO[bytes], text: bool = False) -> Span:
    """Writes bytes of the file into that of numbers, those of a text's characters where it is one."""
    first, decoder = output.tell(), codecs.getincrementaldecoder("utf-8")()
    while length:
        piece = file.read(min(length, _PIECE))
        if not piece:
            raise Damaged("it is cut off")
        output.write(decoder.decode(piece).encode("latin-1") if text else piece)
        length -= len(piece)
    return Span(first, output.tell() - first)


def zipped(file: IO[bytes], output: IO[bytes]) -> tuple[Any, dict[str, Span]]:
    """The pickled value, and the numbers of its tensors, by key."""
    with zipfile.ZipFile(file) as archive:
        names = archive.namelist()
        pickles = [name for name in names if name.endswith("/data.pkl") and name.count("/") == 1]
        if len(pickles) != 1 or len(set(names)) < len(names):
            raise Damaged("it has no data.pkl, or two members of one name: no file of torch.save")
        root = pickles[0].removesuffix("data.pkl")
        if f"{root}byteorder" in names and archive.read(f"{root}byteorder") != b"little":
            raise Damaged("it was written on a machine of another byte order")
        with archive.open(pickles[0]) as member, io.BufferedReader(cast(io.RawIOBase, member)) as buffered:
            unpickler = Unpickler(buffered, output)
        value, places = unpickler.load(), {}
        for key in unpickler.storages:
            if (name := f"{root}data/{key}") in names:
                with archive.open(name) as member:
                    places[key] = _kept(member, archive.getinfo(name).file_size, output)
        return value, places


def one_by_one(file: IO[bytes], output: IO[bytes]) -> tuple[Any, dict[str, Span]]:
    """Likewise of a file from before torch 1.6: five pickles, and the numbers of each tensor behind their count."""
    magic, version, machine, unpickler, keys = (Unpickler(file, output) for _ in range(5))
    if (magic.load(), version.load(), machine.load()["little_endian"]) != _ABOUT:
        raise Damaged("it was written by another version of torch, or on a machine of another byte order")
    value, places = unpickler.load(), {}
    for key in keys.load():
        length = int.from_bytes(file.read(8), "little") * int(_STORAGES[unpickler.storages[key]][-1])
        places[key] = _kept(file, length, output)
    return value, places


def described(value: Any, places: dict[str, Span], output: IO[bytes]) -> dict[str, Any]:
    """What `torch_file` needs of a value, or what is wrong with it as an array of integers."""
    if type(value) is Tensor:
        (_, name, key, _, count, *_), offset, shape, strides = value.arguments[:4]
        place, dtype, size = places.get(key, Span(0, -1)), _STORAGES[name], int(_STORAGES[name][-1])
        if place.length != count * size:
            return {"wrong": "its numbers are missing, or are not as many as it says"}
        lies = {"offset": offset * size, "strides": [each * size for each in strides]}
    else:
        shape, kind, fortran, data = value.state[1:] if type(value) is Array else ((), Kind(""), False, value)
        if type(data) is list and all(type(each) is str for each in data):
            return _texts(data, output)
        if type(data) is Bytes:
            text, encoding = data.arguments or ("", "latin1")
            if encoding != "latin1":
                return {"wrong": "it has bytes of an unknown encoding"}
            data = text if type(text) is Span else _kept(io.BytesIO(text.encode(encoding)), len(text), output)
        if type(data) is not Span:
            return {"wrong": _NO_ARRAY}
        place, name, lies = data, kind.arguments[0], {"order": "F" if fortran else "C"}
        dtype = (">" if kind.state[1] == ">" else "<") + name
    if not re.fullmatch("[<>][iu][1248]", dtype):
        return {"wrong": f"numbers of type {name!r}; integers are expected"}
    return {"shape": shape, "dtype": dtype, "place": place} | lies


def _texts(texts: list[str], output: IO[bytes]) -> dict[str, Any]:
    """The different texts, and an array with the number of each in those."""
    known = dict[str, int]()
    numbers = array.array("I", (known.setdefault(each, len(known)) for each in texts)).tobytes()
    place = _kept(io.BytesIO(numbers), len(numbers), output)
    return {"wrong": _NO_ARRAY, "texts": list(known), "shape": [len(texts)], "dtype": "<u4", "place": place}


def limit(size: int) -> None:
    """Sets what this process may take for a file of that size: memory of its own, the processor, the file it makes."""
    resource.setrlimit(resource.RLIMIT_DATA, (_ROOM + size,) * 2)
    resource.setrlimit(resource.RLIMIT_CPU, (_SECONDS + size // _BYTES_A_SECOND,) * 2)
    resource.setrlimit(resource.RLIMIT_FSIZE, (_ROOM + size,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def named(value: Any) -> dict[str, Any]:
    """The values of a dict or graph by name, also of the first of several; a tensor alone has the name ""."""
    value = value[0] if type(value) is tuple and value else value
    if type(value) is Graph:
        store = value.state.get("_store", value).state
        value = store.get("_mapping", value.state)
    if type(value) is Tensor:
        return {"": value}
    if type(value) is not dict:
        raise Damaged(f"it has a value of type {type(value).__name__} where dict is expected")
    return value


def told(file: IO[bytes], output: IO[bytes]) -> dict[str, Any]:
    """What the line says."""
    try:
        read, _ = zipped if file.read(2) == b"PK" else one_by_one, file.seek(0)
        value, places = read(file, output)
        return {"values": {name: described(each, places, output) for name, each in named(value).items()}}
    except Damaged as error:
        return {"error": str(error)}
    except MemoryError:
        return {"error": "it takes more memory than such a file needs"}
    except Exception as error:  # of many kinds
        return {"error": f"it is damaged, or can't be read: {error!r:.100}"}


def main() -> None:
    """Of the process."""
    limit(os.fstat(0).st_size)
    with open(0, "rb", closefd=False) as file, open(sys.argv[1], "wb") as output, open(1, "w", closefd=False) as line:
        line.write(json.dumps(told(file, output)))


if __name__ == "__main__":
    main()
