"""While a process compiles a kernel no other begins to, and it finds what the first one has kept."""

import importlib.util
import subprocess
import sys

import pytest
from numba.core.errors import TypingError
from numba.core.registry import CPUDispatcher

from marius_oac.kernels import ahead, once
from tests.storage.conformance import JIT

pytestmark = pytest.mark.skipif(not JIT, reason="nothing is compiled")

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
def module_of(tmp_path, monkeypatch):
    (tmp_path / "own_kernels.py").write_text(TEXT)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))

    def load():
        spec = importlib.util.spec_from_file_location("own_kernels", tmp_path / "own_kernels.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


TRIES = """
import fcntl, sys
with open(sys.argv[1], "a") as file:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sys.exit(3)
"""
HOLDS = """
import fcntl, sys
with open(sys.argv[1], "a") as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    print("held", flush=True)
    sys.stdin.read()
"""


def words_of(kernel, code):
    """A program that takes a kernel's lock."""
    return [sys.executable, "-S", "-c", code, f"{kernel.stats.cache_path}/own_kernels.{kernel.__name__}.lock"]


def is_free(kernel):
    """Whether another process gets the function's lock."""
    done = subprocess.run(words_of(kernel, TRIES))
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
    assert dict(reversed(seen)) == {"outer": False, "inner": False}  # when each was first asked for
    assert is_free(first.outer) and is_free(first.inner) and ahead.seconds_here() > seconds
    assert second.outer(3) == 8 and list(second.outer.stats.cache_hits.values()) == [1]


def test_what_another_process_compiles_is_waited_for_by_those_who_are_patient(module_of, monkeypatch):
    module, said = module_of(), []
    with subprocess.Popen(words_of(module.outer, HOLDS), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"held\n"
        assert module.outer.compile("(int64,)", patient=False) is None and not module.outer.signatures
        monkeypatch.setattr(ahead, "begun", lambda: said.append(other.stdin.close()))
        assert module.outer(3) == 8
    assert said
    assert module.outer.compile("(int64,)", patient=False) is not None


def test_it_is_said_when_a_kernel_is_compiled_and_not_when_it_is_loaded(monkeypatch):
    said = []
    monkeypatch.setattr(ahead, "begun", lambda: said.append(1))
    for module, count in (("marius_oac.some", 1), ("own_kernels", 1)):
        kernel = type("Kernel", (), {"py_func": type("Function", (), {"__module__": module})})
        once.event.broadcast(once.event.Event("numba:compile", once.event.EventStatus.START, {"dispatcher": kernel}))
        assert len(said) == count


def test_a_mistake_lets_go_of_the_lock(module_of):
    outer = module_of().outer
    with pytest.raises(TypingError):
        outer("text")
    assert is_free(outer)


def test_where_nothing_can_be_locked_nothing_is_kept(module_of, monkeypatch):
    def refuse(folder):
        raise OSError(0, "no locks")

    monkeypatch.setattr(once, "check", refuse)
    module = module_of()
    assert module.outer(3) == 8 and not list(ahead.cache_folder().rglob("*.nbi"))


def test_a_function_of_kernels_alone_refuses_python_before_and_after_it_is_compiled(module_of):
    module = module_of()
    for _ in range(2):
        with pytest.raises(TypeError, match="only kernels call inner"):
            module.inner(3)
        assert module.outer(3) == 8
