"""Arrays of a file that torch.save wrote, read without torch.

A process of its own finds out where in the file they lie (`torch_reader`). This one unpickles nothing: it maps it.
Since torch 1.6 such a file is a .zip with a pickle and, beside it, the numbers of each tensor. Before, pickles and
numbers followed one another. NumPy arrays are within the pickle.
"""

from __future__ import annotations

import codecs
import json
import math
import mmap
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from marius_oac.errors import InputError
from marius_oac.runtime.files.untrusted import open_regular

_READER = Path(__file__).with_name("torch_reader.py")
_PIECE = 1 << 20


class TorchFile:
    """A dict, a tensor or PyTorch Geometric's Data that torch.save wrote. Make it with `open_torch_file`.

    Args:
        values: what the reader says of each value, by name.
        numbers: the numbers of lists' texts, one list after the other.

    Attributes:
        path: the file.
    """

    def __init__(self, path: Path, mapped: mmap.mmap, values: Mapping[str, Any], numbers: bytes, work: Path) -> None:
        self.path, self._mapped, self._values, self._work = path, mapped, values, work
        self._texts: dict[str, tuple[list[str], np.ndarray]] = {}
        place = 0
        for name, value in values.items():
            if "texts" in value:
                known, size, count = value["texts"]
                self._texts[name] = known, np.frombuffer(numbers, f"u{size}", count, place)
                place += size * count

    @property
    def names(self) -> list[str]:
        """The names of all values."""
        return list(self._values)

    def integers(self, name: str, shape: tuple[int | None, ...] | None) -> np.ndarray:
        """An array of integers, mapped from the file or from a copy in the work folder.

        Args:
            shape: the expected one; None for a length that may be any, or for any shape.

        Raises:
            InputError: there is none of this name, type and shape.
        """
        if name not in self._values:
            raise InputError(f"has no {name!r}; it has {', '.join(list(self._values)[:10]) or 'nothing'}", self.path)
        found = self._values[name]
        if "wrong" in found:
            raise InputError(f"{name!r}: {found['wrong']}", self.path)
        there = found["shape"]
        shape = (None,) * len(there) if shape is None else shape
        if len(there) != len(shape) or any(want not in (None, has) for want, has in zip(shape, there, strict=True)):
            wanted = ", ".join("any" if each is None else f"{each:,}" for each in shape)
            raise InputError(f"{name!r} is an array {there}; [{wanted}] is expected", self.path)
        dtype, (offset, length, text), inside = np.dtype(found["dtype"]), found["place"], found.get("offset", 0)
        if 0 in there:
            return np.empty(there, dtype)
        if not text:
            strides = [each * dtype.itemsize for each in found["strides"]] if "strides" in found else None
            first = offset + inside * dtype.itemsize
            return np.ndarray(there, dtype, self._mapped, first, strides, found.get("order"))
        content = self._decoded(offset, length)
        if len(content) != math.prod(there) * dtype.itemsize:
            raise InputError(f"{name!r}: it has {len(content):,} bytes for an array {there} of {dtype}", self.path)
        return np.ndarray(there, dtype, content, order=found["order"])

    def texts(self, name: str, count: int) -> tuple[list[str], np.ndarray]:
        """A list of `count` texts: the different ones, and the number of each in those, [count]. Raises InputError
        where there is none of this name."""
        if name not in self._texts or len(self._texts[name][1]) != count:
            raise InputError(f"{name!r} is no list of {count:,} texts", self.path)
        return self._texts[name]

    def _decoded(self, offset: int, length: int) -> mmap.mmap:
        """The bytes that stand as characters, from a file in the work folder."""
        decoder, path = codecs.getincrementaldecoder("utf-8")(), self._work / "decoded.bin"
        try:
            with open(path, "w+b") as file:
                for first in range(offset, offset + length, _PIECE):
                    last = min(first + _PIECE, offset + length)
                    text = decoder.decode(self._mapped[first:last], last == offset + length)
                    file.write(text.encode("latin-1"))
                file.flush()
                return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except UnicodeError:
            raise InputError("the bytes of an array are damaged", self.path) from None
        finally:
            path.unlink(missing_ok=True)


@contextmanager
def open_torch_file(path: Path, work: Path) -> Iterator[TorchFile]:
    """Opens a file of torch.save that holds a dict, a tensor, whose name is then "", or PyTorch Geometric's Data.

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
            # -I: nothing of the present folder or of the environment is imported.
            command = [sys.executable, "-I", "-S", str(_READER)]
            done = subprocess.run(command, stdin=file, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    except FileNotFoundError:
        raise InputError("no such file", path) from None
    except OSError as error:
        raise InputError(f"can't be read: {error.strerror}", path) from None
    if done.returncode:
        raise InputError(_ended(done.returncode), path)
    line, _, numbers = done.stdout.partition(b"\n")
    told = json.loads(line)
    if "error" in told:
        raise InputError(told["error"], path)
    yield TorchFile(path, mapped, told["values"], numbers, work)


def _ended(code: int) -> str:
    if code == -signal.SIGXCPU:
        return "it takes more time of the processor than such a file needs"
    how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    return f"it is damaged: its reader, a process of its own, crashed ({how})"
