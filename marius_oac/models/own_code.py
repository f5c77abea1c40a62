"""Users' own code, named FILE.py:NAME in a configuration. Every mistake in it is one line with the file and the line.

A file is executed anew each time that it is loaded; nothing of it is pickled.
"""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from marius_oac.errors import ConfigError, InputError


def own_file(name: str) -> tuple[Path, str] | None:
    """File and name of FILE.py:NAME; None where it is something else."""
    path, colon, attribute = name.rpartition(":")
    return (Path(path), attribute) if colon and path.endswith(".py") else None


def load_own(path: Path, attribute: str, key: str) -> Any:
    """What a file calls so; None if it has no such thing.

    Args:
        key: of the configuration, for the errors.

    Raises:
        ConfigError: there is no such file, or it can't be executed.
    """
    if not path.is_file():
        raise ConfigError(f"there is no file {path}", key)
    name = f"marius_oac_own_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    with blaming(path, key):
        spec.loader.exec_module(module)
    return getattr(module, attribute, None)


@contextmanager
def blaming(path: Path, key: str) -> Iterator[None]:
    """An error of the code in a file becomes a ConfigError with the line, errors of ours stay as they are."""
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
    """An error that went through one of these files becomes a ConfigError with the line, others stay as they are."""
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
    """Whether Python calls this file so: it has absolute paths where a configuration has any."""
    return filename is not None and Path(filename).resolve() == path.resolve()


def own_files(names: Iterable[str], key: str) -> dict[str, str]:
    """The texts of the files among these names, by file name, as `Task.run_files` gives them.

    Raises:
        ConfigError: a file can't be read, or two of them have one name.
    """
    texts: dict[str, str] = {}
    paths: dict[str, Path] = {}
    for path in (found[0] for found in map(own_file, names) if found):
        if paths.setdefault(path.name, path) != path:
            raise ConfigError(f"a run keeps {path} and {paths[path.name]} under one name; rename one of them", key)
        try:
            texts[path.name] = path.read_text("utf-8")
        except FileNotFoundError:
            raise ConfigError(f"there is no file {path}", key) from None
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path} can't be read: {error}", key) from None
    return texts
