"""While a process compiles a kernel no other begins to, and it finds what the first one has kept."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from numba.core.errors import TypingError
from numba.core.registry import CPUDispatcher

from marius_oac.kernels import ahead, once

TEXT = """
from marius_oac.kernels.cpu.jit import compiled, inlined

@inlined
def inner(value):
    return value + 1

@compiled
def outer(value):
    return inner(value) * 2
"""


@pytest.fixture
def module_of(tmp_path):
    (tmp_path / "own_kernels.py").write_text(TEXT)

    def load():
        spec = importlib.util.spec_from_file_location("own_kernels", tmp_path / "own_kernels.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


TRIES = """
import fcntl, sys
with open(sys.argv[1], "r+") as file:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, int(sys.argv[2]))
    except BlockingIOError:
        sys.exit(3)
"""


def is_free(kernel):
    """Whether another process gets the function's lock."""
    index = Path(kernel._cache._cache_file._index_path)
    done = subprocess.run(
        [sys.executable, "-S", "-c", TRIES, index.with_name(once.LOCKS), str(once.place_of(index.name))]
    )
    assert done.returncode in (0, 3)
    return not done.returncode


def test_others_wait_while_a_function_is_compiled_and_find_it_then(module_of, monkeypatch):
    first, second, seen = module_of(), module_of(), []
    real = CPUDispatcher.compile

    def look(kernel, signature):
        seen.append((kernel.__name__, is_free(kernel)))
        return real(kernel, signature)

    monkeypatch.setattr(CPUDispatcher, "compile", look)
    seconds = ahead.seconds_here()
    assert first.outer(3) == 8
    seconds, after = ahead.seconds_here() - seconds, ahead.seconds_here()
    assert dict(reversed(seen)) == {"outer": False, "inner": False}  # when each was first asked for
    assert is_free(first.outer) and is_free(first.inner)
    assert second.outer(3) == 8 and list(second.outer.stats.cache_hits.values()) == [1]
    assert seen[-1] == ("outer", True)  # what is kept is loaded without a lock
    assert seconds > 0 and ahead.seconds_here() == after


def test_what_is_compiled_beside_this_process_is_waited_for(module_of, monkeypatch):
    first, second, finished = module_of(), module_of(), []

    def goes_on():
        if finished == ["something else"]:
            monkeypatch.setattr(ahead, "goes_on", lambda: False)
            second.outer(3)
        finished.append("something else")
        return True

    monkeypatch.setattr(ahead, "goes_on", goes_on)
    assert first.outer(3) == 8 and len(finished) == 2
    assert list(first.outer.stats.cache_hits.values()) == [1]


def test_an_index_names_nothing_that_is_not_there(module_of, monkeypatch):
    seen, save = [], once.CacheFile._save_index

    def look(self, overloads):
        seen.append([Path(self._data_path(name)).exists() for name in overloads.values()])
        save(self, overloads)

    monkeypatch.setattr(once.CacheFile, "_save_index", look)
    module = module_of()
    assert (module.outer(3), module.outer(3.0)) == (8, 8.0)
    assert seen == [[True], [True], [True] * 2, [True] * 2]


def test_who_is_killed_before_the_index_leaves_nothing_that_counts(module_of, monkeypatch):
    with monkeypatch.context() as killed:
        killed.setattr(once.CacheFile, "_save_index", lambda self, overloads: None)
        assert module_of().outer(3) == 8
    module = module_of()
    assert module.outer(3) == 8 and not module.outer.stats.cache_hits
    assert module_of().outer(3.0) == 8.0


def test_who_writes_at_once_for_other_signatures_writes_to_other_files(module_of, monkeypatch):
    with monkeypatch.context() as together:
        together.setattr(once.CacheFile, "_load_index", lambda self: {})
        names = []
        together.setattr(once.CacheFile, "_save_index", lambda self, overloads: names.extend(overloads.values()))
        module = module_of()
        assert (module.outer(3), module.outer(3.0)) == (8, 8.0)
    assert len(set(names)) == len(names) == 4


def test_a_mistake_lets_go_of_the_lock(module_of):
    outer = module_of().outer
    with pytest.raises(TypingError):
        outer("text")
    assert is_free(outer)


def test_a_folder_without_locks_compiles_all_the_same(module_of, monkeypatch):
    def refuse(folder):
        raise OSError("no locks")

    monkeypatch.setattr(once, "_locks", refuse)
    assert module_of().outer(3) == 8


def test_a_function_of_kernels_alone_refuses_python_before_and_after_it_is_compiled(module_of):
    module = module_of()
    for _ in range(2):
        with pytest.raises(TypeError, match="only kernels call inner"):
            module.inner(3)
        assert module.outer(3) == 8
