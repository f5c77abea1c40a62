"""The program that finds the arrays in a file of torch.save. What crashes an unpickler ends this process alone.

It gets the open file as standard input, imports nothing but Python's library, and writes a line of JSON: of each value
of the dict in the file where its numbers lie, or what is wrong with it. Of a list of texts the line has the different
ones; the number of each text in those follows behind the line.

Guarantees:
- Nothing that a file names is imported. Names that are known stand for functions and classes of this module.
- Python's unpickler gets the operations that describe plain values; long texts and bytes stay in the file.
- What a file can cost is limited (`limit`). A shape is compared with the bytes that the file has for it.
"""

from __future__ import annotations

import array
import json
import math
import mmap
import os
import pickle
import resource
import zipfile
import zlib
from typing import IO, Any, NamedTuple, cast

_MAGIC, _VERSION = 0x1950A86A20F9469CFC6C, 1001  # of files before torch 1.6
_TEXT_BYTES, _MOST_LENGTH, _MOST_DIMENSIONS = 1 << 10, 1 << 48, 32
_LOCAL_HEADER = 30  # bytes of a .zip's header before a member's name
_MEMORY, _SECONDS, _BYTES_A_SECOND = 40 << 20, 8, 8 << 20
_STORAGES = {
    "LongStorage": "<i8", "IntStorage": "<i4", "ShortStorage": "<i2", "CharStorage": "<i1", "ByteStorage": "<u1",
    "DoubleStorage": "<f8", "FloatStorage": "<f4", "HalfStorage": "<f2", "BFloat16Storage": "<V2", "BoolStorage": "<b1",
}  # fmt: skip
_INTEGERS = ("i8", "i4", "i2", "i1", "u8", "u4", "u2", "u1")
_OPERATIONS = b"(N\x88\x89JKM\x8aG})t\x85\x86\x87qr\x94hjaesuc\x93RQ."


class Damaged(Exception):
    """It is no such file, is cut off, or has what is not read here."""


class Span(NamedTuple):
    """Bytes of the file. Protocol 2 has each as the character of its number, and the text in UTF-8 (`text`)."""

    offset: int
    length: int
    text: bool


class Tensor(NamedTuple):
    """Offset and strides count numbers. `stored`: torch's name of the type, a key, how many numbers there are."""

    stored: tuple[str, str, int]
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class Kind:
    """In place of `numpy.dtype`."""

    def __init__(self, name: str, *_: object) -> None:
        self.name, self.order = _of(str, name), "<"

    def build(self, state: Any) -> None:
        self.order = ">" if state[1] == ">" else "<"


class Array:
    """In place of `numpy.ndarray`. Its data are a `Span` or `Texts`."""

    def build(self, state: Any) -> None:
        _, self.shape, self.kind, self.fortran, self.data = state
        _of(Kind, self.kind), _of(bool, self.fortran)


class Graph:
    """In place of PyTorch Geometric's `Data` and of what this keeps its tensors in."""

    def build(self, state: Any) -> None:
        self.values = _of(dict, state)

    def tensors(self) -> Any:
        """The dict of its tensors."""
        store = self.values.get("_store", self)
        return _of(Graph, store).values.get("_mapping", self.values)


class Texts:
    """In place of a list: the different texts and the number of each; none where it has other values, too."""

    def __init__(self) -> None:
        self.numbers, self.known, self.plain = array.array("B"), dict[str, int](), True

    def extend(self, items: list[Any]) -> None:
        self.plain = self.plain and all(type(each) is str for each in items)
        found = [self.known.setdefault(each, len(self.known)) for each in items] if self.plain else []
        if len(self.known) > 256 and self.numbers.itemsize == 1:
            self.numbers = array.array("H", self.numbers)
        self.numbers.extend(found)

    def append(self, item: Any) -> None:
        self.extend([item])


class Memo(list[Any]):
    """Picklers count from 0."""

    def __setitem__(self, number: Any, value: Any) -> None:
        if number != len(self):
            raise Damaged("it is damaged: it remembers values out of order")
        self.append(value)


def _of(kind: type, value: Any) -> Any:
    if type(value) is not kind:
        names = ["list" if each is Texts else each.__name__ for each in (type(value), kind)]
        raise Damaged("it has a value of type {} where {} is expected".format(*names))
    return value


_NAMES: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): lambda *_: Array(),
    ("numpy._core.multiarray", "_reconstruct"): lambda *_: Array(),
    ("numpy", "ndarray"): None,
    ("numpy", "dtype"): Kind,
    ("__builtin__", "bytes"): lambda: Span(0, 0, False),
    ("builtins", "bytes"): lambda: Span(0, 0, False),
    ("torch_geometric.data.data", "Data"): Graph,
    ("torch_geometric.data.data", "DataEdgeAttr"): None,
    ("torch_geometric.data.data", "DataTensorAttr"): None,
    ("torch_geometric.data.storage", "GlobalStorage"): Graph,
    ("collections", "OrderedDict"): lambda: {},
    ("torch._utils", "_rebuild_tensor_v2"): lambda *arguments: Tensor(*arguments[:4]),
    **{("torch", kind): kind for kind in _STORAGES},
}


class Unpickler(pickle._Unpickler):
    """Python's own in Python, whose table of operations is another one here."""

    append: Any
    read: Any
    stack: list[Any]

    def __init__(self, content: mmap.mmap) -> None:
        super().__init__(content)
        self.memo: Any = Memo()
        self._content, self._texts = content, dict[str, tuple[str, Span]]()

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("_codecs", "encode"):
            return self._encoded
        if (module, name) not in _NAMES:
            raise Damaged(f"it names {module}.{name}, which is not read here")
        return _NAMES[module, name]

    def _encoded(self, text: Any, encoding: str) -> Span:
        """Protocol 2 has no bytes: it has a text and encodes it."""
        if encoding != "latin1":
            raise Damaged("it has bytes of an unknown encoding")
        return text if type(text) is Span else self._texts[text][1]

    def persistent_load(self, found: Any) -> Any:
        """The numbers of a tensor, which lie elsewhere."""
        what, kind, key, _, count = found[:5]
        if what != "storage":
            raise Damaged("it has a persistent id that is not torch's")
        return _of(str, kind), _of(str, key), _of(int, count)

    def _kept(self, size: int, text: bool) -> None:
        """A short text as it is, each different one once; of others the place."""
        length = int.from_bytes(self.read(size), "little")
        place = Span(self._content.tell(), length, text)
        if text and length <= _TEXT_BYTES:
            found = self.read(length).decode("utf-8", "surrogatepass")
            self.append(self._texts.setdefault(found, (found, place))[0])
        else:
            self.append(place)
            self._content.seek(length, os.SEEK_CUR)

    def _protocol(self) -> None:
        if not 2 <= (protocol := self.read(1)[0]) <= 4:
            raise Damaged(f"it is a pickle of protocol {protocol}; 2, 3 and 4 are read here")

    def _build(self) -> None:
        state = self.stack.pop()
        if type(self.stack[-1]) not in (Array, Kind, Graph):
            raise Damaged("it builds an object that is not read here")
        self.stack[-1].build(state)

    def _new(self) -> None:
        arguments, kind = self.stack.pop(), self.stack.pop()
        if kind is not Graph or arguments != ():
            raise Damaged("it makes an object that is not read here")
        self.append(Graph())

    dispatch = {code: pickle._Unpickler.dispatch[code] for code in _OPERATIONS} | {
        ord("\x80"): _protocol,
        ord("\x95"): lambda self: self.read(8),  # a frame
        ord("]"): lambda self: self.append(Texts()),
        ord("b"): _build,
        ord("\x81"): _new,
        ord("X"): lambda self: self._kept(4, True),
        ord("\x8c"): lambda self: self._kept(1, True),
        ord("\x8d"): lambda self: self._kept(8, True),
        ord("B"): lambda self: self._kept(4, False),
        ord("C"): lambda self: self._kept(1, False),
        ord("\x8e"): lambda self: self._kept(8, False),
    }


def unpickled(content: mmap.mmap) -> Any:
    """The value of the pickle that begins at the file's position, which is behind it then."""
    try:
        return Unpickler(content).load()
    except (Damaged, MemoryError):
        raise
    except Exception:  # whatever the unpickler raises, the pickle is none
        raise Damaged(f"it is damaged, or has what is not read here, at byte {content.tell():,}") from None


def zipped(content: mmap.mmap) -> tuple[Any, dict[str, Span]]:
    """The pickled value, and where the numbers of tensors lie, by key."""
    with zipfile.ZipFile(cast(IO[bytes], content)) as archive:
        places = {info.filename: _place(info, content) for info in archive.infolist() if not info.is_dir()}
        if len(places) < sum(not info.is_dir() for info in archive.infolist()):
            raise Damaged("it has two members of one name")
    pickles = [name for name in places if name.endswith("/data.pkl") and name.count("/") == 1]
    if len(pickles) != 1:
        raise Damaged("it has no data.pkl: no file of torch.save")
    root = pickles[0].removesuffix("data.pkl")
    order = places.get(f"{root}byteorder")
    if order and content[order.offset : order.offset + min(order.length, 9)] != b"little":
        raise Damaged("it was written on a machine of another byte order")
    content.seek(places[pickles[0]].offset)
    value = unpickled(content)
    if content.tell() > sum(places[pickles[0]][:2]):
        raise Damaged("it is cut off")
    return value, {name.removeprefix(f"{root}data/"): place for name, place in places.items()}


def _place(info: zipfile.ZipInfo, content: mmap.mmap) -> Span:
    """Where a member's bytes lie, which are stored as they are."""
    if info.compress_type != zipfile.ZIP_STORED or info.compress_size != info.file_size or info.flag_bits & 1:
        raise Damaged(f"{info.filename} is compressed: no file of torch.save")
    header = content[info.header_offset : info.header_offset + _LOCAL_HEADER]
    offset = info.header_offset + len(header) + sum(int.from_bytes(header[at : at + 2], "little") for at in (26, 28))
    with memoryview(content) as whole, whole[offset : offset + info.file_size] as member:
        if header[:4] != b"PK\3\4" or len(member) < info.file_size or zlib.crc32(member) != info.CRC:
            raise Damaged(f"{info.filename} is damaged")
    return Span(offset, info.file_size, False)


def one_by_one(content: mmap.mmap) -> tuple[Any, dict[str, Span]]:
    """Likewise of a file from before torch 1.6: five pickles, and the numbers of each tensor behind their count."""
    if unpickled(content) != _MAGIC:
        raise Damaged("it is no file of torch.save")
    version, machine, value, keys = (unpickled(content) for _ in range(4))
    if version != _VERSION or machine.get("little_endian") is not True:
        raise Damaged("it was written by another version of torch, or on a machine of another byte order")
    places, tensors = dict[str, Span](), [each for each in named(value).values() if type(each) is Tensor]
    kinds = {each.stored[1]: each.stored[0] for each in tensors}
    names = list(_of(Texts, keys).known)
    for key in (names[number] for number in keys.numbers):
        length = int.from_bytes(content.read(8), "little") * int(_STORAGES[kinds[key]][-1])
        places[key] = Span(content.tell(), length, False)
        content.seek(length, os.SEEK_CUR)
    return value, places


def described(value: Any, places: dict[str, Span]) -> dict[str, Any]:
    """What `torch_file` needs of a value. Raises Damaged where it is no array of integers."""
    found: dict[str, Any] = {}
    if type(value) is Array and type(value.data) is Span:
        kind, shape, place = value.kind.name, value.shape, value.data
        dtype, found["order"] = value.kind.order + kind, "F" if value.fortran else "C"
    elif type(value) is Tensor:
        (kind, key, count), shape = value.stored, value.shape
        dtype, place = _STORAGES[kind], places.get(key, Span(0, -1, False))
        if place.length != count * int(dtype[-1]):
            raise Damaged("its numbers are missing, or are not as many as it says")
        found |= {"offset": value.offset, "strides": value.strides}
    else:
        texts = value.data if type(value) is Array else value
        told = {"texts": texts} if type(texts) is Texts and texts.plain else {}
        return {"wrong": "it is no array of numbers"} | told
    if dtype[1:] not in _INTEGERS:
        raise Damaged(f"numbers of type {kind!r}; integers are expected")
    size, lengths = int(dtype[-1]), (*_of(tuple, shape), *found.get("strides", ()), found.get("offset", 0))
    if len(shape) > _MOST_DIMENSIONS or any(type(each) is not int or not 0 <= each < _MOST_LENGTH for each in lengths):
        raise Damaged("its shape is none, or has too many dimensions")
    wanted = math.prod(shape) * size
    if "strides" in found:
        last = found["offset"] + sum((n - 1) * stride for n, stride in zip(shape, found["strides"], strict=True)) + 1
        if wanted > place.length or (wanted and last * size > place.length):
            raise Damaged("it reaches beyond its numbers")
    elif not (place.length / 2 if place.text else place.length) <= wanted <= place.length:
        raise Damaged(f"it has {place.length:,} bytes for an array {list(shape)} of {kind}")
    return found | {"dtype": dtype, "shape": shape, "place": place}


def limit(size: int) -> None:
    """Sets what this process may take for a file of that size: memory of its own and the processor; no file."""
    resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY + size // 2,) * 2)
    resource.setrlimit(resource.RLIMIT_CPU, (_SECONDS + size // _BYTES_A_SECOND,) * 2)
    for none in (resource.RLIMIT_FSIZE, resource.RLIMIT_CORE):
        resource.setrlimit(none, (0, 0))


def named(value: Any) -> dict[str, Any]:
    """The values of a dict or graph by name, also of the first of several; a tensor alone has the name ""."""
    value = value[0] if type(value) is tuple and value else value
    value = value.tensors() if type(value) is Graph else value
    return {"": value} if type(value) is Tensor else _of(dict, value)


def told(content: mmap.mmap) -> dict[str, Any]:
    """What the line says."""
    values: dict[str, Any] = {}
    try:
        value, places = zipped(content) if content[:2] == b"PK" else one_by_one(content)
        for name, each in named(value).items():
            try:
                found = described(each, places)
            except Damaged as error:
                found = {"wrong": str(error)}
            values[_of(str, name)] = found
        return {"values": values}
    except MemoryError:
        return {"error": "it takes more memory than such a file needs"}
    except Exception as error:  # zipfile raises many kinds
        return {"error": str(error) if type(error) is Damaged else f"it is damaged ({type(error).__name__})"}


def main() -> None:
    """Of the process."""
    size = os.fstat(0).st_size
    limit(size)
    found = told(mmap.mmap(0, size, access=mmap.ACCESS_READ))
    texts = [each["texts"].numbers for each in found.get("values", {}).values() if "texts" in each]
    line = json.dumps(found, default=lambda each: (list(each.known), each.numbers.itemsize, len(each.numbers)))
    with open(1, "wb", closefd=False) as output:
        output.write(line.encode() + b"\n")
        for each in texts:
            output.write(each)


if __name__ == "__main__":
    main()
