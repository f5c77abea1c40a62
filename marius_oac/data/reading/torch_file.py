"""Arrays of a file that torch.save wrote, read without torch.

A process of its own (`torch_reader`) unpickles it and writes the numbers of its arrays to a file, which this one maps.
"""

from __future__ import annotations

import json
import mmap
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from marius_oac.errors import InputError
from marius_oac.runtime.files.untrusted import open_regular

_READER = Path(__file__).with_name("torch_reader.py")


class TorchFile:
    """A dict, a tensor or PyTorch Geometric's Data that torch.save wrote. Make it with `read_torch_file`.

    Args:
        values: what the reader says of each value, by name.
        numbers: the file of numbers that it wrote.

    Attributes:
        path: the file.
    """

    def __init__(self, path: Path, values: Mapping[str, Any], numbers: memoryview) -> None:
        self.path, self._values, self._numbers = path, values, numbers

    @property
    def names(self) -> list[str]:
        """The names of all values."""
        return list(self._values)

    def integers(self, name: str, shape: tuple[int | None, ...] | None) -> np.ndarray:
        """An array of integers, mapped.

        Args:
            shape: the expected one; None for a length that may be any, or for any shape.

        Raises:
            InputError: there is none of this name, type and shape.
        """
        if name not in self._values:
            raise InputError(f"has no {name!r}; it has {', '.join(self.names[:10]) or 'nothing'}", self.path)
        if wrong := self._values[name].get("wrong"):
            raise InputError(f"{name!r}: {wrong}", self.path)
        array = self._array(name)
        shape = (None,) * array.ndim if shape is None else shape
        if array.ndim != len(shape) or any(w not in (None, has) for w, has in zip(shape, array.shape, strict=True)):
            wanted = ", ".join("any" if each is None else f"{each:,}" for each in shape)
            raise InputError(f"{name!r} is an array {list(array.shape)}; [{wanted}] is expected", self.path)
        return array

    def texts(self, name: str, count: int) -> tuple[list[str], np.ndarray]:
        """A list of `count` texts: the different ones, and the number of each in those, [count]. Raises InputError
        where there is none of this name."""
        found = self._values.get(name, {})
        if "texts" not in found or found["shape"] != [count]:
            raise InputError(f"{name!r} is no list of {count:,} texts", self.path)
        return found["texts"], self._array(name)

    def _array(self, name: str) -> np.ndarray:
        found = self._values[name]
        (first, length), shape, dtype = found["place"], found["shape"], found["dtype"]
        content, strides = self._numbers[first : first + length], found.get("strides")
        try:  # NumPy compares shape, strides and offset with the bytes
            array = np.ndarray(shape, dtype, content, found.get("offset", 0), strides, found.get("order"))
            if array.shape == tuple(shape) and (
                array.nbytes == length or (strides is not None and array.nbytes < length)
            ):
                return array
        except (TypeError, ValueError, OverflowError):
            pass
        raise InputError(f"{name!r}: it has {length:,} bytes for an array {shape} of {dtype}", self.path)


def read_torch_file(path: Path, work: Path) -> TorchFile:
    """Reads a file of torch.save that holds a dict, a tensor, whose name is then "", or PyTorch Geometric's Data.

    Args:
        work: an existing folder on a disk with room for all arrays.

    Raises:
        InputError: it is missing or empty, can't be read, is damaged, or holds what is not read here.
    """
    numbers = work / "numbers.bin"
    # -I: nothing of the present folder or of the environment is imported.
    command = [sys.executable, "-I", "-S", str(_READER), str(numbers)]
    try:
        with open_regular(path) as file:
            done = subprocess.run(command, stdin=file, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        if done.returncode:
            raise InputError(_ended(done.returncode), path)
        told = json.loads(done.stdout)
        if "error" in told:
            raise InputError(told["error"], path)
        with open(numbers, "rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if os.fstat(file.fileno()).st_size else b""
        return TorchFile(path, told["values"], memoryview(mapped))
    except FileNotFoundError:
        raise InputError("no such file", path) from None
    except OSError as error:
        raise InputError(f"can't be read: {error.strerror}", path) from None
    finally:
        numbers.unlink(missing_ok=True)


def _ended(code: int) -> str:
    if code == -signal.SIGXCPU:
        return "it takes more time of the processor than such a file needs"
    how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    return f"it is damaged: its reader, a process of its own, crashed ({how})"
