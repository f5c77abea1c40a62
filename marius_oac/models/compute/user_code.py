"""Custom code, named FILE.py:NAME in a configuration. Errors in it are reported in one line with file and line number.

A file is executed each time it is loaded; nothing is pickled. Only code is executed that this user has trained with or
trusts explicitly.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from marius_oac.config.named_files import MODULE, named, with_named
from marius_oac.config.parts import own_file
from marius_oac.config.task import TaskConfig
from marius_oac.errors import ConfigError, InputError
from marius_oac.models.compute.trust import is_known
from marius_oac.runtime.files.untrusted import read_bounded
from marius_oac.types import present

_TEXTS: dict[Path, bytes] = {}
"""The texts of the files that this process has admitted."""


def own_names(config: TaskConfig) -> list[str]:
    """All FILE.py:NAME in a configuration."""
    return [name for _, name in named_code(config)]


def named_code(config: TaskConfig) -> list[tuple[str, str]]:
    """The keys that name custom code, each with its FILE.py:NAME."""
    return [(key, name) for key, name in named(config, MODULE) if own_file(name)]


def with_own_files(config: TaskConfig, place: Callable[[Path], Path]) -> TaskConfig:
    """The configuration with the path of each custom file replaced by `place(path)`."""

    def placed(name: str) -> str:
        found = own_file(name)
        return f"{place(found[0])}:{found[1]}" if found else name

    return with_named(config, {MODULE: placed})


def admit(config: TaskConfig, trust: bool | Collection[bytes] = False) -> list[bytes]:
    """Reads the files of custom code that a configuration names. From now on this process runs these texts, even if the
    files change. Missing files are skipped; loading one raises the error.

    Args:
        trust: also admit all files, or these texts, that this user has not trained with; see `compute.trust`.

    Returns:
        the texts.

    Raises:
        InputError: a file can't be read, or is not trusted. No code has run then.
    """
    return admit_names(own_names(config), trust)


def admit_names(names: Iterable[str], trust: bool | Collection[bytes] = False) -> list[bytes]:
    """See `admit`; `names` are FILE.py:NAME."""
    files = (present(own_file(name))[0] for name in names)
    paths = {path.resolve(): path for path in files if path.exists()}
    texts = {resolved: _admitted(path, trust) for resolved, path in paths.items()}
    _TEXTS.update(texts)
    return list(texts.values())


def load_own(path: Path, attribute: str, key: str) -> Any:
    """Executes a file and returns its attribute of this name; None if it has none. Compiled files are never used.

    Args:
        key: of the configuration, for messages.

    Raises:
        ConfigError: there is no such file, or it can't be executed.
        InputError: it is neither admitted nor trusted.
    """
    text = _text_of(path, key)
    if path.resolve() not in _TEXTS:
        _check_trusted(path, text)
    module = ModuleType(f"marius_oac_own_{path.stem}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module
    with blaming(path, key):
        exec(compile(text, str(path), "exec", dont_inherit=True), module.__dict__)
    return getattr(module, attribute, None)


def _admitted(path: Path, trust: bool | Collection[bytes]) -> bytes:
    try:
        text = read_bounded(path)
    except OSError as error:
        raise InputError(f"can't be read: {error.strerror}", path) from None
    if trust is not True and text not in (trust or ()):
        _check_trusted(path, text)
    return text


def _check_trusted(path: Path, text: bytes) -> None:
    if not is_known(text):
        what = "is code that you have not trained with here, so it is not run"
        raise InputError(f"{what}; if you trust it, add --trust (in Python: trust=True)", path)


def _text_of(path: Path, key: str) -> bytes:
    """The text of a file: the admitted one if there is one. Raises ConfigError if the file can't be read."""
    found = _TEXTS.get(path.resolve())
    if found is not None:
        return found
    try:
        return read_bounded(path)
    except FileNotFoundError:
        raise ConfigError(f"there is no file {path}", key) from None
    except (OSError, InputError) as error:
        raise ConfigError(f"{path} can't be read: {error}", key) from None


@contextmanager
def blaming(path: Path, key: str) -> Iterator[None]:
    """Within the block, errors of a file's code become a ConfigError with the line. Our own errors pass unchanged."""
    try:
        yield
    except InputError:
        raise
    except SyntaxError as error:
        blamed = path if _same(error.filename, path) else error.filename
        raise ConfigError(f"{blamed}:{error.lineno}: {error.msg}", key) from error
    except Exception as error:
        own = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if _same(frame.filename, path)]
        place = f"{path}:{own[-1]}" if own else path
        raise ConfigError(f"{place}: {type(error).__name__}: {error}", key) from error


@contextmanager
def blaming_frames(paths: Collection[Path], key: str) -> Iterator[None]:
    """Within the block, errors whose traceback has one of these files become a ConfigError with the line. Others pass
    unchanged."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if any(_same(frame.filename, path) for path in paths)]
        if not own:
            raise
        place = f"{own[-1].filename}:{own[-1].lineno}"
        raise ConfigError(f"{place}: {type(error).__name__}: {error}", key) from error


def _same(filename: str | None, path: Path) -> bool:
    """Whether a file name in a traceback, which is absolute, means this file."""
    return filename is not None and Path(filename).resolve() == path.resolve()


def own_files(named: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The texts of custom files, given as `named_code` does, by file name, as `Task.run_files` returns them.

    Raises:
        ConfigError: a file can't be read, or two files have the same name.
    """
    texts: dict[str, str] = {}
    paths: dict[str, Path] = {}
    for key, name in named:
        path, _ = present(own_file(name))
        if paths.setdefault(path.name, path) != path:
            raise ConfigError(f"a run keeps {path} and {paths[path.name]} under one name; rename one of them", key)
        try:
            texts[path.name] = _text_of(path, key).decode()
        except UnicodeDecodeError as error:
            raise ConfigError(f"{path} can't be read: {error}", key) from None
    return texts
