"""While a process compiles a kernel no other begins to, and it finds what the first one has kept."""

import importlib.util
import subprocess
import sys

import pytest
from numba.core.errors import TypingError
from numba.core.registry import CPUDispatcher

from tests import compiled

TEXT = """
from numba import njit

@njit(cache=True)
def inner(value):
    return value + 1

@njit(cache=True)
def outer(value):
    return inner(value) * 2
"""


def module_of(path):
    spec = importlib.util.spec_from_file_location("kernels", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TRIES = """
import fcntl, sys
with open(sys.argv[1], "r+") as file:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, int(sys.argv[2]))
    except BlockingIOError:
        sys.exit(3)
"""


def is_free(dispatcher):
    """Whether another process gets the function's lock."""
    place = compiled.place_of(dispatcher._cache._cache_file._index_path)
    done = subprocess.run([sys.executable, "-S", "-c", TRIES, compiled._FILE, str(place)])
    assert done.returncode in (0, 3)
    return not done.returncode


def test_others_wait_while_a_function_is_compiled_and_find_it_then(tmp_path, monkeypatch):
    (tmp_path / "kernels.py").write_text(TEXT)
    first, second, seen = module_of(tmp_path / "kernels.py"), module_of(tmp_path / "kernels.py"), []
    real = compiled._compile

    def look(dispatcher, signature):
        seen.append((dispatcher.__name__, is_free(dispatcher)))
        return real(dispatcher, signature)

    monkeypatch.setattr(compiled, "_compile", look)
    assert first.outer(3) == 8 and CPUDispatcher.compile is compiled._compile_once
    assert {("outer", False), ("inner", False)} == set(seen)
    assert is_free(first.outer) and is_free(first.inner)
    assert second.outer(3) == 8 and list(second.outer.stats.cache_hits.values()) == [1]


def test_a_mistake_lets_go_of_the_lock(tmp_path):
    (tmp_path / "kernels.py").write_text(TEXT)
    outer = module_of(tmp_path / "kernels.py").outer
    with pytest.raises(TypingError):
        outer("text")
    assert is_free(outer)
