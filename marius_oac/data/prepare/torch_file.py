"""Arrays of a file that torch.save wrote, read without torch, and without unpickling it (`pickles`).

Since torch 1.6 such a file is a .zip with a pickle and, beside it, the numbers of each tensor. Before, pickles and
numbers followed one another. NumPy arrays are within the pickle.
"""

from __future__ import annotations

import codecs
import math
import mmap
import os
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from marius_oac.data.prepare.pickles import Array, DamagedPickle, Span, Stored, Tensor, read_pickle
from marius_oac.errors import InputError
from marius_oac.runtime.files.untrusted import open_regular

_MAGIC = 0x1950A86A20F9469CFC6C
_LEGACY_VERSION = 1001
_SIZES = {
    "LongStorage": 8, "IntStorage": 4, "ShortStorage": 2, "CharStorage": 1, "ByteStorage": 1, "BoolStorage": 1,
    "DoubleStorage": 8, "FloatStorage": 4, "HalfStorage": 2, "BFloat16Storage": 2,
}  # fmt: skip
"""Bytes of a number of a tensor."""
_INTEGERS = {
    "LongStorage": "<i8", "IntStorage": "<i4", "ShortStorage": "<i2", "CharStorage": "<i1", "ByteStorage": "<u1",
}  # fmt: skip
_NUMPY_INTEGERS = ("i8", "i4", "i2", "i1", "u8", "u4", "u2", "u1")
_PIECE = 16 << 20
_LOCAL_HEADER = 30  # bytes of a .zip's header before a member's name
_BAD_ZIP = (zipfile.BadZipFile, zipfile.LargeZipFile, NotImplementedError, RuntimeError, ValueError, EOFError)


class TorchFile:
    """A dict that torch.save wrote. Make it with `open_torch_file`.

    Attributes:
        path: the file.
        content: its values by name, as `pickles.read_pickle` gives them.
    """

    def __init__(self, path: Path, mapped: mmap.mmap, work: Path) -> None:
        self.path, self._mapped, self._work = path, mapped, work
        self._places: dict[str, tuple[int, int]] = {}
        """Of each tensor's numbers by key: where they begin, and how many bytes they are."""
        content = self._zipped() if mapped[:2] == b"PK" else self._one_by_one()
        if type(content) is not dict:
            raise DamagedPickle(f"it holds a {type(content).__name__}, not a dict of arrays")
        self.content: Mapping[str, Any] = content

    def integers(self, name: str, shape: tuple[int | None, ...]) -> np.ndarray:
        """An array of integers, mapped from the file or from a copy in the work folder.

        Args:
            shape: the expected one; None for a length that may be any.

        Raises:
            InputError: there is none of this name, type and shape.
        """
        if name not in self.content:
            raise InputError(f"has no {name!r}; it has {', '.join(list(self.content)[:10]) or 'nothing'}", self.path)
        found = self.content[name]
        try:
            array = self._of_numpy(found) if type(found) is Array else self._of_torch(found)
        except DamagedPickle as error:
            raise InputError(f"{name!r}: {error}", self.path) from None
        fits = len(array.shape) == len(shape) and all(w in (None, f) for w, f in zip(shape, array.shape, strict=True))
        if not fits:
            wanted = ", ".join("any" if each is None else f"{each:,}" for each in shape)
            raise InputError(f"{name!r} is an array {list(array.shape)}; [{wanted}] is expected", self.path)
        return array

    def texts(self, name: str, count: int) -> list[str]:
        """A list of `count` texts. Raises InputError where there is none of this name."""
        found = self.content.get(name)
        found = found.data if type(found) is Array else found
        if type(found) is not list or len(found) != count or not all(type(each) is str for each in found):
            raise InputError(f"{name!r} is no list of {count:,} texts", self.path)
        return found

    def _of_numpy(self, found: Array) -> np.ndarray:
        kind, data = found.kind, found.data
        if kind is None or kind.name not in _NUMPY_INTEGERS or not isinstance(data, Span | bytes):
            raise DamagedPickle(f"numbers of type {kind.name if kind else 'none'!r}; integers are expected")
        dtype = np.dtype(f"{kind.order}{kind.name}")
        if isinstance(data, bytes):
            plain = np.frombuffer(data, np.uint8)
        else:
            plain = self._decoded(data) if data.text else self._bytes(data.offset, data.length)
        if len(plain) != math.prod(found.shape) * dtype.itemsize:
            raise DamagedPickle(f"it has {len(plain):,} bytes for an array {list(found.shape)} of {dtype.name}")
        return np.ndarray(found.shape, dtype, plain, order="F" if found.fortran else "C")

    def _of_torch(self, found: Any) -> np.ndarray:
        if type(found) is not Tensor:
            raise DamagedPickle("it is no array")
        dtype = _INTEGERS.get(found.stored.kind)
        if dtype is None:
            raise DamagedPickle(f"numbers of type {found.stored.kind}; integers are expected")
        if found.stored.key not in self._places:
            raise DamagedPickle("its numbers are missing")
        offset, length = self._places[found.stored.key]
        if len(found.shape) != len(found.strides):
            raise DamagedPickle("its shape and strides differ in length")
        if not math.prod(found.shape):
            return np.empty(found.shape, dtype)
        size, reach = _SIZES[found.stored.kind], zip(found.shape, found.strides, strict=True)
        if (found.offset + 1 + sum((count - 1) * stride for count, stride in reach)) * size > length:
            raise DamagedPickle("it reaches beyond its numbers")
        strides = [stride * size for stride in found.strides]
        return np.ndarray(found.shape, dtype, self._bytes(offset, length), found.offset * size, strides)

    def _bytes(self, offset: int, length: int) -> np.ndarray:
        return np.frombuffer(self._mapped, np.uint8, length, offset) if length else np.empty(0, np.uint8)

    def _decoded(self, data: Span) -> np.ndarray:
        """The bytes that stand as characters, from a file in the work folder."""
        decoder, path = codecs.getincrementaldecoder("utf-8")(), self._work / "decoded.bin"
        stop = data.offset + data.length
        try:
            with open(path, "wb") as file:
                for first in range(data.offset, stop, _PIECE):
                    last = min(first + _PIECE, stop)
                    file.write(decoder.decode(self._mapped[first:last], last == stop).encode("latin-1"))
            return np.memmap(path, np.uint8, "r") if path.stat().st_size else np.empty(0, np.uint8)
        except UnicodeError:
            raise DamagedPickle("its bytes are damaged") from None
        finally:
            path.unlink(missing_ok=True)

    def _zipped(self) -> Any:
        with open(self.path, "rb") as file, zipfile.ZipFile(file) as archive:
            members = {info.filename: info for info in archive.infolist()}
            pickles = [name for name in members if name.endswith("/data.pkl") and name.count("/") == 1]
            if len(pickles) != 1:
                raise DamagedPickle("it has no data.pkl: no file of torch.save")
            root = pickles[0].removesuffix("data.pkl")
            if f"{root}byteorder" in members and archive.open(f"{root}byteorder").read(16) != b"little":
                raise DamagedPickle("it was written on a machine of another byte order")
            for name, info in members.items():
                if name == pickles[0] or name.startswith(f"{root}data/"):
                    self._places[name.removeprefix(f"{root}data/")] = self._place(info)
                    with archive.open(info) as member:
                        while member.read(_PIECE):  # the last one compares the CRC
                            pass
        offset, length = self._places.pop(pickles[0])
        return read_pickle(self._mapped, offset, offset + length)[0]

    def _place(self, info: zipfile.ZipInfo) -> tuple[int, int]:
        """Where a member's bytes begin, which are stored as they are, and how many they are."""
        if info.compress_type != zipfile.ZIP_STORED or info.compress_size != info.file_size:
            raise DamagedPickle(f"{info.filename} is compressed: no file of torch.save")
        header = self._mapped[info.header_offset : info.header_offset + _LOCAL_HEADER]
        offset = info.header_offset + _LOCAL_HEADER
        offset += int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
        if offset + info.file_size > len(self._mapped):
            raise DamagedPickle("it is cut off")
        return offset, info.file_size

    def _one_by_one(self) -> Any:
        place, found = 0, list[Any]()
        for _ in range(5):  # magic number, version, the machine, the object, the keys of tensors' numbers
            value, place = read_pickle(self._mapped, place, len(self._mapped))
            found.append(value)
            if found[0] != _MAGIC:
                raise DamagedPickle("it is no file of torch.save")
        _, version, machine, content, keys = found
        if version != _LEGACY_VERSION or type(machine) is not dict or machine.get("little_endian") is not True:
            raise DamagedPickle("it was written by another version of torch, or on a machine of another byte order")
        kinds = {each.stored.key: each.stored for each in _tensors(content)}
        for key in keys if type(keys) is list else []:
            stored: Stored | None = kinds.get(key) if type(key) is str else None
            size = _SIZES.get(stored.kind) if stored else None
            if stored is None or size is None:
                raise DamagedPickle("it has numbers of an unknown type")
            length = int.from_bytes(self._mapped[place : place + 8], "little") * size
            if place + 8 + length > len(self._mapped):
                raise DamagedPickle("it is cut off")
            self._places[key] = place + 8, length
            place += 8 + length
        return content


def _tensors(content: Any) -> list[Tensor]:
    return [each for each in content.values() if type(each) is Tensor] if type(content) is dict else []


@contextmanager
def open_torch_file(path: Path, work: Path) -> Iterator[TorchFile]:
    """Opens a file of torch.save that holds a dict.

    Args:
        work: an existing folder for copies of arrays.

    Raises:
        InputError: it is missing or empty, can't be read, is damaged, or holds what is not read here.
    """
    try:
        with open_regular(path) as file:
            if not os.fstat(file.fileno()).st_size:
                raise InputError("the file is empty", path)
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        opened = TorchFile(path, mapped, work)
    except InputError:
        raise
    except FileNotFoundError:
        raise InputError("no such file", path) from None
    except OSError as error:
        raise InputError(f"can't be read: {error.strerror}", path) from None
    except DamagedPickle as error:
        raise InputError(str(error), path) from None
    except _BAD_ZIP as error:
        raise InputError(f"is damaged: {error}", path) from None
    yield opened
