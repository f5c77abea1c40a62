"""Files that others may have made: read within limits, and checked before use.

A run, a prepared graph or a checkpoint may come from a stranger and still have valid checksums. All their JSON files
are read here. Size and depth are limited, no key may occur twice, numbers must be finite, and each field must have its
type. `files.untrusted_arrays` does the same for arrays. Imports neither torch nor numba.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import stat
from collections.abc import Callable
from functools import lru_cache
from io import BufferedReader
from pathlib import Path
from typing import Annotated, Any, Protocol, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from marius_oac.errors import InputError, shown
from marius_oac.runtime.files.atomic import sealed
from marius_oac.runtime.files.blocks import BlockDigests

MOST_BYTES = 64 << 20
"""Of a JSON file. The largest are those of logs with many files, some 300 bytes for each."""
MOST_DEPTH = 32
AT_ONCE = 1 << 20  # bytes of a file that are hashed; some files may be at once
_INT64 = 2**63
_DIGITS = 20  # of an integer, with its sign

Model = TypeVar("Model")
Error = Callable[[str, object], InputError]
"""Makes the error from message and place."""


FileName = Annotated[str, AfterValidator(lambda name: _plain(name))]
"""The name of a file in the same folder: no path."""
FilePath = Annotated[str, Field(min_length=1, max_length=4096, pattern=r"^[^\x00]*$")]
Count = Annotated[int, Field(ge=0, le=1 << 48)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Xxh3 = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]


class Digest(Protocol):
    """A checksum in the making."""

    def update(self, content: Any, /) -> None: ...

    def hexdigest(self) -> str: ...


class Described(BaseModel):
    """Base class for the content of JSON files: types are exact (1 is no text, true no number); unknown keys are
    ignored."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")


class DescribedFile(Described):
    """Size and SHA-256 of a file, as manifests list them where a file is known by its content, such as a prepared
    graph's."""

    bytes: Count
    sha256: Sha256

    @property
    def checksum(self) -> str:
        """Hexadecimal."""
        return self.sha256

    @staticmethod
    def new_digest() -> Digest:
        """Makes such checksums."""
        return hashlib.sha256()


class BlockedFile(Described):
    """Size of a checkpoint's file, the digests of its blocks (`files.blocks`), and the XXH3 of these.

    It shows damage as well as SHA-256 does, five to fifteen times as fast. Who wants to deceive can make a manifest
    that fits, so neither is a protection from that.
    """

    bytes: Count
    xxh3_blocks: Xxh3
    blocks: Annotated[str, Field(pattern=r"^([0-9a-f]{32})*$")]

    @property
    def checksum(self) -> str:
        """Hexadecimal."""
        return self.xxh3_blocks

    def new_digest(self) -> BlockDigests:
        """Makes such checksums."""
        return BlockDigests(self.bytes)


ListedFile = DescribedFile | BlockedFile
"""A file of a manifest."""


def blocked_file(content: bytes) -> BlockedFile:
    """The entry of a file with this content."""
    digests = BlockDigests(len(content))
    digests.update(content)
    return BlockedFile(bytes=len(content), xxh3_blocks=digests.hexdigest(), blocks=digests.all_blocks().hex())


def open_regular(path: Path, error: Error = InputError) -> BufferedReader:
    """Opens a regular file for reading; does not wait for the other end of a pipe.

    Raises:
        OSError: as `open`.
        InputError, or what `error` makes: it is a pipe, a device or a socket.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    kind = os.fstat(descriptor).st_mode
    if stat.S_ISREG(kind):
        return open(descriptor, "rb")
    os.close(descriptor)
    if stat.S_ISDIR(kind):
        raise error("is a folder, not a file", path)
    raise error("is no regular file (a pipe or a device)", path)


def read_bounded(path: Path, most_bytes: int = MOST_BYTES, error: Error = InputError) -> bytes:
    """The content of a small file. Raises what `open_regular` does, and the error where it is larger."""
    with open_regular(path, error) as file:
        content = file.read(min(os.fstat(file.fileno()).st_size, most_bytes) + 1)
    if len(content) > most_bytes:
        raise error(f"is larger than the {most_bytes >> 20} MiB that such a file may have", path)
    return content


def read_if_there(path: Path, error: Error = InputError) -> bytes | None:
    """As `read_bounded`; None if there is no such file. Raises InputError, or what `error` makes, else."""
    try:
        return read_bounded(path, error=error)
    except FileNotFoundError:
        return None
    except OSError as found:
        raise error(f"can't be read: {found.strerror}", path) from None


def check_file(
    path: Path,
    listed: ListedFile,
    error: Error = InputError,
    verify: bool = True,
    read: Callable[[int], object] = lambda size: None,
) -> None:
    """Compares a file with its entry in a manifest.

    Args:
        verify: whether to read the file and compare its checksum; otherwise only its size is compared.
        read: called with the number of bytes read, after each block.

    Raises:
        InputError, or what `error` makes: it is missing, damaged, can't be read, or is no regular file.
    """
    digest = listed.new_digest()
    try:
        with open_regular(path, error) as file:
            found = os.fstat(file.fileno()).st_size
            if found != listed.bytes:
                raise error(f"is damaged: {found:,} bytes, {listed.bytes:,} are expected", path)
            while verify and (content := file.read(AT_ONCE)):
                digest.update(content)
                read(len(content))
    except FileNotFoundError:
        raise error("is missing", path) from None
    except OSError as found:
        raise error(f"can't be read: {found.strerror}", path) from None
    if verify and digest.hexdigest() != listed.checksum:
        raise error("is damaged: its checksum differs from the one it was written with", path)


def read_json(path: Path, model: type[Model]) -> Model:
    """The content of a JSON file as `model`; see `parse_json`.

    Raises:
        OSError: it can't be opened or read.
        InputError: it is damaged, too large or no regular file.
    """
    return parse_json(read_bounded(path), path, model)


def parse_json(
    content: bytes, where: object, model: type[Model], error: Error = InputError, nan: bool = False
) -> Model:
    """A JSON text as `model`: a `Described` class, a dataclass, or types such as `dict[str, float]` and `list[str]`.

    Args:
        where: the file's name in messages.
        nan: whether numbers may be NaN or infinite, as in metrics.

    Raises:
        InputError, or what `error` makes: it is no JSON, is nested too deeply, has a key twice, an integer beyond 64
            bits, text that is no Unicode, or a value of another type than the model's; the message names the place.
    """
    try:
        tree = json.loads(
            content.decode(),
            object_pairs_hook=_unique,
            parse_int=_integer,
            parse_float=float if nan else _finite,
            parse_constant=float if nan else _finite,
        )
        check_tree(tree)
    except UnicodeDecodeError:
        raise error("is damaged: it is not UTF-8 text", where) from None
    except RecursionError:
        raise error("is damaged: it is nested too deeply", where) from None
    except json.JSONDecodeError as found:
        raise error(f"is damaged: it is no JSON ({found})", where) from None
    except ValueError as found:
        raise error(f"is damaged: {found}", where) from None
    return typed(tree, where, model, error)


def parse_sealed(content: bytes, where: object, model: type[Model], error: Error = InputError) -> Model:
    """The content of a text made by `files.sealed`; see `parse_json`. Raises as it does, and where a byte of the text
    has changed, even if the values are the same (such as a float's last digits)."""
    tree = parse_json(content, where, dict[str, Any], error)
    if tree.pop("sha256", None) is None or content != sealed(tree):
        raise error("is damaged: it is not what was written", where)
    return typed(tree, where, model, error)


def typed(tree: Any, where: object, model: type[Model], error: Error = InputError) -> Model:
    """Plain values, such as a part of a result of `parse_json`, as `model`. Raises as it does."""
    hashable: Any = model
    try:
        # By way of JSON, in which a list may become a tuple and a mapping a dataclass, types being exact otherwise.
        return _adapter(hashable).validate_json(json.dumps(tree, default=str), strict=True)
    except ValidationError as found:
        raise error(f"is damaged: {_explained(found)}", where) from None


def _plain(name: str) -> str:
    """The name. Raises ValueError where it is a path, or one that is hidden, unprintable or too long."""
    if not name or name[0] == "." or "/" in name or not name.isprintable() or len(name.encode()) > 240:
        raise ValueError(f"{shown(name)} must be the plain name of a file")
    return name


@lru_cache
def _adapter(model: Any) -> TypeAdapter:
    return TypeAdapter(model)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {shown(next(key for key in keys if keys.count(key) > 1))} stands there twice")
    return found


def _integer(text: str) -> int:
    if len(text) > _DIGITS or not -_INT64 <= int(text) < _INT64:
        raise ValueError(f"{text[:_DIGITS]}... is beyond 64 bits")
    return int(text)


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:_DIGITS]} is no finite number")
    return number


def check_tree(tree: Any) -> None:
    """Raises ValueError for what is too deep to be read again, and for texts with half a surrogate pair, which can be
    neither written nor printed."""
    waiting = [(tree, 1)]
    while waiting:
        here, depth = waiting.pop()
        if depth > MOST_DEPTH:
            raise ValueError("it is nested too deeply")
        if isinstance(here, str):
            _check_text(here)
        elif isinstance(here, dict):
            for key, value in here.items():
                _check_text(key)
                waiting.append((value, depth + 1))
        elif isinstance(here, list):
            waiting.extend((value, depth + 1) for value in here)


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{ascii(text[:40])} is no Unicode text") from None


def _explained(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    place = ".".join(str(part) for part in first["loc"])
    if first["type"] == "missing":
        return f"{place} is missing"
    if first["type"] == "value_error":
        return f"{place}: {first['ctx']['error']}"
    what = first["msg"].replace("Input should be", "must be").replace("String should", "must")
    return f"{place or 'it'} {what}, not {shown(first['input'])}"
